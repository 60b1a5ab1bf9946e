"""The author's table of words and lines, on a chapter small enough to count by eye."""

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from rhythm import COLUMNS, row, words

CHAPTER = new_notebook(
    cells=[
        new_markdown_cell("# Two words\n\nOne two three $x + y$ four."),
        new_code_cell("hidden = 1", metadata={"tags": ["hide-input"]}),
        new_code_cell("#| export\nx = 1\n\ny = 2\nz = 3"),
        new_markdown_cell("## Next\n\nfive six\n\n$$\na = b\n$$ (eq-a)\n\n(anchor)="),
        new_code_cell("x"),
        new_markdown_cell("## Going deeper: more\n\nin the fold"),
        new_code_cell("not = counted"),
        new_markdown_cell(
            "### Still inside\n\nfolded too\n\n## Out\n\nout again, here"
        ),
        new_markdown_cell("### Going deeper: small\n\nsmall\n\n### Core\n\none"),
        new_markdown_cell(
            "## Exercises\n\n:::{exercise} By hand\n:label: ex-a\nWhy is it so?\n:::"
        ),
    ]
)


def test_a_row():
    figures = dict(zip(COLUMNS[:6], row(CHAPTER), strict=False))
    assert figures["core"] == 4 + 2 + 3 + 1
    assert figures["folds"] == 3 + 2 + 1
    assert figures["exercises"] == 4
    assert figures["lines"] == 3 + 1
    assert figures["words/line"] == 2.5
    under, longest_text, cell, longest_cell = row(CHAPTER)[5:]
    assert (under, longest_text) == (2.5, 4)  # of 4, 2, 3 and 1
    assert (cell, longest_cell) == (2, 3)


def test_words():
    assert words(["It's [a link](#term-x) to self-attention, 3.5 times."]) == 7
    assert (
        words(["| a | table |", ":::{note}", "one", ":::", "$a$ and $$b", "c$$"]) == 2
    )


def test_a_chapter_without_prose_or_code():
    assert row(new_notebook()) == [0] * 9
