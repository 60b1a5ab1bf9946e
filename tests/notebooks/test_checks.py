"""Each thing that must not stand in a notebook is found there."""

import pytest

from check_notebooks import problems, unrounded

FIRST = "notebooks/02_first.ipynb"


def output(text: str) -> list[dict]:
    return [{"output_type": "stream", "name": "stdout", "text": text}]


def html(markup: str) -> list[dict]:
    data = {"text/html": markup, "text/plain": "a table"}
    return [{"output_type": "display_data", "data": data, "metadata": {}}]


def image(alt: str, caption: str) -> dict:
    data = {"image/svg+xml": "<svg/>", "text/plain": "<Figure>"}
    mystnb = {"image": {"alt": alt}, "figure": {"caption": caption, "name": "fig-a"}}
    return {
        "outputs": [{"output_type": "display_data", "data": data, "metadata": {}}],
        "metadata": {"mystnb": mystnb},
    }


ERROR = {"output_type": "error", "ename": "KeyError", "evalue": "x", "traceback": []}
LAST, TITLE, SETUP, MODULE = -1, 0, 1, 2  # cells of the first chapter
FAULTS = {
    "error": (LAST, {"outputs": [ERROR]}, "an error: KeyError"),
    "stderr": (
        LAST,
        {"outputs": [{"output_type": "stream", "name": "stderr", "text": "warning"}]},
        "stderr: 'warning'",
    ),
    "address": (LAST, {"outputs": output("<A at 0x7f00deadbeef>")}, "an address"),
    "path": (LAST, {"outputs": output("in /srv/data/x.py")}, "an absolute path"),
    "windows path": (LAST, {"outputs": output("C:\\data")}, "an absolute path"),
    "float": (LAST, {"outputs": output("0.333333")}, "an unrounded number"),
    "float in a table": (LAST, {"outputs": html("<td>2.718281</td>")}, "unrounded"),
    "time": (LAST, {"outputs": output("took 3.2 s")}, "a time"),
    "clock": (LAST, {"outputs": output("at 12:30:05")}, "a time"),
    "size": (LAST, {"outputs": output("x" * 100_001)}, "an output of 100,"),
    "unrun": (LAST, {"execution_count": None}, "execution counts are not 1..4"),
    "out of order": (LAST, {"execution_count": 9}, "execution counts are not 1..4"),
    "empty cell": (LAST, {"source": "", "outputs": []}, "an empty code cell"),
    "id": (LAST, {"id": "abc"}, "cell ids are not 02-001"),
    "skip tag": (LAST, {"metadata": {"tags": ["nbval-skip"]}}, "tag nbval-skip"),
    "exception": (
        LAST,
        {"metadata": {"tags": ["raises-exception"]}},
        "tag raises-exception",
    ),
    "skip comment": (LAST, {"source": "# NBVAL_SKIP\n1"}, "weakens the comparison"),
    "metadata": (LAST, {"metadata": {"collapsed": True}}, "metadata collapsed"),
    "other module": (LAST, {"source": "#| export other\n1"}, "its own module only"),
    "no alt": (LAST, image("short", "A caption."), "alternative text has 5"),
    "no caption": (LAST, image("x" * 20, ""), "an image without a caption"),
    "two titles": (TITLE, {"source": "# One\n\n# Two"}, "2 headings of the first"),
    "no title": (TITLE, {"source": "Some text."}, "0 headings of the first level"),
    "skipped level": (
        TITLE,
        {"source": "# A\n\n### B"},
        "level 3 follows one of",
    ),
    "set-up": (SETUP, {"source": "import os"}, "the first code cell is not"),
    "set-up shown": (SETUP, {"metadata": {}}, "the first code cell is not"),
    "module": (MODULE, {"source": "#| default_exp first\n1"}, "second code cell"),
}


def test_the_project_is_in_order(finished):
    assert problems(finished) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(project, edit_notebook, fault):
    cell, change, message = FAULTS[fault]
    edit_notebook(project / FIRST, lambda n: n["cells"][cell].update(change))
    found = problems(project)
    assert len(found) in (1, 2)  # no cell ids when there are no counts, …
    assert any(message in problem for problem in found), found


@pytest.mark.parametrize(
    "text",
    [
        "0.00215 and 0.1234",
        "60611.2, 1e-07, 100.00 %, and/or, x/y/z",
        "torch 2.13.0, tensor([0.1000, 2.5000])",
        "a 12 s-shaped curve".replace("12 s", "S"),
        "0x1f has three characters",
    ],
)
def test_what_may_stand_in_an_output(project, edit_notebook, text):
    change = {"outputs": output(text)}
    edit_notebook(project / FIRST, lambda n: n["cells"][LAST].update(change))
    assert problems(project) == []


def test_attributes_of_html_are_not_read(project, edit_notebook):
    markup = '<svg><path d="M0.123456 1"/></svg><td style="width: 33.33333%">1</td>'
    change = {"outputs": html(markup)}
    edit_notebook(project / FIRST, lambda n: n["cells"][LAST].update(change))
    assert problems(project) == []


def test_an_allowed_tag_permits_one_cell(project, edit_notebook):
    (project / "tools").mkdir()
    allowed = project / "tools" / "allowed_tags.txt"
    allowed.write_text("02_first raises-exception  # shows the message\n")
    assert problems(project) == [
        "tools/allowed_tags.txt: no cell needs `02_first raises-exception`"
    ]
    change = {"metadata": {"tags": ["raises-exception"]}, "outputs": [ERROR]}
    edit_notebook(project / FIRST, lambda n: n["cells"][LAST].update(change))
    assert problems(project) == []
    edit_notebook(
        project / FIRST,
        lambda n: n["cells"][-2].update({"metadata": {"tags": ["raises-exception"]}}),
    )
    found = problems(project)
    assert [p.split(": ", 1)[1][:20] for p in found] == [
        "tag raises-exception",
        "an error: KeyError: ",
    ]


def test_the_table_of_contents(project, edit):
    edit(project / "_toc.yml", "notebooks/03_second", "notebooks/04_third")
    assert problems(project) == [
        "_toc.yml: notebooks/03_second is not listed",
        "_toc.yml: notebooks/04_third does not exist",
    ]


def test_another_kernel(project, edit_notebook):
    edit_notebook(
        project / FIRST, lambda n: n["metadata"]["kernelspec"].update(name="other")
    )
    assert len(problems(project)) == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.333333", "0.333333"),
        ("-12.34567", "12.34567"),
        ("1.23456e-05", "1.23456"),
        ("0.0001234", None),
        ("3.1416", None),
        ("1234567.5", None),
    ],
)
def test_unrounded(text, found):
    assert unrounded(text) == found
