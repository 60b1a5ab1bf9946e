"""What pages load is joined and shortened; nothing that readers see or use is lost."""

import base64
import hashlib
import io
import re
import sys
from pathlib import Path

import pytest
from sphinx.errors import ExtensionError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book" / "_ext"))
import slim_pages
import style_sheets

PAGE = """<html data-theme="dark"><body><p class="lead x-1" id="top">A<b>b</b></p>
<script>
card.className = "open"; mark("state-" + word); e.dataset.wideBox = 1;
</script>"""


CLASSES = re.compile(r'class="([^"]*)"')


@pytest.fixture
def vocabulary():
    vocabulary = style_sheets.Vocabulary()
    vocabulary.read_page(PAGE)
    return vocabulary


def shorten(css, vocabulary, variables=()):
    rules = style_sheets.read_rules(css, vocabulary, lambda address: address)
    rules = style_sheets.drop_unused(rules, vocabulary.variables | set(variables))
    return "".join(rule.text() for rule in rules)


@pytest.mark.parametrize(
    "selector",
    [
        "p",
        "P.lead > b::after",
        "#top:hover",
        ".open",  # a script may add it
        ".state-on",  # and may put it together
        "[data-theme=dark] p",
        "[data-wide-box]",
        "p:not(.gone)",
        ":is(.gone, .lead) b",
        ":root",
        "*",
        "p:nth-child(2n + 1)",
    ],
)
def test_a_rule_that_can_match_stays(vocabulary, selector):
    assert shorten(selector + "{color:red}", vocabulary)


@pytest.mark.parametrize(
    "selector",
    [
        ".gone",
        "video",
        "#gone",
        "p .gone",
        ".lead.gone",
        "[data-gone]",
        ":is(.gone, video) p",
        "p:not(.lead) .gone",
        ".statement",
    ],
)
def test_a_rule_that_cannot_match_goes(vocabulary, selector):
    assert shorten(selector + "{color:red}", vocabulary) == ""


def test_a_rule_loses_the_selectors_that_cannot_match(vocabulary):
    css = ".gone, p , video{color : red; margin: 0  1px !important}"
    assert shorten(css, vocabulary) == "p{color:red;margin:0 1px!important}"


def test_groups_go_when_they_are_empty(vocabulary):
    css = "@media print{.gone{a:b} p{c:d}} @supports (x: y){.gone{a:b}}"
    assert shorten(css, vocabulary) == "@media print{p{c:d}}"


def test_variables_animations_and_fonts_go_when_nothing_names_them(vocabulary):
    css = """
    p{--a:var(--b);--b:1;--c:var(--d);--d:2;--e:3;width:var(--a);animation:f 1s}
    @keyframes f{to{left:0}} @keyframes g{to{left:0}}
    @font-face{font-family:"F";src:url(f.woff2)} b{font-family:F}
    @font-face{font-family:"G";src:url(g.woff2)}"""
    short = shorten(css, vocabulary, ["--e"])
    assert "p{--a:var(--b);--b:1;--e:3;width:var(--a);animation:f 1s}" in short
    assert re.findall("@keyframes .", short) == ["@keyframes f"]
    assert re.findall('family:"(.)"', short) == ["F"]


def test_imports_and_addresses_are_followed(tmp_path, vocabulary):
    (tmp_path / "styles").mkdir()
    (tmp_path / "base.css").write_text("p{background:url('a.png')}")
    sheet = tmp_path / "styles" / "theme.css"
    sheet.write_text(
        '@import "../base.css";/*! A licence */b{c:url(x/b.png) url(data:,)}'
    )
    joined = slim_pages.join_sheets(tmp_path, ["styles/theme.css"], vocabulary)
    assert joined.splitlines() == [
        "/*! A licence */",
        'p{background:url("a.png")}',
        'b{c:url("styles/x/b.png") url("data:,")}',
    ]


def test_a_sheet_that_cannot_be_read_is_told(vocabulary):
    with pytest.raises(ValueError, match="line 2"):
        shorten("p{}\n}", vocabulary)


def test_scripts_keep_their_order_and_their_modes(tmp_path):
    (tmp_path / "a.js").write_text(
        '"use strict";\nlet a = 1\n//# sourceMappingURL=a.map'
    )
    (tmp_path / "b.js").write_text("(() => {})()")
    joined = slim_pages.join_scripts(tmp_path, ["a.js", "b.js"])
    assert joined == ';\n"use strict";\nlet a = 1\n;\n(() => {})()\n'


def test_the_theme_sets_no_tab_stops(tmp_path):
    script = tmp_path / slim_pages.THEME_SCRIPT
    script.parent.mkdir()
    wait = '"complete"===document.readyState?I():window.addEventListener("load",I)'
    script.write_text(f"function I(){{}}start(),{wait}")
    joined = slim_pages.join_scripts(tmp_path, [slim_pages.THEME_SCRIPT])
    assert joined == ";\nfunction I(){}start(),0\n"
    script.write_text("function I(){}start(),I()")  # another version of the theme
    with pytest.raises(ExtensionError, match="0 places that set tab stops"):
        slim_pages.join_scripts(tmp_path, [slim_pages.THEME_SCRIPT])


# ---- the built site ------------------------------------------------------------------
def test_each_page_loads_the_joined_files_of_this_build(site, pages):
    for page in pages:
        text = (site / page).read_text("utf8")
        for name in (slim_pages.SHEET, slim_pages.SCRIPT):
            versions = re.findall(rf'_static/{re.escape(name)}\?v=(\w+)"', text)
            content = (site / "_static" / name).read_bytes()
            assert {*versions} == {hashlib.sha256(content).hexdigest()[:8]}, page


def test_every_icon_of_the_pages_is_in_the_font(site, pages):
    from fontTools.ttLib import TTFont

    css = (site / "_static" / slim_pages.SHEET).read_text("utf8")
    data = re.search(r"data:font/woff2;base64,([^)]+)\)", css)[1]
    font = TTFont(io.BytesIO(base64.b64decode(data)))
    text = "".join((site / page).read_text("utf8") for page in pages)
    names = set(re.findall(r"\bfa-(?!solid|lg)[\w-]+", " ".join(CLASSES.findall(text))))
    assert {"fa-bars", "fa-magnifying-glass"} <= names
    for name in names:
        [character] = re.findall(rf'\.{name}:{{1,2}}before{{content:"(.)"', css)
        assert ord(character) in font.getBestCmap(), name
    assert len(font.getBestCmap()) < 60


def test_the_keyboard_opens_the_search_and_finds(tab, site, chapters):
    tab.goto((site / chapters[0]).as_uri())
    tab.keyboard.press("Control+k")
    tab.wait_for_selector("#pst-search-dialog[open]")
    tab.keyboard.type("wavelength")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/search.html?q=wavelength*")
    tab.wait_for_selector("#search-results ul.search li a")


def test_buttons_say_what_they_do(tab, site, chapters):
    tab.goto((site / chapters[0]).as_uri())
    buttons = tab.locator(".bd-header-article button:visible")
    assert buttons.count() >= 2
    for title in buttons.evaluate_all("all => all.map(e => e.title)"):
        assert len(title) > 5


def test_drawers_and_the_way_back_to_the_top_work_on_a_phone(tab, site, chapters):
    tab.set_viewport_size({"width": 390, "height": 900})
    tab.goto((site / chapters[0]).as_uri())
    for side in ("primary", "secondary"):
        tab.locator(f".{side}-toggle").click()
        drawer = tab.locator(f"#pst-{side}-sidebar-modal")
        drawer.locator("a").first.wait_for(state="visible")
        tab.keyboard.press("Escape")
        drawer.wait_for(state="hidden")
    back = tab.locator("#pst-back-to-top")
    assert not back.is_visible()
    tab.mouse.move(200, 400)
    tab.mouse.wheel(0, 3000)
    tab.wait_for_function("scrollY > 2000")
    assert not back.is_visible()
    tab.mouse.wheel(0, -500)
    back.wait_for(state="visible")
    back.click()
    tab.wait_for_function("scrollY === 0")


def test_a_listing_is_copied(tab, site, chapters):
    tab.goto((site / chapters[0]).as_uri())
    copied = "div.cell_input div.highlight:has(button.copybtn):visible"
    listing = tab.locator(copied).first
    listing.hover()
    listing.locator("button.copybtn").click()
    listing.locator("button.copybtn.success").wait_for()
