"""Interactive figures in a browser: the numbers, the keyboard, other hosts, no script.

Every figure of every page is walked through its states; a new one needs no new test.
The figures of tests/figure_examples.py are walked too, on a page of their own.
"""

import math
import os
import re
import sys
from pathlib import Path

import figure_walk
import pytest
import torch
from visits import Visitor

TESTS = Path(__file__).resolve().parents[1]
SITE = Path(os.environ.get("AIAYN_SITE", TESTS.parent / "_build" / "html")).resolve()
EXAMPLES = "examples"
WITH_STATES = "aiayn-figure:not(:has([data-field]))"  # a calculator stores none
DARK = "document.documentElement.dataset.theme = 'dark'"


def pytest_generate_tests(metafunc):
    if "figures_page" in metafunc.fixturenames:
        pages = [
            path.relative_to(SITE).as_posix()
            for path in sorted(SITE.rglob("*.html"))
            if "<aiayn-figure" in path.read_text("utf8")
        ]
        metafunc.parametrize("figures_page", [EXAMPLES, *pages])


@pytest.fixture(scope="session")
def examples(tmp_path_factory):
    """A folder with a page of the examples, as a reader's own notebook shows them."""
    sys.path.insert(0, str(TESTS))
    from figure_examples import EXAMPLES

    before = os.environ.pop("AIAYN_FIGURES", None)
    outputs = [
        make()._repr_mimebundle_()["text/html"] for _, make in sorted(EXAMPLES.items())
    ]
    if before is not None:
        os.environ["AIAYN_FIGURES"] = before
    folder = tmp_path_factory.mktemp("figures")
    (folder / "examples.html").write_text(
        '<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Figures</title>'
        "<style>html[data-theme=dark] { background: #15181c; color: #dedbd5; }</style>"
        f"<main><h1>Figures</h1>{''.join(outputs)}</main></html>",
        encoding="utf-8",
    )
    return folder


@pytest.fixture
def address(figures_page, site, examples):
    if figures_page == EXAMPLES:
        return (examples / "examples.html").as_uri()
    return (site / figures_page).as_uri()


@pytest.fixture
def tab(browser):
    """A tab that must stay silent and can reach files only."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    messages = []
    context.route(
        re.compile("^(?!file:|data:|about:)"),
        lambda route: (messages.append(route.request.url), route.abort()),
    )
    page = context.new_page()
    page.on(
        "console", lambda m: m.type in ("error", "warning") and messages.append(m.text)
    )
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    context.close()
    assert messages == []


def figures_of(tab):
    """Every figure of the page, with folds opened so that keys can reach them."""
    tab.evaluate(
        "for (const fold of document.querySelectorAll('details:has(aiayn-figure)'))"
        "  fold.open = true"
    )
    return tab.locator(WITH_STATES).all()


# ---- on every page -----------------------------------------------------------------
def test_the_first_state_is_there_without_script(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    for figure in page.locator(WITH_STATES).all():
        data = figure_walk.stored(figure)
        start = figure.evaluate(figure_walk.STATE)
        figure_walk.check(data, start, figure.evaluate(figure_walk.READ))
        assert figure.locator(".controls").evaluate("e => e.disabled")
    context.close()


def test_every_state_shows_its_numbers_by_keyboard(tab, address):
    tab.goto(address)
    for figure in figures_of(tab):
        data, seen, words = figure_walk.stored(figure), set(), set()
        assert not figure.locator(".controls").evaluate("e => e.disabled")
        for state, shown in figure_walk.walk(figure, data):
            figure_walk.check(data, state, shown)
            seen.add(state)
            words |= {panel["words"] for panel in shown if panel["words"]}
        sizes = [len(texts) for texts in data["texts"]]
        for control, size in enumerate(sizes):
            assert len({state[control] for state in seen}) >= min(size, 8)
        if figure.locator("output").count():
            assert len(words) > 1, "the words do not follow the controls"
            for output in figure.locator("output").all():
                assert output.get_attribute("aria-live") == "polite"


def test_a_slider_says_its_value(tab, address):
    tab.goto(address)
    for figure in figures_of(tab):
        data = figure_walk.stored(figure)
        controls = figure.locator("[data-control]").all()
        for control, texts in zip(controls, data["texts"], strict=True):
            if control.get_attribute("type") != "range":
                continue
            control.focus()
            tab.keyboard.press("Home")
            assert control.get_attribute("aria-valuetext") == texts[0]
            tab.keyboard.press("End")
            assert control.get_attribute("aria-valuetext") == texts[-1]
            assert control.locator("xpath=../b").text_content() == texts[-1]


def test_the_arrow_keys_walk_over_a_grid_and_say_each_cell(tab, address):
    tab.goto(address)
    for figure in figures_of(tab):
        for grid in figure.locator(".panel.grid").all():
            rows = grid.locator("tbody tr")
            entry = grid.locator("td[tabindex='0']")
            assert entry.count() == 1, "Tab enters a grid at one cell"
            entry.focus()
            tab.keyboard.press("Home")
            said = set()
            for _ in range(rows.count()):
                tab.keyboard.press("End")
                said.add(grid.locator(".cell").text_content())
                tab.keyboard.press("ArrowDown")
            assert all(said)
            assert len(said) == rows.count()
            assert grid.locator("td[tabindex='0']").count() == 1
            assert grid.locator("th.on").count() == 2
            assert tab.evaluate("scrollX") == 0


def test_the_arrow_keys_step_over_holes_and_leave_the_browser_its_own(tab, examples):
    figure = opened(tab, examples, "A grid with holes")
    grid = figure.locator(".panel.grid").first
    assert grid.locator("tbody tr").nth(1).locator("td.none").count() == 1
    at = """() => {
      const td = document.activeElement;
      return [td.parentElement.rowIndex - 1, td.cellIndex - 1];
    }"""
    grid.locator("td[tabindex='0']").focus()
    assert tab.evaluate(at) == [0, 0]
    for keys, place in {
        "ArrowRight": [0, 1],
        "ArrowDown": [2, 1],  # there is no cell at (1, 1)
        "ArrowLeft": [2, 0],
        "ArrowUp": [1, 0],
        "ArrowRight ArrowLeft ArrowRight": [1, 2],
        "ArrowRight ArrowUp": [1, 3],  # only a hole above
        "ArrowDown ArrowDown ArrowRight": [2, 3],
        "Home": [2, 0],
        "End": [2, 3],
        "ArrowLeft ArrowUp ArrowUp Home End": [0, 2],  # the last one is a hole
    }.items():
        for key in keys.split():
            tab.keyboard.press(key)
        assert tab.evaluate(at) == place, keys
    taken = tab.evaluate(
        """() => ["altKey", "ctrlKey", "metaKey", "none"].map(modifier => {
          const options = { key: "ArrowLeft", bubbles: true, cancelable: true };
          const event = new KeyboardEvent("keydown", { ...options, [modifier]: true });
          let heard = false;
          const hear = () => (heard = true);
          addEventListener("keydown", hear);
          document.activeElement.dispatchEvent(event);
          removeEventListener("keydown", hear);
          return [event.defaultPrevented, heard];
        })"""
    )
    assert taken == [[False, True]] * 3 + [[True, False]]
    assert tab.evaluate(at) == [0, 1]


def test_the_dark_theme_recolours_without_a_reload(tab, address):
    tab.emulate_media(color_scheme="light")
    tab.goto(address)
    tab.evaluate("document.documentElement.dataset.theme = 'light'")
    colours = """figure => [...figure.querySelectorAll(
        '.label, .line, .area, .axis, td[style], td.yes, th, b')].map(e => {
          const style = getComputedStyle(e);
          return [style.color, style.fill, style.stroke, style.backgroundColor].join();
        })"""
    for figure in figures_of(tab):
        before = figure.evaluate(colours)
        tab.evaluate(DARK)
        after = figure.evaluate(colours)
        tab.evaluate("document.documentElement.dataset.theme = 'light'")
        assert len(before) == len(after) > 0
        assert [a for a, b in zip(before, after, strict=True) if a == b] == []


def test_nothing_moves_and_nothing_is_wide_on_a_phone(tab, address):
    tab.emulate_media(reduced_motion="reduce")
    for width in (320, 390):
        tab.set_viewport_size({"width": width, "height": 800})
        tab.goto(address)
        for figure in figures_of(tab):
            folds = figure.locator("details").all()
            for fold in folds:
                fold.evaluate("fold => fold.open = true")
            assert figure.evaluate("e => e.getBoundingClientRect().right") <= width
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    animated = "document.getAnimations().length"
    assert tab.evaluate(animated) == 0


@pytest.mark.parametrize("width", [320, 390])
def test_a_finger_hits_every_control_and_cell(tab, address, width):
    """WCAG 2.2, target size: 24 px; the label of a switch or a button is part of it."""
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(address)
    targets = (
        "[type=range], [type=number], .switch, .choice label, select, button, "
        ".cells td:not(.none)"
    )
    small = """(figure, targets) => [...figure.querySelectorAll(targets)].map(e => {
        const { width, height } = e.getBoundingClientRect();
        return [width, height, e.outerHTML.slice(0, 90)];
      }).filter(([width, height]) => height && (width < 24 || height < 24))"""
    for figure in tab.locator("aiayn-figure").all():
        figures_of(tab)
        assert figure.evaluate(small, targets) == []


def test_words_stand_beside_the_control_that_changes_them(tab, address):
    """A reader of a phone sees a slider and its sentence at once."""
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.goto(address)
    if "examples" in address:
        return  # they try the other order too
    for figure in tab.locator("aiayn-figure:has(output)").all():
        top = figure.locator(".controls").bounding_box()["y"]
        said = figure.locator("output").first.bounding_box()
        assert said["y"] + said["height"] - top < 400


# ---- steppers ----------------------------------------------------------------------
PACE = 1600
READ_STEP = "figure => figure.querySelector('.stepper input').value"


def stepper(tab, examples):
    figure = opened(tab, examples, "tile by tile")
    return figure, lambda: int(figure.evaluate(READ_STEP))


def test_a_stepper_goes_back_and_on_by_its_buttons(tab, examples):
    figure, at = stepper(tab, examples)
    button = lambda name: figure.get_by_role("button", name=name)
    value = figure.locator(".stepper b")
    button("Next").focus()
    tab.keyboard.press("Enter")
    assert (at(), value.text_content()) == (5, "5 of 9")
    assert figure.locator("output").text_content() == "5 of 10 tiles are done."
    button("Back").click()
    button("Back").click()
    assert at() == 3
    for _ in range(9):
        tab.keyboard.press("Space")  # on Back, which keeps the focus at the end
    assert at() == 0
    assert button("Back").get_attribute("aria-disabled") == "true"
    assert button("Next").get_attribute("aria-disabled") == "false"


def test_a_stepper_plays_pauses_and_is_quiet_meanwhile(tab, examples):
    tab.clock.install()
    figure, at = stepper(tab, examples)
    output = figure.locator("output")
    figure.get_by_role("button", name="Play").click()
    tab.clock.run_for(2 * PACE + 10)
    assert at() == 6
    assert output.get_attribute("aria-live") == "off"
    figure.get_by_role("button", name="Pause").click()
    tab.clock.run_for(3 * PACE)
    assert at() == 6
    assert output.get_attribute("aria-live") == "polite"
    figure.get_by_role("button", name="Play").click()
    tab.clock.run_for(20 * PACE)
    assert at() == 9, "it ends at the last step"
    assert output.get_attribute("aria-live") == "polite"
    figure.get_by_role("button", name="Play").click()  # from the first step again
    assert at() == 0
    tab.clock.run_for(PACE + 10)
    figure.locator(".stepper input").focus()
    tab.keyboard.press("ArrowRight")  # a reader who moves it takes over
    tab.clock.run_for(5 * PACE)
    assert at() == 2


def test_nothing_plays_where_motion_is_unwanted(tab, examples):
    tab.emulate_media(reduced_motion="reduce")
    figure, _ = stepper(tab, examples)
    assert figure.locator("[data-go='0']").is_hidden()
    assert figure.get_by_role("button").count() == 2


# ---- calculators -------------------------------------------------------------------
def test_a_calculator_works_out_what_is_typed_and_says_what_cannot_be(tab, examples):
    figure = opened(tab, examples, "What a cache takes")
    menu, output = figure.locator("[data-preset]"), figure.locator("output")
    layers = figure.locator("[data-field=layers]")
    sizes = lambda: figure.locator("dd").all_text_contents()
    assert sizes() == ["101 MB 100,663,296 bytes", "25.2 MB 25,165,824 bytes"]
    assert menu.input_value() == "base"
    layers.focus()
    tab.keyboard.press("Control+a")
    tab.keyboard.type("12")
    assert menu.input_value() == "your own"
    assert sizes()[0] == "201 MB 201,326,592 bytes"
    assert output.text_content() == "4,096 tokens in float32 take 201 MB."
    for bad in ("0", "201", "1.5", "x", ""):
        layers.fill("") if bad in ("x", "") else layers.fill(bad)
        assert sizes() == ["–", "–"], bad
        assert output.text_content() == "Layers: a whole number from 1 to 200."
        assert layers.get_attribute("aria-invalid") == "true"
    menu.select_option("big")
    assert layers.get_attribute("aria-invalid") == "false"
    assert sizes()[0] == "201 MB 201,326,592 bytes"
    figure.locator("[data-field=number]").select_option("4 bits")
    assert sizes()[0] == "25.2 MB 25,165,824 bytes"


def test_a_calculator_without_script_holds_its_numbers(browser, examples):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((examples / "examples.html").as_uri())
    figure = page.locator("aiayn-figure:has([data-field])").first
    assert "101 MB 100,663,296 bytes" in figure.locator("dl").text_content()
    assert "take 101 MB." in figure.locator("output").text_content()
    assert figure.locator(".controls").evaluate("e => e.disabled")
    context.close()


# ---- hosts and files ---------------------------------------------------------------
def test_the_examples_are_accessible_and_fit(browser, examples):
    with Visitor(browser, examples) as visitor:
        visit = visitor.visit("examples.html")
    assert {mode: found for mode, found in visit.axe.items() if found} == {}
    assert visit.overflow == {390: [], 320: []}
    assert visit.messages == visit.outside == visit.failed == []


def test_a_figure_lives_in_a_sandboxed_frame_with_a_strict_policy(tab, examples):
    """As Colab shows an output: another origin, only inline style and script."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    whole = (examples / "examples.html").read_text("utf8")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    inner = whole.replace('<meta charset="utf-8">', f'<meta charset="utf-8">{head}')
    escaped = inner.replace("&", "&amp;").replace('"', "&quot;")
    tab.set_content(
        f'<iframe sandbox="allow-scripts" width="1000" height="800" srcdoc="{escaped}">'
    )
    frame = tab.frame_locator("iframe")
    figure = frame.locator("aiayn-figure").last
    figure.locator("xpath=self::*[@data-ready]").wait_for(state="attached")
    data = figure_walk.stored(figure)
    for state, shown in figure_walk.walk(figure, data):
        figure_walk.check(data, state, shown)


def test_a_host_s_own_keys_do_not_fire_in_a_figure(tab, examples):
    tab.goto((examples / "examples.html").as_uri())
    tab.evaluate(
        "window.heard = [];addEventListener('keydown', event => heard.push(event.key))"
    )
    tab.locator("input[type=range]").first.focus()
    for key in ("ArrowDown", "ArrowRight", "d", "Enter", "Home"):
        tab.keyboard.press(key)
    tab.locator("td[tabindex='0']").first.focus()
    for key in ("ArrowDown", "j", "x", "End"):
        tab.keyboard.press(key)
    assert tab.evaluate("heard") == []
    tab.keyboard.press("Control+k")  # the search of the book
    assert tab.evaluate("heard").count("k") == 1


@pytest.mark.parametrize("width", [320, 1280])
def test_what_is_read_off_a_plot_stays_inside_and_lets_the_pointer_through(
    tab, examples, width
):
    tab.set_viewport_size({"width": width, "height": 900})
    figure = opened(tab, examples, "A grid with holes")
    for panel in figure.locator(".panel:has(svg)").all():
        svg, read = panel.locator("svg"), panel.locator(".read")
        svg.scroll_into_view_if_needed()
        box = svg.bounding_box()
        for share in (0.02, 0.5, 0.98):
            for down in (1, 40):
                tab.mouse.move(box["x"] + share * box["width"], box["y"] + down)
                assert read.text_content()
                said, frame = read.bounding_box(), panel.bounding_box()
                assert frame["x"] <= said["x"]
                assert said["x"] + said["width"] <= frame["x"] + frame["width"]
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_long_words_wrap_within_their_figure(tab, examples):
    tab.set_viewport_size({"width": 320, "height": 900})
    figure = opened(tab, examples, "A grid with holes")
    edges = figure.bounding_box()
    texts = ".title, .label, label, legend, label span, b, dt, dd, output, .axis, li"
    for text in figure.locator(texts).all():
        box = text.bounding_box()
        if box is None or text.text_content() == "Controls":
            continue
        assert box["x"] >= edges["x"] - 1, text.text_content()
        right = box["x"] + box["width"]
        assert right <= edges["x"] + edges["width"] + 1, text.text_content()
    for track in figure.locator("input[type=range]").all():
        assert track.bounding_box()["width"] >= 60


def test_the_pointer_reads_a_plot(tab, examples):
    tab.goto((examples / "examples.html").as_uri())
    panel = tab.locator(".panel.curve").first
    svg = panel.locator("svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    tab.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20)
    *_, last = panel.locator("tbody tr").all()
    name, *numbers = last.locator("th, td").all_text_contents()
    said = panel.locator(".read").text_content()
    assert said.startswith(f"{name}: ")
    assert all(number in said for number in numbers)
    tab.mouse.move(0, 0)
    assert panel.locator(".read").text_content() == ""


def test_paper_shows_the_state_and_no_folds(tab, examples):
    tab.goto((examples / "examples.html").as_uri())
    tab.emulate_media(media="print")
    for figure in tab.locator("aiayn-figure").all():
        assert figure.locator("output").first.is_visible()
        for fold in figure.locator("details").all():
            assert fold.is_hidden()
        after = "e => getComputedStyle(e.querySelector('figure'), '::after').content"
        assert "interactive in the online book" in figure.evaluate(after)


def test_paper_is_white_whatever_the_theme(tab, address):
    """What a reader of the dark page prints looks as it does from the light one."""
    look = """() => [...document.querySelectorAll('aiayn-figure, aiayn-figure *')].map(
        e => ['color', 'fill', 'stroke', 'backgroundColor', 'borderColor'].map(
          name => getComputedStyle(e)[name]).join())"""
    tab.goto(address)
    tab.emulate_media(media="print")
    found = []
    for theme in ("light", "dark"):
        tab.evaluate("t => document.documentElement.dataset.theme = t", theme)
        found.append(tab.evaluate(look))
    assert found[0] == found[1]


def test_style_and_script_are_linked_once_and_where_a_figure_is(site, pages):
    for page in pages:
        text = (site / page).read_text("utf8")
        wanted = int("<aiayn-figure" in text)
        assert len(re.findall(r'<script[^>]*src="[^"]*figures\.js', text)) == wanted, (
            page
        )
        assert len(re.findall(r'<link[^>]*href="[^"]*figures\.css', text)) == wanted, (
            page
        )
        assert "data-aiayn" not in text, page


def test_an_inlined_runtime_is_stripped(monkeypatch):
    monkeypatch.syspath_prepend(str(TESTS.parent / "book" / "_ext"))
    import interactive_figures

    output = (
        "<aiayn-figure><script>1</script></aiayn-figure>\n"
        "<style data-aiayn>\na</style>\n<script data-aiayn>\nb</script>\n"
    )
    assert interactive_figures.RUNTIME.sub("", output) == output.split("\n")[0] + "\n"


# ---- the numbers of the examples, computed anew ------------------------------------
def opened(tab, examples, title):
    tab.goto((examples / "examples.html").as_uri())
    return tab.locator("aiayn-figure").filter(has_text=title).first


def test_the_mask_explorer_shows_masks_and_weights(tab, examples):
    figure = opened(tab, examples, "Which keys a query may attend to")
    data = figure_walk.stored(figure)
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    queries, keys = (torch.randn(6, 4, generator=g).double() for g in generators)
    for state, shown in figure_walk.walk(figure, data):
        n_queries, n_keys, causal, padding = state
        n_queries, n_keys = n_queries + 1, n_keys + 1
        mask, weights, _ = shown
        for i in range(n_queries):
            allowed = [
                j < n_keys - padding
                and (not causal or j - n_keys <= i - n_queries)  # the last rows align
                for j in range(n_keys)
            ]
            marks = mask["rows"][i + 1][1:]
            assert marks == ["✓" if a else "·" for a in allowed], (state, i)
            scores = [float(queries[i] @ keys[j]) / 2 for j in range(n_keys)]
            shares = [math.exp(s) * a for s, a in zip(scores, allowed, strict=True)]
            for share, text in zip(shares, weights["rows"][i + 1][1:], strict=True):
                assert abs(share / (sum(shares) or 1) - float(text)) < 0.00501


def test_the_encoding_explorer_shows_sines_and_cosines(tab, examples):
    figure = opened(tab, examples, "One position, one wave")
    data = figure_walk.stored(figure)
    pairs = torch.arange(8, dtype=torch.float64)
    angle = torch.arange(64)[:, None] / 10000 ** (pairs / 8)
    exact = torch.stack([angle.sin(), angle.cos()], -1).reshape(64, 16)

    def near(texts, numbers):
        numbers = numbers.flatten().tolist()
        for text, number in zip(texts, numbers, strict=True):
            assert abs(float(text.replace("−", "-")) - number) < 0.00501

    for (position, pair), shown in figure_walk.walk(figure, data, most=20):
        row, wave, products, *_ = shown
        near([text for _, text in row["rows"][1:]], exact[position])
        both = exact[:, 2 * pair : 2 * pair + 2]
        near([text for _, *texts in wave["rows"][1:] for text in texts], both)
        near([text for _, text in products["rows"][1:]], exact @ exact[position])
        place = figure_walk.points(wave["paths"]["mark"])[0]
        assert abs(place - 100 * position / 63) < 0.01
