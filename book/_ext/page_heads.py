"""Each page's description for search engines and shared links, and its Colab link.

Descriptions stand in ``book/descriptions.yml``, one a page, so that they can be read
and compared in one place. A page without one takes its first paragraph.
"""

from pathlib import Path

import yaml
from docutils import nodes

FILE = "book/descriptions.yml"
LONGEST = 160  # search engines cut what is longer


def read_descriptions(app):
    app.page_descriptions = yaml.safe_load(Path(app.srcdir, FILE).read_text("utf8"))


def first_paragraph(doctree):
    """The first paragraph that says something, without formulas and citations."""
    for paragraph in doctree.findall(nodes.paragraph):
        words = paragraph.deepcopy()
        for node in list(words.findall()):
            if isinstance(node, nodes.math | nodes.citation_reference):
                node.parent.remove(node)
        text = " ".join(words.astext().split())
        if len(text) > 40:
            short = text[:LONGEST].rsplit(" ", 1)[0] + "…"
            return text if len(text) <= LONGEST else short
    return ""


def add_head(app, pagename, templatename, context, doctree):
    text = app.page_descriptions.get(pagename)
    if text is None and doctree is not None:
        text = first_paragraph(doctree)
    if text is None and pagename.startswith("_modules/"):
        name = pagename.removeprefix("_modules/").replace("/", ".")
        text = f"Source code of {name}."
    context["page_description"] = text or app.config.html_title
    source = app.env.doc2path(pagename) if pagename in app.env.all_docs else ""
    if str(source).endswith(".ipynb"):
        options = app.config.html_theme_options
        repository = options["repository_url"].removeprefix("https://github.com/")
        context["colab_url"] = (
            f"{options['launch_buttons']['colab_url']}/github/{repository}"
            f"/blob/{options['repository_branch']}/{pagename}.ipynb"
        )
        context["download_name"] = f"{pagename}.ipynb"


def setup(app):
    app.connect("builder-inited", read_descriptions)
    app.connect("html-page-context", add_head)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
