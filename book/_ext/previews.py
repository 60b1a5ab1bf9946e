"""What references point to, stored so that previews.js can show it beside them.

Each labelled equation, figure and glossary term becomes a small script of its own in
``_static/previews``. A page opened as a file may not fetch, but it may load a script,
and it loads one only when a reader asks for it: pages carry nothing of this.
"""

import json
import re
from pathlib import Path

from docutils import nodes
from sphinx.util.nodes import clean_astext

KINDS = {
    "eq": nodes.math_block,
    "res": nodes.math_block,
    "fig": nodes.figure,
    "term": nodes.definition_list,
}
LABEL = re.compile(r"^(?:eq|res|fig|term)-[\w-]+$")
# a link to one of them, or one whose title says what a cited work is
LINK = re.compile(
    r'<a class="reference internal" (?:href="[^"]*#(?:eq|res|fig|term)-'
    r'|href="[^"]*" title=")'
)
LARGEST = 60_000  # bytes of a picture; a larger one is named by its caption alone


def targets(doctree):
    """Labelled equations, figures and terms of a page as (label, node)."""
    for kind, node_type in KINDS.items():
        for node in doctree.findall(node_type):
            labels = [node.get("label") or ""] + node["ids"]
            for label in labels:
                if LABEL.match(label) and label.startswith(kind + "-"):
                    yield label, node
                    break


def as_shown(html):
    """The HTML of a target without links, and with ids that occur nowhere else."""
    html = re.sub(r'<a class="headerlink".*?</a>', "", html)
    html = re.sub(r"</?a\b[^>]*>", "", html)
    html = re.sub(r'\b(id|aria-labelledby)="([^"]*)"', rename, html)
    return re.sub(r'(url\(|href=")#', r"\1#preview-", html).strip()


def rename(match):
    attribute, names = match.groups()
    return f'{attribute}="{" ".join("preview-" + name for name in names.split())}"'


def render(builder, node):
    node = node.deepcopy()
    for picture in list(node.findall(nodes.raw)):
        text = picture.astext()
        if "<aiayn-figure" in text or "<svg" not in text or len(text) > LARGEST:
            picture.parent.remove(picture)
    return as_shown(builder.render_partial(node)["fragment"])


def store(app, page_name, template, context, doctree):
    """Write a page's targets, and link the script on pages that refer to some."""
    if doctree is None or app.builder.format != "html":
        return
    folder = Path(app.outdir, "_static", "previews")
    folder.mkdir(parents=True, exist_ok=True)
    title = clean_astext(app.env.titles[page_name])
    number = ".".join(map(str, app.env.toc_secnumbers.get(page_name, {}).get("", ())))
    place = f"{number}. {title}" if number else title
    for label, node in targets(doctree):
        words = (
            json.dumps(label),
            json.dumps(render(app.builder, node)),
            json.dumps(place),
        )
        text = f"bookPreviews.add({', '.join(words)})\n"
        (folder / f"{label}.js").write_text(text, encoding="utf-8")
    if LINK.search(context.get("body", "")):
        app.add_js_file("previews.js", loading_method="defer")


def setup(app):
    app.connect("html-page-context", store)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
