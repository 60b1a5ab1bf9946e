"""What a reader does with the site: change the colours, search, print, scroll."""

import pytest

PLOTTED = "article svg.plot text"


@pytest.fixture
def chapter(chapters):
    return chapters[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_paint_follows_the_reader_s_system(tab, site, scheme):
    tab.emulate_media(color_scheme=scheme)
    # the theme's own script runs after the first paint: the page must not need it
    tab.route("**/book.all.js*", lambda route: route.fulfill(body=""))
    tab.goto((site / "index.html").as_uri())
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme


def test_the_switch_recolours_text_and_plots(tab, site, chapters):
    name = next(c for c in chapters if 'class="plot"' in (site / c).read_text("utf8"))
    tab.emulate_media(color_scheme="light")
    tab.goto((site / name).as_uri())
    colour = "e => getComputedStyle(e).fill"
    before = tab.locator(PLOTTED).first.evaluate(colour)
    for _ in range(3):  # the switch goes round light, dark and the system's choice
        tab.locator(".theme-switch-button").first.click()
        if tab.evaluate("document.documentElement.dataset.theme") == "dark":
            break
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.locator(PLOTTED).first.evaluate(colour) != before


def test_every_label_of_a_plot_is_light_in_the_dark(tab, site, chapters):
    tab.emulate_media(color_scheme="dark")
    plotted = [c for c in chapters if 'class="plot"' in (site / c).read_text("utf8")]
    assert plotted
    for name in plotted:
        tab.goto((site / name).as_uri())
        fills = tab.locator(f"{PLOTTED}, {PLOTTED} tspan").evaluate_all(
            "all => all.map(e => getComputedStyle(e).fill)"
        )
        assert fills
        for fill in set(fills):
            red, green, blue = (int(n) for n in fill[4:-1].split(","))
            assert min(red, green, blue) > 100, (name, fill)


def test_search_finds_a_word_from_a_file(tab, site):
    tab.goto((site / "book/conventions.html").as_uri())
    tab.keyboard.press("Control+k")
    tab.wait_for_selector("#pst-search-dialog[open]")
    tab.keyboard.type("attention")
    tab.keyboard.press("Enter")
    # hits are added one by one; the summary names their number when all are there
    tab.wait_for_selector("#search-results .search-summary:has-text('finished')")
    links = tab.locator("#search-results ul.search li a").evaluate_all(
        "links => links.map(a => new URL(a.href).pathname)"
    )
    assert links
    assert [path for path in links if not (site / path).exists()] == []
    assert any(path.endswith("/index.html") for path in links)


def test_a_wide_formula_can_be_reached_and_scrolled_by_keyboard(tab, site, chapter):
    tab.set_viewport_size({"width": 320, "height": 700})
    tab.goto((site / chapter).as_uri(), wait_until="load")
    wide = tab.locator(".katex-display[tabindex='0']:visible").first
    wide.focus()
    assert wide.evaluate("e => e.scrollLeft") == 0
    tab.keyboard.press("ArrowRight")
    tab.wait_for_function("document.activeElement.scrollLeft > 0")


def test_paper_shows_the_chapter_alone(tab, site, chapter):
    tab.goto((site / chapter).as_uri())
    tab.emulate_media(media="print")
    for hidden in (".bd-sidebar-primary", ".bd-header-article", ".prev-next-footer"):
        assert tab.locator(hidden).first.is_hidden(), hidden
    assert tab.locator("article h1").is_visible()


def test_a_chapter_reads_without_scripts(browser, site, chapter):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / chapter).as_uri())
    assert page.locator("article h1").is_visible()
    if page.locator("article .katex").count():
        assert page.locator("article .katex-html:visible").count() > 0
    context.close()
