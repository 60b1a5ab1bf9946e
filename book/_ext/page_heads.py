"""What stands in a page's head for others, and where its notebook can be opened.

Descriptions for search engines and shared links stand in ``book/descriptions.yml``,
one a page, so that they can be read and compared in one place. A page without one takes
its first paragraph.
"""

import json
from pathlib import Path

import yaml
from docutils import nodes

FILE = "book/descriptions.yml"
LONGEST = 160  # search engines cut what is longer
BINDER = "https://mybinder.org/v2/gh"
CARD = "social-card.png"  # made by tools/social_card.py
CARD_TEXT = (
    "The title Attention, Line by Line, the equation of scaled dot-product attention, "
    "the PyTorch that computes and checks it, and a map of attention weights"
)
PAPER = {
    "@type": "ScholarlyArticle",
    "name": "Attention Is All You Need",
    "url": "https://arxiv.org/abs/1706.03762",
}
LICENSE = "https://creativecommons.org/licenses/by/4.0/"


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
    context["social_card"] = f"{app.config.html_baseurl}_static/{CARD}"
    context["card_text"] = CARD_TEXT
    context["json_ld"] = linked_data(app, pagename, context)
    source = app.env.doc2path(pagename) if pagename in app.env.all_docs else ""
    if str(source).endswith(".ipynb"):
        context |= launchers(app.config.html_theme_options, f"{pagename}.ipynb")


def launchers(options, notebook):
    """Where a notebook of the configured repository and branch can be opened."""
    repository = options["repository_url"].removeprefix("https://github.com/")
    branch, colab = options["repository_branch"], options["launch_buttons"]["colab_url"]
    return {
        "colab_url": f"{colab}/github/{repository}/blob/{branch}/{notebook}",
        "lab_url": f"{BINDER}/{repository}/{branch}?urlpath=lab/tree/{notebook}",
        "download_name": notebook,
    }


def linked_data(app, pagename, context):
    """The page in the words of schema.org; None for pages without a source."""
    config, home = app.config, app.config.root_doc
    if pagename not in app.env.all_docs:
        return None
    book = {"@type": "Book", "name": config.html_title, "url": config.html_baseurl}
    if pagename == home:
        page = book | {"about": PAPER, "license": LICENSE}
    else:
        title = app.env.titles[pagename].astext()
        page = {"@type": "Chapter", "name": title, "isPartOf": book}
        page["url"] = context["pageurl"]
    page |= {
        "description": context["page_description"],
        "inLanguage": config.language,
        "author": {"@type": "Organization", "name": config.author},
        "image": context["social_card"],
    }
    text = json.dumps({"@context": "https://schema.org", **page}, ensure_ascii=False)
    return text.replace("<", "\\u003c")


def setup(app):
    app.connect("builder-inited", read_descriptions)
    app.connect("html-page-context", add_head)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
