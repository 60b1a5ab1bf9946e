"""Folded sections and solutions, on a small page with the book's style and script."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"

PAGE = """\
# Page

Core.

$$
a = 1
$$ (eq-core)

## Going deeper: A proof

Inside, with [the core](#eq-core).

$$
b = 2
$$ (eq-inside)

### Its second half

Half.

## Plain

### Going deeper: Small

Small print.

### After it

Open text, and [the inside](#eq-inside).

## Exercises

:::{exercise} By hand: $x$ (easy)
:label: ex-09-one

Find $x$.
:::

:::{solution-start} ex-09-one
:class: dropdown
:::

It is

$$
x = 3
$$ (eq-solved)

:::{solution-end}
:::

:::{exercise} Open
:label: ex-09-two

Think.
:::

:::{solution} ex-09-two
Thought.
:::

See [](#ex-09-one) and [this one](#ex-09-two).
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The page, built with warnings as errors."""
    source = tmp_path_factory.mktemp("folds")
    (source / "conf.py").write_text(
        f"import sys; sys.path.insert(0, {str(BOOK / '_ext')!r})\n"
        "extensions = ['myst_parser', 'formulas', 'equation_links', 'sphinx_exercise',"
        " 'folds', 'exercises']\n"
        "myst_enable_extensions = ['colon_fence', 'dollarmath']\n"
        "html_math_renderer = 'katex'\n"
        "html_theme = 'basic'\n"
        "numfig = math_numfig = True\n"
        f"html_static_path = [{str(BOOK / '_theme')!r}]\n"
        "html_css_files = ['katex/katex.min.css', 'book.css']\n"
        "html_js_files = ['book.js']\n",
        "utf8",
    )
    (source / "index.md").write_text(PAGE, "utf8")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W"]
    done = subprocess.run(
        [*command, "--keep-going", str(source), str(source / "out")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return source / "out" / "index.html"


@pytest.fixture
def opened(small, tab):
    """Opens the page at an address within it."""

    def open_at(fragment=""):
        tab.goto(small.as_uri() + fragment)
        return tab

    return open_at


def folds(tab):
    """Which folds are open, in the order of the page."""
    return tab.locator("details.fold").evaluate_all("all => all.map(f => f.open)")


def test_headings_stay_and_what_follows_is_folded(small):
    text = small.read_text("utf8")
    heading = text.index("<h2>Going deeper: A proof")
    fold = text.index('<details class="fold">', heading)
    assert text.index("Inside, with") > fold
    assert text.index('<section id="its-second-half">') < text.index("</details>", fold)
    small = text.index('<details class="fold">', text.index("<h3>Going deeper: Small"))
    assert text.index("</details>", small) < text.index("<h3>After it")
    assert 'href="#going-deeper-a-proof"' in text  # the page's contents


def test_numbers_run_through_folds(small):
    numbers = re.findall(r'class="eqno">.*?\((\d+)\)', small.read_text("utf8"))
    assert numbers == ["1", "2", "3"]


def test_ids_are_unique_and_solutions_have_permanent_ones(small):
    ids = re.findall(r' id="([^"]+)"', small.read_text("utf8"))
    assert len(ids) == len(set(ids))
    assert {"ex-09-one", "sol-09-one", "ex-09-two", "sol-09-two"} <= set(ids)


def test_exercises_are_numbered_and_named(opened):
    titles = opened().locator("div.exercise > .admonition-title").all_inner_texts()
    assert [" ".join(t.split())[:19] for t in titles] == [
        "Exercise 1 By hand:",
        "Exercise 2 Open",
    ]
    assert "(easy)" in titles[0]
    solutions = opened().locator("details.solution > summary").all_inner_texts()
    assert solutions == ["Solution to Exercise 1", "Solution to Exercise 2"]
    assert "See Exercise 1 and this one." in opened().locator("body").inner_text()


def test_everything_is_closed_at_first_and_opens_by_keyboard(opened):
    tab = opened()
    assert folds(tab) == [False] * 4
    tab.locator("details.fold > summary").first.focus()
    tab.keyboard.press("Enter")
    assert folds(tab) == [True, False, False, False]
    tab.locator("details.solution > summary").first.focus()
    tab.keyboard.press("Space")
    assert folds(tab) == [True, False, True, False]


def test_a_tap_on_the_heading_opens_and_closes(opened):
    tab = opened()
    heading = tab.get_by_role("heading", name="Going deeper: A proof")
    heading.click()
    assert folds(tab) == [True, False, False, False]
    heading.click()
    assert folds(tab) == [False] * 4
    tab.get_by_role("heading", name="Plain").click()  # has no fold of its own
    assert folds(tab) == [False] * 4


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("#eq-inside", 0),
        ("#its-second-half", 0),
        ("#going-deeper-a-proof", 0),  # the heading above a fold
        ("#going-deeper-small", 1),
        ("#eq-solved", 2),
        ("#sol-09-one", 2),
    ],
)
@pytest.mark.parametrize("within", [True, False])
def test_an_address_in_a_fold_opens_it(opened, fragment, expected, within):
    tab = opened("" if within else fragment)
    if within:
        tab.evaluate("fragment => { location.hash = fragment }", fragment)
    opens = "number => document.querySelectorAll('details.fold')[number].open"
    tab.wait_for_function(opens, arg=expected)
    assert folds(tab).count(True) == 1
    tab.wait_for_function(
        "f => { const y = document.querySelector(f).getBoundingClientRect().top;"
        " return y >= -1 && y < innerHeight }",
        arg=fragment,
    )


@pytest.mark.parametrize("fragment", ["#eq-core", "#plain", "#exercises", "#ex-09-one"])
def test_other_addresses_open_nothing(opened, fragment):
    tab = opened(fragment)
    tab.wait_for_timeout(50)
    assert folds(tab) == [False] * 4


def test_paper_shows_what_is_folded(opened):
    tab = opened()
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert folds(tab) == [True] * 4
    assert tab.get_by_text("Thought.").is_visible()
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert folds(tab) == [False] * 4


def test_folds_need_no_script(browser, small):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(small.as_uri())
    assert not tab.get_by_text("Thought.").is_visible()
    tab.locator("#sol-09-two > summary").click()
    assert tab.get_by_text("Thought.").is_visible()
    context.close()


def test_every_exercise_of_the_book_has_its_solution(site, chapters):
    for chapter in chapters:
        text = (site / chapter).read_text("utf8")
        exercises = re.findall(r'<div class="exercise[^>]* id="ex-([^"]+)"', text)
        solutions = re.findall(r'<details class="solution[^>]* id="sol-([^"]+)"', text)
        assert sorted(exercises) == sorted(solutions), chapter
        number = re.search(r"notebooks/(\d\d)_", chapter)[1]
        assert all(name.startswith(f"{number}-") for name in exercises), chapter
