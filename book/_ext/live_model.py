"""The live model: style and script on the page that has one, its weights beside them.

The page asks for the weights itself, when the figure comes near. What an output made
outside the book's tools carries of these, interactive_figures.py takes out.
"""

from interactive_figures import put

from aiayn.book.live import asset, weights_file, weights_script

FIGURE = "<aiayn-live"
ASSETS = ("live.css", "live.js")


def copy_assets(app):
    texts = {name: asset(name) for name in ASSETS}
    put(app, texts | {weights_file(): weights_script()})


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
    app.connect("builder-inited", copy_assets)
    app.connect("html-page-context", link_assets)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
