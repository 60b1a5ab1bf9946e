"""The book's own drawings, made at build as SVG whose parts are links.

``{drawing}`` places one of them with its caption: the map of the book, the paper's
Figure 1, small pictures of masks. They take the colours of the page, and their links
come from the table of contents: a chapter that is not in it is named without a link.
``{chapter}`8``` names a chapter in the text in the same way.
"""

import re
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective, SphinxRole

PLAN = "book/chapters.yml"
UNWRITTEN = "not written yet"


def read_plan(source):
    """The parts of the book as (name, chapters); each chapter knows its number."""
    parts = yaml.safe_load(Path(source, PLAN).read_text("utf8"))
    for part in parts:
        for chapter in part["chapters"]:
            chapter["number"] = int(re.search(r"/(\d\d)_", chapter["file"])[1])
    return [(part["part"], part["chapters"]) for part in parts]


# ---- pieces ------------------------------------------------------------------------
def text(x, y, words, kind, anchor="middle"):
    return (
        f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def rectangle(x, y, width, height, kind, round_by=3):
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" '
        f'rx="{round_by}" class="{kind}"/>'
    )


def path(d, kind="line", arrow=False):
    tip = ' marker-end="url(#tip)"' if arrow else ""
    return f'<path d="{d}" class="{kind}"{tip}/>'


def link(address, *content):
    return f'<a href="{escape(address)}">{"".join(content)}</a>'


def drawing_of(width, height, name, title, description, content, kind=""):
    """An SVG with a name and a description; its links stay links for every reader."""
    classes = f"drawing {kind}".strip()
    return (
        f'<svg class="{classes}" viewBox="0 0 {width} {height}" '
        f'role="group" aria-labelledby="{name}-title {name}-text" '
        f'xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-text">{escape(description)}</desc>{content}</svg>'
    )


# ---- the map -----------------------------------------------------------------------
def station(x, y, chapter, address, wide):
    """A chapter on the map: its number in a circle, its title and a few words."""
    number, title = chapter["number"], chapter["title"]
    if not wide:
        title = chapter.get("short", title)
    written = address is not None
    state = "written" if written else "unwritten"
    content = [
        rectangle(x - 16, y - 20, 300 if wide else 304 - x, 40, "hit"),
        f'<circle cx="{x}" cy="{y}" r="13" class="{state}"/>',
        text(x, y + 4.5, str(number), f"number {state}"),
        text(x + 24, y - 2, title, f"name {state}", "start"),
        text(
            x + 24, y + 14, chapter["gist"] if written else UNWRITTEN, "gist", "start"
        ),
    ]
    return link(address, *content) if written else "".join(content[1:])


def draw_map(plan, address_of, wide):
    """One line runs through the book; Part III branches off after decoding.

    Wide, the branch stands beside the line; narrow, within it.
    """
    row, left = 48, 20
    branch = 372 if wide else left + 26
    stations, places = [], {}
    y = below = 14  # where the next part begins, and where the drawing ends
    for part, chapters in plan:
        aside = part.startswith("Part III")
        x, start = (branch if aside else left), y
        if aside and wide:
            y = places[7][1] + 40
        stations.append(text(x + 24, y, part, "part", "start"))
        y += 28
        for chapter in chapters:
            places[chapter["number"]] = x, y
            address = address_of(chapter["file"])
            stations.append(station(x, y, chapter, address, wide))
            y += row
        y += 4
        below = max(below, y)
        if aside and wide:
            y = start
    trunk = [n for n in sorted(places) if places[n][0] == left]
    twig = [n for n in sorted(places) if places[n][0] == branch]
    tracks = [path(f"M{left} {places[trunk[0]][1]} V{places[trunk[-1]][1]}", "track")]
    (_, fork), (_, first), (_, last) = places[7], places[twig[0]], places[twig[-1]]
    if wide:
        level = fork + 27
        bend = (
            f"C{left} {fork + 16} {left + 4} {level} {left + 34} {level} "
            f"H{branch - 30} C{branch - 8} {level} {branch} {level + 10} "
            f"{branch} {first}"
        )
    else:
        bend = f"C{left} {fork + 34} {branch} {first - 46} {branch} {first}"
    tracks.append(path(f"M{left} {fork} {bend} V{last}", "track"))
    written = [c["title"] for _, cs in plan for c in cs if address_of(c["file"])]
    description = (
        "One line of chapters from the equations through the model to training and the "
        "epilogues; the trade-offs branch off after decoding. Written so far: "
        + ", ".join(written)
        + "."
    )
    kind = "wide" if wide else "narrow"
    size = (720 if wide else 320), below - 26
    title, content = "The chapters of the book", "".join(tracks + stations)
    return drawing_of(*size, f"map-{kind}", title, description, content, kind)


def book_map(plan, address_of):
    return "".join(draw_map(plan, address_of, wide) for wide in (True, False))


# ---- the paper's Figure 1 ----------------------------------------------------------
WIDTH = 128
ENCODER, DECODER = 86, 248  # the middle of each stack
EMBED = "Embedding", "notebooks/05_sublayers", "eq-embedding"
PLACE = "+ positional|encoding", "notebooks/04_positional_encoding", ""
NORM = "Add & norm", "notebooks/05_sublayers", "eq-post-norm"
FORWARD = "Feed-forward", "notebooks/05_sublayers", "eq-feed-forward"
USES = "notebooks/03_multi_head", "three-uses-of-one-module"
SELF = "Multi-head|self-attention", "notebooks/03_multi_head", "eq-multi-head"
MASKED = ("Masked multi-head|self-attention", *USES)
CROSS = ("Encoder–decoder|attention", *USES)
LINEAR = "Linear", "notebooks/06_transformer", "one-matrix-three-uses"
SOFTMAX = "Softmax", "notebooks/07_decoding", "the-probability-of-a-sequence"


class Figure:
    """Boxes from the bottom up, with arrows between them."""

    def __init__(self, address_of):
        self.address_of, self.parts = address_of, []

    def box(self, x, bottom, part, kind, height=None):
        """Draw a box above ``bottom``; returns its upper edge."""
        label, page, anchor = part
        words = label.split("|")
        height = height or 16 + 15 * len(words)
        top = bottom - height
        address = self.address_of(page, anchor)
        first = top + height / 2 + 4.5 - 7.5 * (len(words) - 1)
        left = x - WIDTH / 2
        content = rectangle(left, top, WIDTH, height, f"box {kind}") + "".join(
            text(x, first + 15 * i, word, "label") for i, word in enumerate(words)
        )
        self.parts.append(link(address, content) if address else content)
        return top

    def arrow(self, x, start, end):
        self.parts.append(path(f"M{x} {start} V{end + 1}", arrow=True))

    def input(self, x, bottom, words):
        """A name, the embedding, the positions; returns the upper edge."""
        self.parts.append(text(x, bottom, words, "end"))
        self.arrow(x, bottom - 14, bottom - 30)
        top = self.box(x, bottom - 31, EMBED, "plain")
        self.arrow(x, top, top - 14)
        return self.box(x, top - 15, PLACE, "position")

    def sublayer(self, x, bottom, part, kind, side):
        """A sub-layer and the way around it, into Add & norm; gives the upper edge."""
        self.arrow(x, bottom, bottom - 24)
        top = self.box(x, bottom - 25, part, kind)
        self.arrow(x, top, top - 8)
        norm = self.box(x, top - 9, NORM, "norm", height=26)
        edge, out = x + side * WIDTH / 2, x + side * (WIDTH / 2 + 12)
        way = f"M{x} {bottom - 9} H{out} V{norm + 13} H{edge + side}"
        self.parts.append(path(way, arrow=True))
        return norm

    def frame(self, x, bottom, top, name, anchor, side):
        outer, inner = x + side * (WIDTH / 2 + 20), x - side * (WIDTH / 2 + 8)
        left, width = min(outer, inner), abs(outer - inner)
        box = rectangle(left, top, width, bottom - top, "frame", round_by=8)
        self.parts.insert(0, box)
        words = [
            rectangle(min(outer, x - side * 36) + 2, top + 2, 80, 24, "hit"),
            text(outer - side * 10, top + 17, name, "label strong",
                 "start" if side < 0 else "end"),
            text(x - side * 12, top + 17, "N×", "label strong",
                 "start" if side < 0 else "end"),
        ]  # fmt: skip
        address = self.address_of("notebooks/06_transformer", anchor)
        self.parts.append(link(address, *words) if address else "".join(words[1:]))


def figure_1(plan, address_of):
    figure = Figure(address_of)
    floor = 604
    start = figure.input(ENCODER, floor, "source")
    top = figure.sublayer(ENCODER, start, SELF, "attention", -1)
    top = figure.sublayer(ENCODER, top, FORWARD, "forward", -1)
    figure.frame(ENCODER, start - 4, top - 24, "Encoder", "an-encoder-layer", -1)
    memory = top - 40

    start = figure.input(DECODER, floor, "target, shifted right")
    top = figure.sublayer(DECODER, start, MASKED, "attention", 1)
    below = top
    top = figure.sublayer(DECODER, top, CROSS, "attention", 1)
    cross = below - 25 - 23
    top = figure.sublayer(DECODER, top, FORWARD, "forward", 1)
    figure.frame(DECODER, start - 4, top - 24, "Decoder", "a-decoder-layer", 1)
    figure.arrow(DECODER, top, top - 34)
    top = figure.box(DECODER, top - 35, LINEAR, "plain")
    figure.arrow(DECODER, top, top - 14)
    top = figure.box(DECODER, top - 15, SOFTMAX, "plain")
    figure.arrow(DECODER, top, top - 14)
    figure.parts.append(text(DECODER, top - 20, "next-token probabilities", "end"))

    between = (ENCODER + DECODER) / 2
    edge = DECODER - WIDTH / 2 - 1
    way = f"M{ENCODER} {memory + 16} V{memory} H{between} V{cross} H{edge}"
    figure.parts.append(path(way, "line memory", arrow=True))
    figure.parts.append(text(between - 8, memory - 7, "memory", "end memory", "end"))
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z"/>'
        "</marker></defs>"
    )
    description = (
        "Read upwards. Left, the encoder: the source is embedded, positions are added, "
        "and N layers follow, each with multi-head self-attention and a feed-forward "
        "network, each of these with a way around it that is added, then normalised. "
        "Right, the decoder: the target, shifted right, is embedded, positions are "
        "added, and N layers follow with masked self-attention, attention to the "
        "encoder's memory, and a feed-forward network. A linear map and a softmax give "
        "the probabilities of the next token."
    )
    top = int(top - 36)
    content = f'<g transform="translate(0 {-top})">{"".join(figure.parts)}</g>'
    title = "The model of the paper's Figure 1"
    return drawing_of(
        334, 612 - top, "model", title, description, tip + content, "model"
    )


# ---- masks -------------------------------------------------------------------------
def mask_picture(name, rows):
    """A mask as a grid, a row for each query; a dot where it may attend."""
    cell, n_queries, n_keys = 22, len(rows), len(rows[0])
    content = [
        text(14 + n_keys * cell / 2, 10, "keys →", "end"),
        f'<text transform="translate(9 {16 + n_queries * cell / 2}) rotate(-90)" '
        'class="end" text-anchor="middle">← queries</text>',
    ]
    for i, row in enumerate(rows):
        for j, may in enumerate(row):
            x, y = 14 + j * cell, 16 + i * cell
            kind = "may" if may else "hidden"
            content.append(rectangle(x + 1, y + 1, cell - 2, cell - 2, kind, 2))
            if may:
                x, y = x + cell / 2, y + cell / 2
                content.append(f'<circle cx="{x}" cy="{y}" r="3.5" class="dot"/>')
    width, height = 16 + n_keys * cell, 18 + max(n_queries, 4) * cell
    spoken = "; ".join(
        f"query {i + 1} may attend to "
        + (", ".join(str(j + 1) for j, may in enumerate(row) if may) or "nothing")
        for i, row in enumerate(rows)
    )
    label = escape(f"{name}: {n_queries} queries, {n_keys} keys; {spoken}.")
    return (
        f'<svg class="drawing mask plot" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{label}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(content)}</svg>'
    )


def causal(n_queries, n_keys):
    """Lower-right alignment: the last query stands at the last key."""
    past = n_keys - n_queries
    return [[j <= i + past for j in range(n_keys)] for i in range(n_queries)]


def masks(plan, address_of):
    padding = [True, True, True, False, False]
    rows = [
        ("causal", causal(4, 4), "No query sees a later key."),
        (
            "causal, 2 new queries",
            causal(2, 5),
            "The last query stands at the last key.",
        ),
        ("padding", [padding] * 4, "Keys 4 and 5 only fill the batch up."),
        (
            "causal & padding",
            [[a and b for a, b in zip(r, padding, strict=True)] for r in causal(4, 5)],
            "Both at once: allowed where both allow.",
        ),
    ]
    return (
        '<div class="masks">'
        + "".join(
            f"<figure>{mask_picture(name, mask)}"
            f"<figcaption><strong>{escape(name)}</strong> {why}</figcaption></figure>"
            for name, mask, why in rows
        )
        + "</div>"
    )


DRAWINGS = {"map": book_map, "figure-1": figure_1, "masks": masks}


# ---- Sphinx ------------------------------------------------------------------------
class drawing(nodes.Element):
    """A drawing, with its caption as content."""


class Drawing(SphinxDirective):
    required_arguments = 1
    has_content = True

    def run(self):
        name = self.arguments[0]
        if name not in DRAWINGS:
            raise self.error(f"no drawing {name!r}: there are {', '.join(DRAWINGS)}")
        node = drawing(name=name)
        self.state.nested_parse(self.content, self.content_offset, node)
        self.env.note_dependency(str(Path(self.env.srcdir, PLAN)))
        return [node]


def visit_drawing(self, node):
    env, here = self.builder.env, self.builder.current_docname

    def address_of(page, anchor=""):
        if page not in env.found_docs:
            return None
        address = self.builder.get_relative_uri(here, page)
        return f"{address}#{anchor}" if anchor else address

    svg = DRAWINGS[node["name"]](read_plan(env.srcdir), address_of)
    tag, caption = ("figure", "figcaption") if node.children else ("div", None)
    self.body.append(f'<{tag} class="drawing">{svg}')
    if caption:
        self.body.append(f"<{caption}>")


def depart_drawing(self, node):
    self.body.append("</figcaption></figure>\n" if node.children else "</div>\n")


class Chapter(SphinxRole):
    def run(self):
        plan = {str(c["number"]): c for _, cs in read_plan(self.env.srcdir) for c in cs}
        chapter = plan.get(self.text.strip())
        if chapter is None:
            message = self.inliner.reporter.error(
                f"no chapter {self.text!r}: the plan has {', '.join(plan)}",
                line=self.lineno,
            )
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [
                message
            ]
        words = f"{chapter['number']} {chapter['title']}"
        if chapter["file"] not in self.env.found_docs:
            return [
                nodes.inline("", f"{words} ({UNWRITTEN})", classes=["unwritten"])
            ], []
        words = nodes.inline("", words)
        options = {"refdomain": "std", "reftype": "doc", "refexplicit": True}
        target = "/" + chapter["file"]
        here = self.env.docname
        link = addnodes.pending_xref(
            "", words, reftarget=target, refdoc=here, **options
        )
        return [link], []


def setup(app):
    app.add_node(drawing, html=(visit_drawing, depart_drawing))
    app.add_directive("drawing", Drawing)
    app.add_role("chapter", Chapter())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
