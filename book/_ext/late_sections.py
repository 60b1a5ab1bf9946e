"""Long pages lay out a section when it comes near, and reserve its place until then.

A chapter has some fifteen thousand elements, most of them in formulas, and laying out
all of them would hold up a phone for a second. ``book.css`` leaves a section of a long
page alone (``content-visibility``) while it is far away. How tall it will be is
estimated here from what it holds, for a phone and for a wide screen; what is on the
safe side keeps sections from lying over each other where a tool asks for a place that
has not been laid out. A test compares the estimates with a browser.
"""

import re

from lxml import html

LONG = 10_000  # elements

# Pixels of one of each, 390 and 1,280 px wide: fitted, by least squares on the relative
# error, to the heights of the 236 sections of long pages in Chromium, and rounded.
# Interactive figures differ most in height and count for more than their mean.
HEIGHTS = {
    "character": (0.62, 0.35),
    "paragraph": (35, 37),
    "line of code": (18, 20),
    "line of output": (17, 21),
    "box of code": (26, 28),
    "formula": (39, 31),
    "row of a formula": (39, 44),
    "heading": (23, 27),
    "fold": (78, 68),
    "character in a table": (1, 0),
    "row of a table": (27, 47),
    "drawing": (35, 378),  # as tall as it is wide
    "figure": (800, 620),
    "model": (1690, 975),
}
MARGIN = 1.08, 60  # times, and pixels

SECTION = "section/section"  # in the article, which is one section itself
SKIPPED = {"script", "style", "math", "template", "button"}
CLOSED = "ancestor::details[not(@open)] | ancestor::aiayn-figure | ancestor::aiayn-live"


def characters(element):
    """Characters that a reader sees; a formula counts as drawn, not as MathML too."""
    if not isinstance(element.tag, str) or element.tag in SKIPPED:
        return 0
    if "katex-mathml" in element.get("class", ""):
        return 0
    texts = [element.text, *(part.tail for part in element)]
    own = sum(len(" ".join(text.split())) for text in texts if text)
    return own + sum(map(characters, element))


def parts(element):
    """What an element adds to the height of its section: pairs of kind and number."""
    kinds = element.get("class", "").split()
    if element.xpath(CLOSED):
        return
    if element.tag == "tr":
        yield "row of a table", 1
        yield "character in a table", characters(element)
    elif element.xpath("ancestor::table"):
        return
    elif element.tag == "details" and element.get("open") is None:
        yield "fold", 1
    elif element.tag in ("p", "dt", "figcaption"):
        yield "paragraph", 1
        yield "character", characters(element)
    elif element.tag in ("dd", "li") and not element.xpath("p | dl | ul | ol | div"):
        yield "paragraph", element.tag == "dd"
        yield "character", characters(element)
    elif element.tag == "pre":
        output = element.xpath('ancestor::*[contains(@class, "cell_output")]')
        lines = "".join(element.itertext()).count("\n")
        yield "line of output" if output else "line of code", lines
    elif element.tag == "div" and "math" in kinds:
        yield "formula", 1
        yield "row of a formula", len(element.findall(".//mtr")) or 1
    elif element.tag in ("h2", "h3", "h4"):
        yield "heading", 1
    elif element.tag == "svg" and {"plot", "drawing"} & set(kinds):
        _, _, width, height = map(float, element.get("viewbox").split())
        yield "drawing", height / width
    elif element.tag in ("aiayn-figure", "aiayn-live"):
        yield "model" if element.tag == "aiayn-live" else "figure", 1
    if "cell_input" in kinds or any(kind.startswith("highlight-") for kind in kinds):
        yield "box of code", 1


def heights(section):
    """How tall a section is on a phone and on a wide screen, in pixels."""
    found = [0, 0]
    for element in section.iter("*"):  # no comments
        for kind, number in parts(element):
            for i, height in enumerate(HEIGHTS[kind]):
                found[i] += number * height
    times, more = MARGIN
    return [round(times * height + more) for height in found]


def mark(body):
    """The HTML of a page whose sections, if it is long, reserve their place."""
    if len(re.findall("<[a-z]", body)) < LONG:
        return body
    for section in html.fragment_fromstring(body, create_parent="div").xpath(SECTION):
        phone, wide = heights(section)
        tag = f'<section id="{section.get("id")}"'
        style = f'class="late" style="--phone: {phone}px; --wide: {wide}px"'
        body = body.replace(f"{tag}>", f"{tag} {style}>", 1)
    return body


def reserve(app, pagename, templatename, context, doctree):
    if app.builder.format == "html" and context.get("body"):
        context["body"] = mark(context["body"])


def setup(app):
    app.connect("html-page-context", reserve, priority=900)  # after all other changes
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
