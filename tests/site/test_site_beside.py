"""An equation and the code that computes it stand together, as far as there is room."""

import re

import pytest
from visits import lay_out

PAIR = "section > .beside"
BOX = "e => e.getBoundingClientRect().toJSON()"


@pytest.fixture(scope="module")
def chapter(chapters):
    return next(c for c in chapters if "11_" in c)


@pytest.fixture
def pair(tab, site, chapter):
    """Opens the chapter in a window and finds the online softmax with its code."""

    def find(width, height=900):
        tab.set_viewport_size({"width": width, "height": height})
        tab.goto((site / chapter).as_uri())
        return tab.locator(PAIR, has=tab.locator("#eq-online-softmax"))

    return find


def boxes(pair):
    equation = pair.locator("div.math").first.evaluate(BOX)
    return equation, pair.locator(".cell").evaluate(BOX)


def test_the_code_of_a_pair_names_its_equation(site, chapters):
    found = 0
    for chapter in chapters:
        for text in (
            (site / chapter).read_text("utf8").split('<div class="beside">')[1:]
        ):
            words, code = text.split('<div class="beside-code">')[:2]
            labels = re.findall(r'<div class="math numbered" id="([^"]+)"', words)
            code = re.sub(r"<[^>]+>", "", code.split("</pre>")[0])
            assert set(labels) & set(re.findall(r":eq:`([^`]+)`", code)), chapter
            assert '<div class="cell' not in words, chapter
            found += 1
    assert found >= 40


def test_side_by_side_where_there_is_room(pair, tab):
    equation, code = boxes(pair(1680))
    assert equation["right"] < code["left"]
    assert abs(equation["top"] - code["top"]) < 20
    contents = tab.locator(".bd-sidebar-secondary").evaluate(BOX)
    assert code["right"] < contents["left"]
    prose = tab.locator("article section > p").first.evaluate(BOX)
    assert equation["left"] == prose["left"]
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1680, 1920, 2560])
def test_no_line_of_code_is_cut_for_it(pair, tab, width):
    pair(width)
    wide = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert tab.locator(f"{PAIR} .cell_input pre").evaluate_all(wide) == 0


def test_no_formula_is_cut_for_it(tab, site, chapters):
    """One that is too wide stands above its code, as on smaller screens."""
    look = """all => all.map(pair => {
        const [words, code] = pair.children;
        const formula = [...words.querySelectorAll(".katex-display")];
        const cut = formula.some(e => e.scrollWidth > e.clientWidth + 1);
        const [left, right] = [formula[0], code].map(e => e.getBoundingClientRect());
        return {beside: left.right < right.left, cut};
    })"""
    found = {1920: [], 1680: []}
    for chapter in chapters:
        tab.set_viewport_size({"width": 1920, "height": 900})
        tab.goto((site / chapter).as_uri())
        lay_out(tab)
        for width, pairs in found.items():
            tab.set_viewport_size({"width": width, "height": 900})
            for _ in range(50):  # fonts that come late make formulas wider
                tab.wait_for_timeout(100)
                now = tab.locator(PAIR).evaluate_all(look)
                cut = [pair for pair in now if pair["beside"] and pair["cut"]]
                if not cut:
                    break
            assert not cut, (chapter, width)
            pairs += now
    beside = {w: sum(p["beside"] for p in pairs) for w, pairs in found.items()}
    assert beside[1920] > 0.7 * len(found[1920])
    assert 0 < beside[1680] < beside[1920]


@pytest.mark.parametrize("width", [1280, 1680])
def test_the_equation_stays_while_its_code_goes_by(pair, tab, width):
    found = pair(width, 800)
    _, code = boxes(found)
    tab.evaluate("y => scrollTo(0, y)", code["top"] + 0.6 * code["height"] - 300)
    equation, code = boxes(found)
    assert code["top"] < 0
    header = tab.locator(".bd-header-article").evaluate(BOX)
    assert header["bottom"] - 2 <= equation["top"] < 150
    tab.evaluate("scrollBy(0, 1500)")  # and goes when the code has gone
    equation, _ = boxes(found)
    assert equation["bottom"] < 0


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 500)])
def test_one_below_the_other_where_there_is_none(pair, tab, width, height):
    found = pair(width, height)
    equation, code = boxes(found)
    assert equation["bottom"] < code["top"]
    position = "e => getComputedStyle(e).position"
    assert found.locator("div.math").first.evaluate(position) != "sticky"


def test_on_paper_they_stand_in_their_order(pair, tab):
    found = pair(1920)
    tab.emulate_media(media="print")
    equation, code = boxes(found)
    assert equation["bottom"] < code["top"]
