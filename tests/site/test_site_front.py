"""The front matter and the glossary: map, Figure 1, masks, reading times, terms."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from documents import read
from docutils import nodes

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import drawings  # noqa: E402
import folds  # noqa: E402
import reading_time  # noqa: E402

PLAN = [chapter for _, part in drawings.read_plan(ROOT) for chapter in part]
ENTRY = re.compile(r"^\(term-([a-z0-9-]+)\)=\n(\*\*.*)\n: (.+)$", re.M)


def written():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    files = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    return [name for name in files if name.startswith("notebooks/")]


def cells(path, kind="markdown"):
    return [
        c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == kind
    ]


# ---- the plan and the map ----------------------------------------------------------
def test_the_plan_holds_every_chapter_once_and_in_order():
    assert [chapter["number"] for chapter in PLAN] == list(range(1, 17))
    files = [chapter["file"] for chapter in PLAN]
    assert [name for name in files if name in written()] == written()


def test_the_plan_names_written_chapters_by_their_titles():
    titles = {chapter["file"]: chapter["title"] for chapter in PLAN}
    for name in written():
        first = cells(ROOT / f"{name}.ipynb")[0].splitlines()[0]
        assert first == f"# {titles[name]}"


@pytest.mark.parametrize("layout", ["wide", "narrow"])
def test_the_map_links_what_is_written_and_names_the_rest(site, layout):
    text = (site / "book/preface.html").read_text("utf8")
    svg = re.search(rf'<svg class="drawing {layout}".*?</svg>', text, re.S)[0]
    links = re.findall(r'<a href="\.\./(notebooks/\w+)\.html">', svg)
    assert links == written() or sorted(links) == sorted(written())
    assert svg.count(drawings.UNWRITTEN) == len(PLAN) - len(links)
    for chapter in PLAN:
        title = chapter["title"] if layout == "wide" else chapter.get("short")
        assert (title or chapter["title"]) in svg
        assert f">{chapter['number']}</text>" in svg


def test_a_chapter_that_is_not_written_is_named_without_a_link(site):
    missing = [c for c in PLAN if c["file"] not in written()]
    for page in site.rglob("*.html"):
        for chapter in missing:
            assert Path(chapter["file"]).name not in page.read_text("utf8"), page
    text = (site / "book/paper.html").read_text("utf8")
    for chapter in missing:
        name = f"{chapter['number']} {chapter['title']}"
        assert text.count(name) == text.count(f"{name} ({drawings.UNWRITTEN})")


def test_a_chapter_that_is_not_planned_is_told_with_its_line(tmp_path):
    extensions = str(ROOT / "book" / "_ext")
    (tmp_path / "conf.py").write_text(
        f"import sys; sys.path.insert(0, {extensions!r})\n"
        "extensions = ['myst_parser', 'drawings']\n"
    )
    (tmp_path / "book").mkdir()
    plan = (ROOT / drawings.PLAN).read_text("utf8")
    (tmp_path / drawings.PLAN).write_text(plan, encoding="utf8")
    (tmp_path / "index.md").write_text(
        "# T\n\nSee {chapter}`2`.\n\nOr {chapter}`99`.\n"
    )
    command = [sys.executable, "-m", "sphinx", "-q", str(tmp_path), str(tmp_path / "o")]
    done = subprocess.run(command, capture_output=True, text=True)
    told = "index.md:5: ERROR: no chapter '99': the plan has 1, 2, 3"
    assert told in done.stderr
    assert done.stderr.count("ERROR") == 1
    assert "2 Scaled" in (tmp_path / "o" / "index.html").read_text("utf8")


# ---- drawings on the page ----------------------------------------------------------
DRAWN = ["book/preface.html", "book/paper.html", "book/conventions.html"]


@pytest.mark.parametrize("width", [1280, 390, 320])
@pytest.mark.parametrize("name", DRAWN)
def test_every_word_of_a_drawing_is_inside_it_and_legible(tab, site, name, width):
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto((site / name).as_uri())
    words = tab.locator("svg.drawing:visible text").evaluate_all(
        """all => all.map(e => {
            const own = e.getBoundingClientRect();
            const svg = e.closest("svg"), page = svg.getBoundingClientRect();
            const box = e.closest("a")?.querySelector(".box")?.getBoundingClientRect();
            const scale = page.width / svg.viewBox.baseVal.width;
            return [e.textContent, own.left - page.left, page.right - own.right,
                    box ? box.width - own.width : 0,
                    parseFloat(getComputedStyle(e).fontSize) * scale];
        })"""
    )
    assert words
    for text, left, right, room, size in words:
        assert min(left, right, room) >= -1, text
        assert size >= 9.5, (text, size)


@pytest.mark.parametrize("name", DRAWN[:2])
def test_the_parts_of_a_drawing_are_links_for_the_keyboard(tab, site, name):
    tab.goto((site / name).as_uri())
    links = tab.locator("svg.drawing:visible a")
    assert links.count() >= 8
    first = links.first
    first.focus()
    outline = "a => getComputedStyle(a.querySelector('rect')).stroke"
    focused = first.evaluate(outline)
    address = first.evaluate("a => a.href.baseVal")
    tab.keyboard.press("Tab")
    assert first.evaluate(outline) != focused  # one sees where one is
    assert tab.evaluate("document.activeElement.closest('svg') !== null")
    first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**/{address.removeprefix('../')}")


@pytest.mark.parametrize("name", DRAWN[:2])
def test_a_drawing_has_a_name_and_a_description(site, name):
    text = (site / name).read_text("utf8")
    svgs = re.findall(
        r'<svg class="drawing (?:wide|narrow|model)".*?</svg>', text, re.S
    )
    assert svgs
    for svg in svgs:
        label, description = re.search(r'aria-labelledby="(\S+) (\S+)"', svg).groups()
        assert len(re.search(rf'<title id="{label}">(.*?)<', svg)[1]) > 15
        assert len(re.search(rf'<desc id="{description}">(.*?)<', svg)[1]) > 80


def test_drawings_are_light_in_the_dark(tab, site):
    for name in DRAWN:
        tab.goto((site / name).as_uri())
        tab.evaluate("document.documentElement.dataset.theme = 'dark'")
        tab.wait_for_timeout(400)  # the theme's own transition
        fills = tab.locator("svg.drawing:visible text:not(.number)").evaluate_all(
            "all => all.map(e => getComputedStyle(e).fill)"
        )
        for fill in set(fills):
            assert min(int(n) for n in re.findall(r"\d+", fill)[:3]) > 100, (name, fill)


def test_figure_1_has_a_link_for_each_of_its_parts(site):
    text = (site / "book/paper.html").read_text("utf8")
    svg = re.search(r'<svg class="drawing model".*?</svg>', text, re.S)[0]
    links = re.findall(r'<a href="([^"]+)">(.*?)</a>', svg, re.S)
    named = [" ".join(re.findall(r">([^<]+)</text>", inside)) for _, inside in links]
    for part, times in {
        "Embedding": 2,
        "+ positional encoding": 2,
        "Multi-head self-attention": 1,
        "Masked multi-head self-attention": 1,
        "Encoder–decoder attention": 1,
        "Feed-forward": 2,
        "Add & norm".replace("&", "&amp;"): 5,
        "Linear": 1,
        "Softmax": 1,
        "Encoder N×": 1,
        "Decoder N×": 1,
    }.items():
        assert named.count(part) == times, part
    assert len(named) == 18


def test_the_drawn_masks_are_those_of_the_code():
    import torch

    import aiayn

    for sizes in ((4, 4), (2, 5), (4, 5)):
        assert drawings.causal(*sizes) == aiayn.causal_mask(*sizes).tolist()
    padding = aiayn.padding_mask(torch.tensor([[5, 6, 7, aiayn.PAD, aiayn.PAD]]))
    both = aiayn.causal_mask(4, 5) & padding[0, 0]
    page = drawings.masks(None, None)
    for name, mask in (
        ("padding", padding[0, 0].expand(4, 5)),
        ("causal & padding", both),
    ):
        assert drawings.mask_picture(name, mask.tolist()) in page


# ---- reading times -----------------------------------------------------------------
def document(*children):
    page = nodes.section("", nodes.title("", "Title"), *children)
    return nodes.Element("", page)


def words(count, **options):
    return nodes.paragraph("", " ".join(["word"] * count), **options)


def test_reading_time_counts_words_lines_and_equations():
    empty = reading_time.minutes(document())
    code = nodes.literal_block("", "a = 1\n\n" * 40)
    formula = nodes.math_block("", "x^2")
    time = reading_time.minutes(document(words(400), code, formula)) - empty
    assert time == pytest.approx(400 / 200 + 40 / 20 + 1 / 4)


@pytest.mark.parametrize(
    "aside",
    [
        nodes.section("", nodes.title("", "Going deeper: More"), words(900)),
        nodes.section("", nodes.title("", "Exercises"), words(900)),
        folds.fold("", words(900), summary=""),
        nodes.container("", words(900), classes=["exercise"]),
        nodes.container(
            "", nodes.literal_block("", "a\n" * 90), classes=["tag_hide-input"]
        ),
        nodes.container(
            "", nodes.literal_block("", "a\n" * 90), classes=["cell_output"]
        ),
    ],
)
def test_reading_time_leaves_asides_out(aside):
    assert reading_time.minutes(document(aside)) == reading_time.minutes(document())


def test_reading_time_is_told_roughly():
    shown = [reading_time.in_words(t) for t in (0.2, 3.4, 9.4, 11, 13, 33)]
    assert shown == [1, 3, 9, 10, 15, 35]
    assert [reading_time.spoken(t) for t in (1, 2)] == ["1 minute", "2 minutes"]


def test_every_chapter_tells_its_reading_time_below_its_title(site, chapters):
    told = re.compile(
        r'</h1>\s*<p class="reading-time">About (?:1 minute|\d+ minutes), '
        r"folds and exercises aside</p>"
    )
    for chapter in chapters:
        assert len(told.findall((site / chapter).read_text("utf8"))) == 1, chapter


# ---- the glossary ------------------------------------------------------------------
def glossary():
    """Every term's anchor: its names and its definition."""
    text = (ROOT / "book/glossary.md").read_text("utf8")
    assert len(ENTRY.findall(text)) == text.count("(term-")
    return [
        (anchor, re.findall(r"\*\*(.+?)\*\*", names), definition)
        for anchor, names, definition in ENTRY.findall(text)
    ]


def test_terms_are_sorted_and_unique():
    first = [names[0].casefold() for _, names, _ in glossary()]
    assert first == sorted(first)
    every = [name.casefold() for _, names, _ in glossary() for name in names]
    assert sorted(every) == sorted(set(every))


def test_a_term_s_address_is_its_name():
    for anchor, names, _ in glossary():
        assert anchor == re.sub(r"\W+", "-", names[0].casefold())


def test_definitions_are_short():
    for anchor, _, definition in glossary():
        assert definition.endswith("."), anchor
        assert 4 <= len(definition.split()) <= 50, anchor


def test_every_term_is_used():
    """By a link, or by its definition in bold in a chapter."""
    book = [p.read_text("utf8") for p in ROOT.glob("book/*.md")]
    text = [cell for p in ROOT.glob("notebooks/*.ipynb") for cell in cells(p)]
    links = set(re.findall(r"\]\([^()]*#term-([a-z0-9-]+)\)", "\n".join(book + text)))
    bold = {b.casefold() for b in re.findall(r"\*\*([^*\n]+)\*\*", "\n".join(text))}
    unused = [
        anchor
        for anchor, names, _ in glossary()
        if anchor not in links
        and not {form for n in names for form in (n.casefold(), f"{n.casefold()}s")}
        & bold
    ]
    assert unused == []
    assert links <= {anchor for anchor, _, _ in glossary()}


def test_a_term_can_be_linked_from_every_page(site):
    ids = read(site / "book/glossary.html").ids
    assert [a for a, _, _ in glossary() if f"term-{a}" not in ids] == []


@pytest.mark.parametrize("word", ["perplexity", "bias correction"])
def test_search_leads_to_a_term_first(tab, site, word):
    tab.goto((site / "search.html").as_uri() + f"?q={word}")
    tab.wait_for_selector(".search-summary:has-text('finished')")
    first = tab.locator("#search-results ul.search li a").first.get_attribute("href")
    assert first.split("?")[0].startswith("book/glossary.html")
    assert f"#term-{word.replace(' ', '-')}" in first


def test_search_finds_a_term(tab, site):
    tab.goto((site / "search.html").as_uri() + "?q=wavelength")
    tab.wait_for_selector("#search-results ul.search li a")
    links = tab.locator("#search-results ul.search li a")
    addresses = links.evaluate_all("all => all.map(a => a.href)")
    assert any("book/glossary.html" in address for address in addresses)
