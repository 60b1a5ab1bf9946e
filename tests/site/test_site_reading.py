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


@pytest.fixture
def phone(browser):
    """A page on a phone: a finger, and no mouse."""
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    yield context.new_page()
    context.close()


def test_lines_have_60_to_75_characters(tab, site, chapters):
    tab.goto((site / chapters[1]).as_uri())
    found = tab.locator("article section > p").evaluate_all(
        """all => all.filter(p => !p.querySelector(".math")).map(p => {
          const lines = new Set([...p.getClientRects()].map(r => r.top));
          const height = parseFloat(getComputedStyle(p).lineHeight);
          return [p.textContent.length, Math.round(p.offsetHeight / height)];
        })"""
    )
    full = [length / lines for length, lines in found if lines >= 4]
    assert full
    assert 60 <= max(full) <= 75  # the last line of a paragraph is short


def test_punctuation_stays_with_its_formula(tab, site, chapters):
    for width in (1280, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto((site / chapters[4]).as_uri())
        torn = tab.locator("article span.math").evaluate_all(
            r"""all => all.map(formula => {
              const next = formula.nextSibling, mark = /^[.,;:!?)]/;
              if (next?.nodeType !== 3 || !mark.test(next.data)) return null;
              const range = document.createRange();
              range.setStart(next, 0);
              range.setEnd(next, 1);
              const bases = formula.querySelectorAll(".base");
              const last = bases[bases.length - 1].getBoundingClientRect();
              return [...range.getClientRects()].at(-1).top > last.bottom;
            }).filter(answer => answer !== null)"""
        )
        assert len(torn) > 20
        assert not any(torn)


def test_a_target_is_not_hidden_by_the_bar_above(tab, site, chapters):
    for fragment in ("#eq-layer-norm", "#layer-normalisation", "#res-direct-path"):
        text = (site / chapters[4]).read_text("utf8")
        if f'id="{fragment[1:]}"' not in text:
            continue
        tab.goto((site / chapters[4]).as_uri() + fragment)
        top = tab.locator(fragment).evaluate("e => e.getBoundingClientRect().top")
        bar = tab.locator(".bd-header-article").evaluate(
            "e => e.getBoundingClientRect().bottom"
        )
        assert bar - 1 <= top < 300, fragment


def test_the_contents_of_a_page_close_when_a_section_is_chosen(phone, site, chapters):
    phone.goto((site / chapters[1]).as_uri())
    phone.tap(".secondary-toggle")
    phone.wait_for_selector("#pst-secondary-sidebar-modal[open]")
    line = phone.locator("#pst-secondary-sidebar-modal .page-toc a").nth(3)
    fragment = line.get_attribute("href")
    line.tap()
    closed = "!document.querySelector('#pst-secondary-sidebar-modal').open"
    phone.wait_for_function(closed, timeout=5000)
    assert phone.url.endswith(fragment)
    top = phone.locator(fragment).evaluate("e => e.getBoundingClientRect().top")
    assert 0 <= top < 844


def test_a_finger_finds_what_it_aims_at(phone, site, chapters):
    """At least 24 px, except in running text (WCAG 2.2, 2.5.8)."""
    for page in ("book/preface.html", "book/glossary.html", chapters[1]):
        phone.goto((site / page).as_uri())
        small = phone.locator(
            "main :is(a, button, summary), .bd-header-article button"
        ).evaluate_all(
            """all => all.filter(e => {
              const box = e.getBoundingClientRect(), style = getComputedStyle(e);
              const size = Math.min(box.width, box.height);
              const free = style.display === "inline" || e.closest("svg, aiayn-figure");
              return size > 0 && size < 23.5 && style.visibility !== "hidden" && !free;
            }).map(e => e.outerHTML.slice(0, 120))"""
        )
        assert small == [], page


COPIED = """() => document.addEventListener("copy", () => {
  window.copied = document.activeElement.value ?? String(getSelection());
})"""


def test_a_copied_cell_is_the_code_alone_and_is_announced(tab, site, chapters):
    tab.goto((site / chapters[1]).as_uri())
    tab.evaluate(COPIED)
    cell = tab.locator(".cell_input", has_text="def attention_weights").first
    cell.hover()
    button = cell.locator("button.copybtn")
    button.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_function("window.copied")
    copied = tab.evaluate("window.copied")
    assert copied.strip() == cell.locator("pre").inner_text().strip()
    assert copied.startswith("def ")
    assert "#|" not in copied
    tab.wait_for_selector("main [role=status]:has-text('Copied')", state="attached")


def test_code_can_be_copied_and_outputs_have_no_button(tab, site, chapters):
    tab.goto((site / chapters[1]).as_uri())
    tab.wait_for_selector("button.copybtn", state="attached")
    cells = tab.locator(".cell_input").count()
    assert tab.locator(".cell_input button.copybtn").count() == cells
    assert tab.locator(".cell_output button.copybtn").count() == 0


def test_a_phone_shows_the_copy_button_beside_the_code(phone, site, chapters):
    phone.goto((site / chapters[1]).as_uri())
    phone.wait_for_selector("button.copybtn", state="attached")
    shown = phone.locator(".cell_input:visible button.copybtn").first
    assert float(shown.evaluate("e => getComputedStyle(e).opacity")) > 0.5
    # the end of the longest line can be scrolled out from under it
    room = phone.locator(".cell_input:visible pre").first.evaluate(
        "e => parseFloat(getComputedStyle(e).paddingRight)"
    )
    assert room >= shown.bounding_box()["width"]


def test_the_letters_of_the_glossary_lead_to_its_terms(tab, site):
    tab.goto((site / "book/glossary.html").as_uri())
    links = tab.locator("p.letters a")
    names = links.all_inner_texts()
    assert names == sorted(set(names))
    assert len(names) > 15
    for at in (0, len(names) // 2):
        target = links.nth(at).get_attribute("href")
        term = tab.locator(f"{target} dt").inner_text()
        assert term[0].upper() == names[at]
