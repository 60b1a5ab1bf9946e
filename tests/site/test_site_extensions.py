"""The book's own Sphinx extensions, each on the smallest input that shows it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXTENSIONS = Path(__file__).resolve().parents[2] / "book" / "_ext"


@pytest.fixture
def extensions(monkeypatch):
    monkeypatch.syspath_prepend(str(EXTENSIONS))


@pytest.fixture
def build(tmp_path):
    """Build one page with Sphinx, warnings as errors; gives (exit status, output)."""

    def build(text):
        (tmp_path / "conf.py").write_text(
            f"import sys; sys.path.insert(0, {str(EXTENSIONS)!r})\n"
            "extensions = ['myst_parser', 'formulas', 'live_examples']\n"
            "myst_enable_extensions = ['dollarmath']\n"
            "html_math_renderer = 'katex'\n"
            "html_theme = 'basic'\n"
        )
        (tmp_path / "index.md").write_text(text)
        command = ["-b", "html", "-q", "-W", "--keep-going", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", *command, str(tmp_path / "out")],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr

    build.page = tmp_path / "out" / "index.html"
    return build


def test_an_equation_becomes_html_with_mathml_under_its_own_label(build):
    status, output = build("# T\n\n$$\nx^2\n$$ (eq-square)\n\nSee [](#eq-square).\n")
    assert status == 0, output
    page = build.page.read_text("utf8")
    assert '<div class="math numbered" id="eq-square"' in page
    assert "<math" in page
    assert 'class="katex-html"' in page
    assert 'href="#eq-square"' in page
    assert "#equation-" not in page


@pytest.mark.parametrize("tex", [r"\fracc{1}{2}", r"x \label{here}", "x^"])
def test_tex_that_cannot_be_set_fails_the_build_with_its_place(build, tex):
    status, output = build(f"# T\n\nA line.\n\nThen ${tex}$.\n")
    assert status != 0
    assert "index.md:5" in output
    assert "KaTeX parse error" in output


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("#| export\nx = 1", "x = 1"),
        ("#| default_exp name", ""),
        ("x = f(\n    1,\n)  # fmt: skip", "x = f(\n    1,\n)"),
        ("import a  # noqa: F401\nb = a  # why", "import a\nb = a  # why"),
        ("print('# noqa?')", "print('# noqa?')"),
    ],
)
def test_marks_for_tools_are_hidden(extensions, code, shown):
    import tool_marks

    assert tool_marks.MARK.sub("", code).strip("\n") == shown


def test_a_plot_is_inlined_in_the_colours_of_the_page(extensions):
    import notebook_figures

    from aiayn.book.style import COLORS

    svg = (
        '<?xml version="1.0"?><svg height="90pt" viewBox="0 0 120 90" width="120pt">'
        '<style type="text/css">*{stroke-linejoin: round}</style>'
        f'<path id="a" style="stroke: {COLORS["key"]}"/><use href="#a"/>'
        '<g clip-path="url(#a)" style="fill: #000000"/><text x="1">t</text>'
        "<text><tspan>d</tspan></text></svg>"  # a formula in a label
    )
    page = notebook_figures.inline(svg, 'a "tall" wave', prefix="p1-")
    assert 'aria-label="a &quot;tall&quot; wave"' in page
    assert 'width="160" height="120"' in page
    assert f"stroke: var(--figure-key, {COLORS['key']})" in page
    assert "fill: currentColor" in page
    assert page.count("<text") == page.count('<text fill="currentColor"') == 2
    assert not re.search(r'(id="|href="#|url\(#)a\b', page)
    assert "<style" not in page


def test_the_style_sheet_knows_every_colour_of_the_palette():
    from aiayn.book.style import COLORS

    sheet = (EXTENSIONS.parent / "_theme" / "book.css").read_text("utf8")
    for role in COLORS:
        assert len(re.findall(rf"--figure-{role}: #", sheet)) == 2, role  # light, dark


EXAMPLE = "# T\n\n```{figure-example}\n"


def test_an_example_shows_its_code_and_what_it_gives(build):
    code = """from aiayn.book import figures
slider = figures.Slider("n", "n", (1, 2), start=2)
figures.explorer("Twice", slider, figures.Words(lambda n: f"It is {2 * n}."))
"""
    status, output = build(f"{EXAMPLE}{code}```\n")
    assert status == 0, output
    page = build.page.read_text("utf8")
    assert "highlight-python" in page
    assert ">It is 4.</output>" in page
    status, output = build(f"{EXAMPLE}:no-code:\n{code}```\n")
    assert status == 0, output
    page = build.page.read_text("utf8")
    assert "highlight-python" not in page
    assert ">It is 4.</output>" in page


PLOT = """import matplotlib.pyplot as plt
fig, ax = plt.subplots()
fig
"""


def test_a_plot_of_an_example_is_drawn_in_the_page(build):
    status, output = build(f"{EXAMPLE}:alt: Empty axes.\n:caption: A < b.\n{PLOT}```\n")
    assert status == 0, output
    page = build.page.read_text("utf8")
    assert '<svg class="plot" role="img" aria-label="Empty axes."' in page
    assert '<span class="caption-text">A &lt; b.</span>' in page


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("x = 1", "the last line of an example gives its figure"),
        (PLOT, "a plot without alternative text"),
        (f":alt: Empty axes.\n{PLOT}", "a plot without a caption"),
    ],
)
def test_an_example_that_fails_fails_the_build_with_its_place(build, code, said):
    status, output = build(f"{EXAMPLE}{code}\n```\n")
    assert status != 0
    assert "index.md:3" in output
    assert said in output
