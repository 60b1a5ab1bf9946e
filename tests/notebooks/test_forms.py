"""Notebooks read well in JupyterLab and Colab, and the pages get the same MyST back."""

import json
import re
import shutil
from copy import deepcopy
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from check_notebooks import problems as all_problems
from forms import Forms, in_myst, in_plain, problems, raw_forms, write_forms
from notebooks import chapters, read, write
from run import run
from text import take_in, text_path

ROOT = Path(__file__).resolve().parents[2]
BIBLIOGRAPHY = """\
@article{one2001, author = {{\\'E}l{\\`e}ve, Anne}, title = {A}, year = {2001},
  doi = {10.1/x}}
@article{two2002, author = {van Dam, Bo and Cho, Ada}, title = {B}, year = {2002},
  url = {https://a.org/b}}
@article{three2003, author = {A, B and C, D and E, F}, title = {C}, year = {2003},
  note = {arXiv:2003.12345}}
@article{four1964, author = {Old, Very}, title = {D}, year = {1964}}
"""
PLAN = """\
- part: One
  chapters:
    - {file: notebooks/02_first, title: The first chapter, gist: a}
    - {file: notebooks/03_second, title: The second chapter, gist: b}
    - {file: notebooks/04_third, title: The third chapter, gist: c}
"""
SITE = "https://someone.github.io/somebook/"
FIGURE = {"mystnb": {"figure": {"name": "fig-a", "caption": "See\n[two](#eq-a)."}}}

# MyST -> what the notebook holds, in a chapter 5 with one equation of its own
INLINE = {
    "as {cite:p}`one2001`.": "as [[Élève, 2001](https://doi.org/10.1/x)].",
    "{cite:p}`two2002,three2003`": "[[van Dam and Cho, 2002](https://a.org/b), "
    "[A et al., 2003](https://arxiv.org/abs/2003.12345)]",
    "(In {cite:t}`two2002`)": "(In van Dam and Cho [[2002](https://a.org/b)])",
    "{cite:p}`four1964`": f"[[Old, 1964]({SITE}book/references.html)]",
    "see {chapter}`2`": "see [2 The first chapter](02_first.ipynb)",
    "({chapter}`4`)": "(4 The third chapter (not written yet))",
    "[the *sum* $a[0]$](#eq-a)": "[the *sum* $a[0]$ (5.1)](#eq-a)",
    "[](#eq-a)": "[(5.1)](#eq-a)",
    "[twice](#eq-double)": "[twice (2.1)](02_first.ipynb#eq-double)",
    "[](#res-grows)": "[(2.2)](02_first.ipynb#res-grows)",
    "[](#ex-05-a)": "[Exercise 5.1](#ex-05-a)",
    "[this](#ex-05-a)": "[this](#ex-05-a)",
    "[the figure](#fig-a)": "[the figure](#fig-a)",
    "[](#fig-a)": "[Figure 5.1](#fig-a)",
    "[mask](#term-mask)": f"[mask]({SITE}book/glossary.html#term-mask)",
    "the [list](../book/glossary.md)": f"the [list]({SITE}book/glossary.html)",
    "[(a) a set](#sec-05-a)": "[(a) a set](#sec-05-a)",
    "[plain](03_second.ipynb)": "[plain](03_second.ipynb)",
}
BLOCKS = {
    "$$\nx\n$$\n\nand\n\n$$\na\n\\\\\nb\n$$ (eq-a)\n\nso": "$$\nx\n$$\n\nand\n\n"
    '<a id="eq-a"></a>\n\n$$\na\n\\\\\nb\n\\tag{5.1}\n$$\n\nso',
    "(sec-05-a)=\n(sec-05-b)=\n## A": '<a id="sec-05-a"></a>\n\n'
    '<a id="sec-05-b"></a>\n\n## A',
    ":::{admonition} Words\nOne.\n\nTwo.\n:::\n\nAfter": "> **Words**\n>\n> One.\n>\n"
    "> Two.\n\nAfter",
}
# One exercise within a cell, one over several, one more behind an old anchor.
CELLS = [
    "## Exercises\n\n:::{exercise} By hand: $x$\n:label: ex-05-a\nWhat\n\nis it?\n:::"
    "\n\n:::{solution-start} ex-05-a\n:class: dropdown\n:::\n\nThis.\n\n"
    ":::{solution-end}\n:::\n\n:::{exercise} In code\n:label: ex-05-b\nHow?\n:::",
    None,
    ":::{solution-start} ex-05-b\n:class: dropdown\n:::",
    None,
    ":::{solution-end}\n:::\n\n(ex-05-old)=\n:::{exercise} Open\n:label: ex-05-c\n"
    "Why?\n:::\n\n:::{solution-start} ex-05-c\n:class: dropdown\n:::",
    None,
    "So.\n\n:::{solution-end}\n:::",
]
PLAIN_CELLS = [
    '## Exercises\n\n<a id="ex-05-a"></a>\n\n### Exercise 5.1 · By hand: $x$\n\nWhat'
    "\n\nis it?\n\n#### Solution to Exercise 5.1\n\nThis.\n\n"
    '<a id="ex-05-b"></a>\n\n### Exercise 5.2 · In code\n\nHow?',
    None,
    "#### Solution to Exercise 5.2",
    None,
    '<a id="ex-05-old"></a>\n\n<a id="ex-05-c"></a>\n\n### Exercise 5.3 · Open\n\n'
    "Why?\n\n#### Solution to Exercise 5.3",
    None,
    "So.",
]


def notebook(*texts):
    """Markdown cells, and a code cell for each None."""
    cells = [new_code_cell("1") if t is None else new_markdown_cell(t) for t in texts]
    return new_notebook(cells=cells)


def sources(book) -> list[str]:
    return [cell.source for cell in book.cells]


@pytest.fixture(scope="session")
def library(finished, tmp_path_factory) -> Path:
    """The small project with a bibliography, a plan and a glossary."""
    root = shutil.copytree(finished, tmp_path_factory.mktemp("forms") / "project")
    (root / "book/references.bib").write_text(BIBLIOGRAPHY, encoding="utf-8")
    (root / "book/chapters.yml").write_text(PLAN, encoding="utf-8")
    glossary = "# Glossary\n\n(term-mask)=\n**Mask**\n: What hides.\n"
    (root / "book/glossary.md").write_text(glossary, encoding="utf-8")
    return root


@pytest.fixture
def small(library, tmp_path) -> Path:
    """A copy of it to plant a fault in."""
    return Path(shutil.copytree(library, tmp_path / "small"))


@pytest.mark.parametrize("myst", INLINE)
def test_words_and_links(library, myst):
    book = notebook(f"{myst}\n\n$$\na\n$$ (eq-a)", None, *CELLS)
    book.cells[1].metadata = deepcopy(FIGURE)
    book.cells[2].source = "(sec-05-a)=\n" + book.cells[2].source
    plain = in_plain(book, library, "05_fifth")
    assert sources(plain)[0].split("\n\n<a")[0] == INLINE[myst]
    assert sources(in_myst(plain, library)) == sources(book)
    assert sources(in_myst(book, library)) == sources(book)


@pytest.mark.parametrize("myst", BLOCKS)
def test_blocks(library, myst):
    plain = in_plain(notebook(myst), library, "05_fifth")
    assert sources(plain) == [BLOCKS[myst]]
    assert sources(in_myst(plain, library)) == [myst]
    assert sources(in_plain(plain, library, "05_fifth")) == [BLOCKS[myst]]


def test_exercises(library):
    plain = in_plain(notebook(*CELLS), library, "05_fifth")
    assert sources(plain) == [t if t is not None else "1" for t in PLAIN_CELLS]
    assert sources(in_myst(plain, library)) == sources(notebook(*CELLS))


def test_an_exercise_put_first_moves_the_numbers(library):
    plain = in_plain(notebook(*CELLS), library, "05_fifth")
    first = ":::{exercise} New\n:label: ex-05-new\nWho?\n:::\n\n[](#ex-05-a)"
    plain.cells.insert(0, new_markdown_cell(first))
    moved = sources(in_plain(plain, library, "05_fifth"))
    assert "### Exercise 5.1 · New" in moved[0]
    assert "[Exercise 5.2](#ex-05-a)" in moved[0]
    assert "### Exercise 5.2 · By hand" in moved[1]
    assert "#### Solution to Exercise 5.2\n\nThis." in moved[1]


def test_a_caption_stands_where_the_next_text_begins(library):
    book = notebook("$$\na\n$$ (eq-a)", None, None, "## Next")
    book.cells[1].metadata = deepcopy(FIGURE)
    plain = in_plain(book, library, "05_fifth")
    caption = '<a id="fig-a"></a>**Figure 5.1.** See [two (5.1)](#eq-a).'
    assert sources(plain)[3] == f"{caption}\n\n## Next"
    assert sources(in_myst(plain, library)) == sources(book)
    plain.cells[1].metadata["mystnb"]["figure"]["caption"] = "New."
    assert "**Figure 5.1.** New.\n\n## Next" in sources(
        in_plain(plain, library, "05_fifth")
    )[3]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("[[Élève, 2002](https://doi.org/10.1/x)]", "Élève, 2001"),
        ("[[Eleve, 2001](https://doi.org/10.1/x)]", "Élève, 2001"),
        ("[[Élève, 2001](https://doi.org/10.1/y)]", "no work of this address"),
        ("Cho [[2002](https://a.org/b)]", "van Dam and Cho, 2002"),
    ],
)
def test_a_citation_says_what_the_bibliography_says(small, wrong, message):
    path = small / "notebooks/02_first.ipynb"
    book = read(path)
    book.cells[0].source += f"\n\nAs {wrong}."
    write(book, path)
    assert any(message in found for found in all_problems(small))


@pytest.mark.parametrize(
    "raw",
    [
        "{eq}`eq-a`",
        "{cite:p}`one2001` is fine, {prf:ref}`x` is not",
        ":::{note}\nx\n:::",
        "```{math}\nx\n```",
        "  (indented)=\n",
        "$$\nx\n$$ (other)",
        "[](#nowhere)",
    ],
)
def test_a_raw_form_is_found(small, raw):
    path = small / "notebooks/02_first.ipynb"
    book = read(path)
    book.cells[0].source += f"\n\n{raw}"
    write(book, path)
    write_forms(small)
    assert any("shows as typed" in found for found in problems(small)), raw


def test_code_may_look_like_a_form():
    assert raw_forms("`{eq}` and `:::` and ``$$ (a)``\n\n```\n(a)=\n:::\n```") == []


@pytest.mark.parametrize(
    "link",
    [
        "#nowhere",
        "02_first.ipynb#nowhere",
        "05_fifth.ipynb",
        f"{SITE}book/absent.html",
        f"{SITE}book/glossary.html#term-absent",
        "../src/aiayn/tokens.py",
    ],
)
def test_a_dead_link_is_found(small, link):
    path = small / "notebooks/03_second.ipynb"
    book = read(path)
    book.cells[0].source += f"\n\nGo [there]({link})."
    write(book, path)
    assert any("leads nowhere" in found for found in problems(small))


def test_a_new_equation_moves_the_numbers_of_other_chapters(small):
    path = small / "notebooks/03_second.ipynb"
    book = read(path)
    book.cells[0].source += "\n\nIt [doubles](#eq-double)."
    write(book, path)
    assert write_forms(small) == ["03_second"]
    assert "[doubles (2.1)](02_first.ipynb#eq-double)" in read(path).cells[0].source
    first = small / "notebooks/02_first.ipynb"
    book = read(first)
    book.cells[0].source += "\n\n$$\n1\n$$ (eq-new)"
    write(book, first)
    assert any("expected" in found for found in problems(small))
    assert write_forms(small) == ["02_first", "03_second"]
    assert "[doubles (2.2)](02_first.ipynb#eq-double)" in read(path).cells[0].source
    assert list(problems(small)) == []
    assert write_forms(small) == []


def test_authors_write_myst(small, edit):
    """In the text form, which a run takes in; a second run changes no byte."""
    text = text_path(small, "02_first")
    edit(text, "There is more.", "See {cite:p}`two2002` and [it](#eq-double).")
    assert take_in(small, "02_first") == "taken in"
    source = read(small / "notebooks/02_first.ipynb").cells[0].source
    assert "[[van Dam and Cho, 2002](https://a.org/b)] and [it (2.1)](#eq" in source
    assert "{cite:p}`two2002` and [it](#eq-double)" in text.read_text("utf8")
    assert take_in(small, "02_first") is None
    files = {p: p.read_bytes() for p in [text, *small.glob("notebooks/*")]}
    assert run(small, "2")
    assert {p: p.read_bytes() for p in files} == files


# ---- the book itself ---------------------------------------------------------------
@pytest.fixture(scope="module", params=chapters(ROOT), ids=lambda path: path.stem)
def chapter(request):
    return request.param


def test_nothing_shows_as_typed(chapter):
    cells = [c for c in read(chapter).cells if c.cell_type == "markdown"]
    found = [(cell.id, form) for cell in cells for form in raw_forms(cell.source)]
    assert found == []


def test_the_way_there_and_back_changes_nothing(chapter):
    book = read(chapter)
    myst = in_myst(book, ROOT)
    assert sources(in_myst(myst, ROOT)) == sources(myst)
    assert sources(in_plain(myst, ROOT, chapter.stem)) == sources(book)


def test_every_citation_is_read(chapter):
    """Each link to a work of the bibliography becomes a role again."""
    forms = Forms(ROOT)
    texts = [c.source for c in read(chapter).cells if c.cell_type == "markdown"]
    works = {url for _, _, url in forms.works.values()}
    links = re.findall(r"\]\((https?:[^()\s]+)\)", "\n".join(texts))
    cited = [link for link in links if link in works]
    myst = "\n".join(sources(in_myst(read(chapter), ROOT)))
    roles = re.findall(r"\{cite:[pt]\}`([\w,-]+)`", myst)
    assert len(cited) == sum(len(keys.split(",")) for keys in roles)


def test_no_form_is_stale_and_no_link_dead():
    assert list(problems(ROOT)) == []


def test_the_moved_repository_takes_the_links_along(small):
    from repository import rewrite

    path = small / "notebooks/02_first.ipynb"
    book = read(path)
    book.cells[0].source += "\n\nA [mask](#term-mask)."
    write(book, path)
    write_forms(small)
    rewrite(small, "other", "thing")
    assert "https://other.github.io/thing/book/glossary.html" in path.read_text("utf8")
    assert list(problems(small)) == []
    assert "[mask](#term-mask)" in json.dumps(sources(in_myst(read(path), small)))
