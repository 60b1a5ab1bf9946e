"""Interactive figures: their style and script once, on the pages that have one.

An output that was made outside the book's tools carries both; they are taken out.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from aiayn.book.figures import asset

FIGURE = "<aiayn-figure"
RUNTIME = re.compile(r"<(style|script) data-aiayn>.*?</\1>\s*", re.S)
ASSETS = ("figures.css", "figures.js")


class StripRuntime(SphinxPostTransform):
    default_priority = 900
    formats = ("html",)

    def run(self, **kwargs):
        for raw in list(self.document.findall(nodes.raw)):
            if RUNTIME.search(raw.astext()):
                text = RUNTIME.sub("", raw.astext())
                raw.replace_self(nodes.raw(text, text, format="html"))


def put(app, texts):
    """Write what pages load into ``_static``: text by name."""
    if app.builder.format != "html":
        return
    target = Path(app.outdir, "_static")
    target.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")


def copy_assets(app):
    put(app, {name: asset(name) for name in ASSETS})  # notebooks inline them elsewhere


def link_assets(app, page_name, template, context, document):
    if FIGURE in context.get("body", ""):
        app.add_css_file("figures.css")
        app.add_js_file("figures.js", loading_method="defer")


def setup(app):
    app.add_post_transform(StripRuntime)
    app.connect("builder-inited", copy_assets)
    app.connect("html-page-context", link_assets)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
