"""What a notebook shows in JupyterLab and Colab is what its page shows."""

import html
import json
import re
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "book" / "_ext"))

import plain_notebooks
from plain_forms import Forms

CITED = re.compile(r'<a [^>]*href="[^"]*references\.html#[^"]*"[^>]*>(.+?)</a>')
TAG = re.compile(r"<[^>]*>")
NUMBERED = {  # on a page, and in a notebook; each gives (anchor, number)
    "equation": (
        r'<a href="#([\w-]+)" title="Link to this equation">\(([\d.]+)\)',
        r'<a id="((?:eq|res)-[\w-]+)"></a>\n\n'
        r"\$\$\n(?:(?!\$\$)[\s\S])*\\tag\{([\d.]+)\}",
    ),
    "exercise": (
        r'<div class="exercise[^>]* id="([\w-]+)">\s*'
        r'(?:<span[^>]*></span>\s*)?<p class="admonition-title">'
        r'<span class="caption-number">Exercise ([\d.]+)',
        r'<a id="([\w-]+)"></a>\n\n### Exercise ([\d.]+) ·',
    ),
    "figure": (
        r'<figure [^>]*id="(fig-[\w-]+)">(?:(?!<figure)[\s\S])*?'
        r'<span class="caption-number">Fig\. ([\d.]+)',
        r'<a id="([\w-]+)"></a>\*\*Figure ([\d.]+)\.\*\*',
    ),
}


def markdown(page):
    path = ROOT / page.replace(".html", ".ipynb")
    cells = json.loads(path.read_text("utf8"))["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


@pytest.mark.parametrize("kind", NUMBERED)
def test_numbers_are_those_of_the_page(site, chapters, kind):
    on_page, in_notebook = map(re.compile, NUMBERED[kind])
    total = 0
    for page in chapters:
        shown = on_page.findall((site / page).read_text("utf8"))
        assert in_notebook.findall(markdown(page)) == shown, page
        total += len(shown)
    assert total


def test_citations_are_those_of_the_page(site, chapters):
    works = {url for _, _, url in Forms(ROOT).works.values()}
    for page in chapters:
        cited = re.findall(r"\[([^\[\]]+)\]\((https?:[^()\s]+)\)", markdown(page))
        words = [words for words, url in cited if url in works]
        text = (site / page).read_text("utf8")
        shown = [html.unescape(TAG.sub("", w)) for w in CITED.findall(text)]
        assert sorted(shown) == sorted(words), page  # a page sorts within a bracket


def test_a_wrong_citation_is_a_warning(monkeypatch):
    """Warnings are errors in the build."""
    warnings = []
    log = SimpleNamespace(warning=lambda text, **where: warnings.append(text))
    monkeypatch.setattr(plain_notebooks, "LOG", log)
    names = SimpleNamespace(doc2path=lambda name, base: f"{name}.ipynb")
    app = SimpleNamespace(srcdir=ROOT, env=names)

    def read(year):
        text = f"See [[Vaswani et al., {year}](https://arxiv.org/abs/1706.03762)]."
        cell = {"cell_type": "markdown", "source": [text]}
        content = [json.dumps({"cells": [cell]})]
        plain_notebooks.read_as_myst(app, "a", content)
        return json.loads(content[0])["cells"][0]["source"]

    assert read(2017) == "See {cite:p}`vaswani2017`."
    assert warnings == []
    assert "2018" in read(2018)
    assert "[Vaswani et al., 2017]" in warnings[0]
