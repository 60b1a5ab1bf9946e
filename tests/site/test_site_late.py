"""Sections of long pages are laid out when they come near; readers notice nothing."""

import functools
import sys
from pathlib import Path

import pytest
from visits import lay_out

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book" / "_ext"))
import late_sections

# of every section: [is laid out, top, bottom]
SECTIONS = """all => all.map(section => {
    const box = section.getBoundingClientRect();
    const skipped = { contentVisibilityAuto: true };
    const laidOut = section.firstElementChild.checkVisibility(skipped);
    return [laidOut, box.top, box.bottom];
})"""
# The text at a height of 300 px, and how far from the top of the window it starts.
HERE = """() => {
    const element = document.elementFromPoint(innerWidth / 3, 300);
    const block = element.closest("p, pre, li, div.math, h2, h3") ?? element;
    return [block.textContent.slice(0, 60), block.getBoundingClientRect().top];
}"""
# Where an element is in the window, and whether the window is at the end of the page.
PLACE = """id => {
    const { scrollHeight } = document.documentElement;
    const top = document.getElementById(id).getBoundingClientRect().top;
    return [top, scrollY + innerHeight > scrollHeight - 2];
}"""


def soon(tab, script, argument, accept):
    """Whether what a script gives gets as it should be, and stays so."""
    for _ in range(50):
        if accept(tab.evaluate(script, argument)):
            tab.wait_for_timeout(200)
            return accept(tab.evaluate(script, argument))
        tab.wait_for_timeout(100)
    return False


def is_at(text, top, here):
    return here[0] == text and abs(here[1] - top) < 3


@pytest.fixture(scope="session")
def long_pages(site, pages):
    found = [p for p in pages if 'class="late"' in (site / p).read_text("utf8")]
    assert "book/api.html" in found
    assert len([p for p in found if p.startswith("notebooks/")]) >= 10
    return found


def test_sections_far_away_are_not_laid_out(tab, site, long_pages):
    for page in long_pages:
        tab.goto((site / page).as_uri())
        sections = tab.locator(".late").evaluate_all(SECTIONS)
        assert all(laid_out for laid_out, top, _ in sections if top < 900), page
        assert not any(laid_out for laid_out, top, _ in sections if top > 6000), page
        assert not sections[-1][0], page


@pytest.mark.parametrize(("width", "name"), [(390, "--phone"), (1280, "--wide")])
def test_a_section_reserves_about_its_height(tab, site, long_pages, width, name):
    tab.set_viewport_size({"width": width, "height": 850})
    for page in long_pages:
        tab.goto((site / page).as_uri())
        lay_out(tab)
        heights = tab.locator(".late").evaluate_all(
            """(all, name) => all.map(section => [
                section.id, section.getBoundingClientRect().height,
                parseFloat(section.style.getPropertyValue(name))])""",
            name,
        )
        for section, height, reserved in heights:
            assert 0.9 * height < reserved < 1.5 * height + 120, (page, section)
        ratio = sum(r for *_, r in heights) / sum(h for _, h, _ in heights)
        assert 1 < ratio < 1.4, page


def test_a_link_into_a_page_finds_its_place(tab, site, long_pages):
    for page in long_pages:
        tab.goto((site / page).as_uri())
        targets = tab.locator("article [id]:is(section, div.math, figure, dt)")
        ids = targets.evaluate_all("all => all.map(e => e.id)")
        for name in ids[len(ids) // 3 :: len(ids) // 3]:
            tab.goto("about:blank")
            tab.goto(f"{(site / page).as_uri()}#{name}")
            # what ends a page cannot come to the top
            found = soon(tab, PLACE, name, lambda p: 0 <= p[0] < (160, 720)[p[1]])
            assert found, (page, name)


@pytest.mark.parametrize("width", [390, 1280])
def test_who_comes_back_finds_the_place(tab, site, long_pages, width):
    tab.set_viewport_size({"width": width, "height": 850})
    for page in [p for p in long_pages if "/0" in p][:4]:
        tab.goto((site / page).as_uri())
        for _ in range(20):
            tab.mouse.wheel(0, 600)
            tab.wait_for_timeout(30)
        tab.wait_for_function("history.state?.place")
        tab.wait_for_timeout(300)
        text, top = tab.evaluate(HERE)
        for leave in ("reload", "go away"):
            if leave == "reload":
                tab.reload()
            else:
                tab.goto((site / "index.html").as_uri())
                tab.go_back()
            there = functools.partial(is_at, text, top)
            assert soon(tab, HERE, None, there), (page, leave)


def test_a_link_within_a_page_and_back(tab, site, long_pages):
    for page in [p for p in long_pages if "/1" in p]:
        tab.goto(f"{(site / page).as_uri()}#exercises")
        assert soon(tab, PLACE, "exercises", lambda p: 0 <= p[0] < 160), page
        for _ in range(4):
            tab.mouse.wheel(0, -600)
            tab.wait_for_timeout(30)
        tab.wait_for_timeout(300)
        text, top = tab.evaluate(HERE)
        tab.locator(".page-toc a.nav-link").nth(2).click()
        name = tab.evaluate("decodeURIComponent(location.hash.slice(1))")
        assert name != "exercises"
        assert soon(tab, PLACE, name, lambda p: 0 <= p[0] < 160), page
        tab.go_back()
        assert soon(tab, HERE, None, functools.partial(is_at, text, top)), page


def test_a_place_is_not_taken_from_who_moves_on(tab, site, long_pages):
    """Who scrolls before everything is there stays where they are."""
    held = []
    tab.route("**/KaTeX_*.woff2", lambda route: held.append(route))
    tab.goto(
        f"{(site / long_pages[-1]).as_uri()}#exercises", wait_until="domcontentloaded"
    )
    tab.wait_for_function("document.body.style.display === ''")  # after 3 s at most
    tab.mouse.wheel(0, -40_000)
    tab.wait_for_function("scrollY === 0")
    for route in held:
        route.continue_()
    tab.wait_for_load_state("load")
    tab.wait_for_timeout(300)
    assert tab.evaluate("scrollY") == 0


def test_paper_has_every_section(tab, site, long_pages):
    tab.goto((site / long_pages[-1]).as_uri())
    tab.emulate_media(media="print")
    sections = tab.locator(".late").evaluate_all(SECTIONS)
    assert all(laid_out for laid_out, *_ in sections)


def test_a_short_page_is_as_it_was():
    body = '<section id="a"><section id="b"><p>Short.</p></section></section>'
    assert late_sections.mark(body) == body


def test_a_long_page_has_its_sections_marked():
    paragraphs = "<p>Ten chars.</p>" * 10_000
    body = f'<section id="a"><section id="b"><h2>B</h2>{paragraphs}</section></section>'
    marked = late_sections.mark(body)
    phone, wide = (
        round(1.08 * (heading + 10_000 * (paragraph + 10 * character)) + 60)
        for heading, paragraph, character in ((23, 35, 0.62), (27, 37, 0.35))
    )
    style = f"--phone: {phone}px; --wide: {wide}px"
    assert f'<section id="b" class="late" style="{style}"><h2>' in marked
    assert marked.replace(f' class="late" style="{style}"', "") == body


def test_a_formula_counts_as_it_is_drawn():
    tree = late_sections.html.fragment_fromstring(
        '<p>so <span class="katex"><span class="katex-mathml"><math><mi>x</mi></math>'
        '</span><span class="katex-html"><span>x</span></span></span></p>'
    )
    assert late_sections.characters(tree) == 3
