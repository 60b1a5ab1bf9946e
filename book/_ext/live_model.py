"""The live model: style and script on the page that has one, its weights beside them.

The page asks for the weights itself, when the figure comes near. An output that was
made outside the book's tools carries all of these; they are taken out.
"""

from pathlib import Path

from docutils import nodes
from interactive_figures import RUNTIME
from sphinx.transforms.post_transforms import SphinxPostTransform

from aiayn.book.live import asset, weights_file, weights_script

FIGURE = "<aiayn-live"
ASSETS = ("live.css", "live.js")


class StripRuntime(SphinxPostTransform):
    default_priority = 900
    formats = ("html",)

    def run(self, **kwargs):
        for raw in list(self.document.findall(nodes.raw)):
            if FIGURE in raw.astext() and RUNTIME.search(raw.astext()):
                text = RUNTIME.sub("", raw.astext())
                raw.replace_self(nodes.raw(text, text, format="html"))


def copy_assets(app):
    if app.builder.format != "html":
        return
    target = Path(app.outdir, "_static")
    target.mkdir(parents=True, exist_ok=True)
    for name in ASSETS:
        (target / name).write_text(asset(name), encoding="utf-8")
    (target / weights_file()).write_text(weights_script(), encoding="utf-8")


def link_assets(app, page_name, template, context, document):
    if FIGURE not in context.get("body", ""):
        return
    app.add_css_file("live.css")
    app.add_js_file("live.js", loading_method="defer")
    name = weights_file()
    path = context["pathto"](f"_static/{name}", 1)
    context["body"] = context["body"].replace(
        f'data-weights="{name}"', f'data-weights="{path}"'
    )


def setup(app):
    app.add_post_transform(StripRuntime)
    app.connect("builder-inited", copy_assets)
    app.connect("html-page-context", link_assets)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
