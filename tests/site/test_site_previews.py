"""What a reference points to, shown beside it: by mouse, by keyboard, not by touch."""

import re

import pytest
from visits import AXE, lay_out

TERM, EQUATION = "#term-jacobian", "#eq-attention"
LINK = re.compile(
    r'<a class="reference internal" href="[^"]*#((?:eq|res|fig|term)-[^"]+)"'
)
INSIDE = """e => {
  const box = e.getBoundingClientRect();
  return box.left >= 0 && box.top >= 0
    && box.right <= document.documentElement.clientWidth && box.bottom <= innerHeight;
}"""


@pytest.fixture(scope="module")
def chapter(chapters):
    return next(c for c in chapters if "05_" in c)


def link_to(tab, fragment):
    return tab.locator(f'article a.reference.internal[href$="{fragment}"]').first


def opened(tab):
    tab.locator(".preview").wait_for(state="visible")
    return tab.locator(".preview")


@pytest.fixture
def reading(tab, site, chapter):
    """A chapter that refers to other pages, on a tab whose frames are still."""
    tab.goto((site / chapter).as_uri())
    return tab


def test_every_reference_has_its_preview(site, pages):
    missing = set()
    for page in pages:
        for label in LINK.findall((site / page).read_text("utf8")):
            if not (site / f"_static/previews/{label}.js").exists():
                missing.add((page, label))
    assert not missing


def test_pages_without_references_load_no_script(site, pages):
    for page in pages:
        text = (site / page).read_text("utf8")
        if not LINK.search(text) and "references.html#" not in text:
            assert "previews.js" not in text, page
        elif LINK.search(text):
            assert text.count("previews.js") == 1, page


def test_the_script_is_small(site):
    assert (site / "_static/previews.js").stat().st_size < 6_000


def test_a_stored_preview_repeats_no_address(site, pages):
    """Ids would occur twice on the page that shows it, and links would lead astray."""
    own = set()
    for page in pages:
        own |= set(re.findall(r'\bid="([^"]+)"', (site / page).read_text("utf8")))
    for path in (site / "_static/previews").glob("*.js"):
        text = path.read_text("utf8").replace(r"\"", '"')
        assert not re.search(r"<a\b", text), path.name
        assert not set(re.findall(r'\bid="([^"]+)"', text)) & own, path.name


def test_a_mouse_brings_an_equation_of_another_page(reading):
    link = link_to(reading, EQUATION)
    link.hover()
    box = opened(reading)
    assert box.get_attribute("role") == "tooltip"
    assert link.get_attribute("aria-describedby") == box.get_attribute("id")
    assert box.locator(".katex-html").is_visible()
    assert "(2.5)" in box.inner_text()
    assert "2. Scaled dot-product attention" in box.inner_text()
    assert box.evaluate(INSIDE)


def test_it_stays_under_the_mouse_and_goes_with_it(reading):
    link_to(reading, TERM).hover()
    box = opened(reading)
    box.hover()
    reading.wait_for_timeout(500)
    assert box.is_visible()
    reading.locator("h1").hover()
    box.wait_for(state="hidden")
    assert link_to(reading, TERM).get_attribute("aria-describedby") is None


def test_escape_dismisses_it_without_moving_the_mouse(reading):
    link_to(reading, TERM).hover()
    box = opened(reading)
    reading.keyboard.press("Escape")
    assert box.is_hidden()
    reading.wait_for_timeout(500)
    assert box.is_hidden()


def test_the_keyboard_brings_it_and_takes_it_away(reading):
    link = link_to(reading, TERM)
    link.scroll_into_view_if_needed()
    link.evaluate("e => e.focus({focusVisible: true})")
    box = opened(reading)
    assert "derivatives" in box.inner_text()
    assert link.get_attribute("aria-describedby") == "preview"
    link_to(reading, EQUATION).dispatch_event("pointerover", {"pointerType": "mouse"})
    link_to(reading, EQUATION).dispatch_event("pointerout", {"pointerType": "mouse"})
    reading.wait_for_timeout(500)  # a mouse that passes takes nothing away
    assert box.is_visible()
    reading.keyboard.press("Escape")
    assert box.is_hidden()
    assert link.evaluate("e => e === document.activeElement")
    reading.keyboard.press("Tab")
    reading.keyboard.press("Shift+Tab")
    opened(reading)
    link.evaluate("e => e.blur()")
    box.wait_for(state="hidden")


def test_a_cited_work_is_named_once(reading):
    link = reading.locator('article a[href*="references.html#"]').first
    title = link.get_attribute("title")
    link.hover()
    assert opened(reading).inner_text() == title
    assert link.get_attribute("title") is None  # the browser's own box would cover it


def test_a_figure_is_shown_with_its_picture_unless_it_is_in_view(tab, site, chapter):
    tab.set_viewport_size({"width": 1280, "height": 700})
    tab.goto((site / chapter).as_uri())
    link = link_to(tab, "#fig-gradients-by-depth")
    link.hover()
    box = opened(tab)
    assert box.locator("svg").is_visible()
    assert box.locator("figcaption").is_visible()
    assert box.evaluate(INSIDE)
    tab.mouse.move(0, 0)
    box.wait_for(state="hidden")
    tab.set_viewport_size({"width": 1280, "height": 2600})
    tab.locator("#fig-gradients-by-depth").scroll_into_view_if_needed()
    link.hover()
    tab.wait_for_timeout(700)
    assert box.is_hidden()


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_it_moves_nothing_and_stays_in_the_window(tab, site, chapters, width):
    tab.set_viewport_size({"width": width, "height": 600})
    tab.goto((site / chapters[10]).as_uri())
    lay_out(tab)
    size = (
        "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    )
    link = tab.locator('article a.reference.internal[href*="#eq-"]:visible').last
    link.scroll_into_view_if_needed()
    before, place = tab.evaluate(size), link.bounding_box()
    link.hover()
    box = opened(tab)
    assert tab.evaluate(size) == before
    assert link.bounding_box() == place
    assert box.evaluate(INSIDE)
    assert box.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_a_tap_follows_the_link_at_once(browser, site, chapter):
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True
    )
    page = context.new_page()
    page.goto((site / chapter).as_uri())
    link_to(page, TERM).tap()
    page.wait_for_url("**/glossary.html#term-jacobian")
    context.close()


def test_nothing_of_it_is_printed(reading):
    link_to(reading, TERM).hover()
    box = opened(reading)
    reading.emulate_media(media="print")
    assert box.is_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_accessible_while_shown(reading, theme):
    reading.evaluate("t => document.documentElement.dataset.theme = t", theme)
    for fragment in (TERM, EQUATION):
        link_to(reading, fragment).hover()
        box = opened(reading)
        reading.wait_for_timeout(300)  # another one may be on its way out
        reading.evaluate(AXE)
        violations = reading.evaluate(
            """async () => {
              const { violations } = await axe.run(".preview", { preload: false });
              return violations.map((violation) => violation.id);
            }"""
        )
        assert violations == []
        assert box.is_visible()
        reading.keyboard.press("Escape")


def test_it_appears_at_once_when_motion_is_unwanted(reading):
    reading.emulate_media(reduced_motion="reduce")
    link_to(reading, TERM).hover()
    animation = "e => getComputedStyle(e).animationName"
    assert opened(reading).evaluate(animation) == "none"
