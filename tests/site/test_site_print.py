"""On paper: a chapter printed from the browser, and the book as one PDF."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pikepdf
import pytest
from pypdf import PdfReader

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "pdf.py"
PAPER = 642  # CSS pixels: A4 without the margins of print.css
# a page with links to others, one with formulas, one with folds, figures and exercises
PAGES = ["book/conventions", "notebooks/14_copy_task", "book/glossary"]


def print_pages(site, output, *pages):
    command = [sys.executable, TOOL, "--site", site, "--output", output, "--only"]
    return subprocess.run([*command, *pages], capture_output=True, text=True)


def letters(text):
    """Letters and digits alone: extraction adds and loses blanks and signs."""
    return re.sub("[^a-z0-9]+", "", text.lower())


@pytest.fixture(scope="module")
def file(browser, site, tmp_path_factory):
    output = tmp_path_factory.mktemp("pdf") / "book.pdf"
    done = print_pages(site, output, *PAGES)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


@pytest.fixture(scope="module")
def pdf(file):
    return PdfReader(file)


@pytest.fixture(scope="module")
def tags(file):
    """Every element of structure: its kind, its alternative text, what it holds."""

    def walk(element):
        kids = element.get("/K", [])
        kids = list(kids) if isinstance(kids, pikepdf.Array) else [kids]
        if "/S" in element:
            yield str(element.S), str(element.get("/Alt", "")), kids
        for kid in kids:
            if isinstance(kid, pikepdf.Dictionary) and "/S" in kid:
                yield from walk(kid)

    with pikepdf.open(file) as pdf:
        yield list(walk(pdf.Root.StructTreeRoot))


@pytest.fixture(scope="module")
def texts(pdf):
    return [letters(page.extract_text()) for page in pdf.pages]


@pytest.fixture(scope="module")
def outline(pdf):
    """Depth, title and page number of every bookmark."""

    def walk(entries, depth=0):
        for entry in entries:
            if isinstance(entry, list):
                yield from walk(entry, depth + 1)
            else:
                page = pdf.get_destination_page_number(entry) + 1
                yield depth, entry.title, page

    return list(walk(pdf.outline))


@pytest.fixture(scope="module")
def links(pdf):
    """Page number and target of every link: a name within, or an address."""
    found = []
    for number, page in enumerate(pdf.pages, 1):
        for link in page.get("/Annots", []):
            link = link.get_object()
            target = link.get("/Dest") or link["/A"].get("/D") or link["/A"]["/URI"]
            found.append((number, str(target)))
    return found


def test_the_pdf_says_what_it_is(pdf):
    catalog = pdf.trailer["/Root"]
    assert catalog["/Lang"] == "en"
    assert catalog["/MarkInfo"]["/Marked"]
    assert catalog["/StructTreeRoot"]["/K"]
    assert pdf.metadata.title == "Attention, Line by Line"
    assert pdf.metadata.author
    assert pdf.metadata.subject
    assert round(pdf.pages[0].mediabox.width * 25.4 / 72) == 210
    assert "Version" in pdf.pages[0].extract_text()


def test_bookmarks_hold_parts_chapters_and_sections_and_lead_to_them(outline, texts):
    titles = {title: depth for depth, title, _ in outline}
    assert titles["Part IV: Training"] == titles["Front matter"] == 0
    assert titles["14. A Transformer that copies"] == titles["Conventions"] == 1
    assert titles["14.1. The task"] == titles["Masks"] == 2
    for _, title, page in outline:
        assert letters(title) in texts[page - 1], (title, page)


def test_the_contents_name_the_right_pages(outline, texts):
    first = next(page for _, title, page in outline if title == "Front matter")
    contents = "".join(texts[1 : first - 1])
    named = [(t, p) for depth, t, p in outline if depth < 3 and p >= first]
    assert len(named) > 20
    for title, page in named:
        assert f"{letters(title)}{page}" in contents, (title, page)


def test_every_page_but_the_cover_has_its_number(texts):
    for number, text in enumerate(texts[1:], 2):
        assert str(number) in text[:60] + text[-60:], number


def test_no_heading_stands_alone_at_the_end_of_a_page(pdf):
    def walk(entries):
        for entry in entries:
            yield from walk(entry) if isinstance(entry, list) else [entry]

    low = [e.title for e in walk(pdf.outline) if e["/Top"] < 68 + 45]  # margin, lines
    assert low == []


def test_the_chapter_s_title_runs_along(outline, texts):
    title = "14. A Transformer that copies"
    start = next(page for _, name, page in outline if name == title)
    end = next(page for _, name, page in outline if name == "Back matter")
    for number in range(start, end):
        assert letters(title) in texts[number - 1], number


def test_links_stay_within_the_book_or_lead_to_the_net(pdf, links):
    names = set(pdf.named_destinations)
    within = [target for _, target in links if target in names]
    outside = [target for _, target in links if target not in names]
    assert len(within) > 100
    assert outside
    assert [a for a in outside if not re.match("https?://", a)] == []
    # a page that is not in this PDF is linked where it is published
    assert any(a.endswith("notebooks/01_recurrence.html") for a in outside)
    raw = b"".join(obj.get_data() for obj in [p.get_contents() for p in pdf.pages])
    assert b"file://" not in raw


def test_a_link_to_another_page_lands_on_what_it_names(pdf, texts):
    destination = pdf.named_destinations["/book-glossary--term-softmax"]
    page = pdf.get_destination_page_number(destination)
    assert "softmax" in texts[page]


def test_no_address_of_this_machine_is_in_the_file(file):
    with pikepdf.open(file) as pdf:
        for obj in pdf.objects:
            data = obj.read_bytes() if isinstance(obj, pikepdf.Stream) else b""
            assert "file://" not in repr(obj)
            assert b"file://" not in data


def test_the_file_is_small(file, pdf):
    assert file.stat().st_size < 500_000 + 10_000 * len(pdf.pages)  # fonts, and pages


def test_a_screen_reader_gets_every_formula(tags, site, tab):
    """As its TeX, once, and together with the signs that stand on the page."""
    count = "all => all.filter(e => !e.closest('button, .headerlink')).length"
    expected = 0
    for page in PAGES:
        tab.goto((site / f"{page}.html").as_uri())
        expected += tab.locator("article .katex").evaluate_all(count)
    formulas = [(alt, kids) for kind, alt, kids in tags if kind == "/Formula"]
    assert len(formulas) >= expected > 50
    assert r"(1 - p)^n \le e^{-pn} \le" in " ".join(alt for alt, _ in formulas)
    assert [alt for alt, kids in formulas if not alt or not kids] == []


def test_tags_say_what_they_hold(tags):
    kinds = {kind for kind, _, _ in tags}
    assert {"/H1", "/H2", "/H3", "/P", "/Code", "/Formula", "/LI", "/TH"} <= kinds
    assert "/NonStruct" not in kinds
    figures = [alt for kind, alt, _ in tags if kind == "/Figure"]
    assert figures
    assert all(figures)


def test_no_content_has_lost_its_tag(file):
    with pikepdf.open(file) as pdf:
        holders = pikepdf.NumberTree(pdf.Root.StructTreeRoot.ParentTree)
        for page in pdf.pages:
            for holder in holders[int(page.StructParents)]:
                assert holder.S != "/NonStruct"
                assert len(holder.K)


def test_formulas_are_text(texts):
    book = "".join(texts)
    assert "dmodel" in book  # the letters of d_model, in two sizes


def test_fonts_are_embedded(pdf):
    fonts = {}
    for page in pdf.pages:
        for font in page["/Resources"].get("/Font", {}).values():
            font = font.get_object()
            if font["/Subtype"] != "/Type3":  # drawn in the file itself
                fonts[font["/BaseFont"]] = font
    assert any("KaTeX" in name for name in fonts)
    for name, font in fonts.items():
        descendant = font["/DescendantFonts"][0].get_object()
        assert "/FontFile2" in descendant["/FontDescriptor"] or (
            "/FontFile3" in descendant["/FontDescriptor"]
        ), name


def test_folds_are_open_and_solutions_come_last(texts, outline, site, tab):
    tab.goto((site / "notebooks/14_copy_task.html").as_uri())
    folded = tab.locator("details.fold p").evaluate_all(
        "all => all.filter(p => !p.querySelector('.katex, code'))"
        ".map(p => p.textContent)"
    )
    book = "".join(texts)
    starts = [letters(text)[:24] for text in folded]
    assert len(starts) > 5
    assert [start for start in starts if start not in book] == []
    last = next(page for _, title, page in outline if title == "Solutions")
    end = next(page for _, title, page in outline if title == "Back matter")
    solved = "".join(texts[last - 1 : end])
    assert len(re.findall(r"solutiontoexercise14\d", solved)) == 3
    assert f"solutiononpage{last}" in book


@pytest.fixture
def copy(site, tmp_path):
    """A site of links to the built one, in which one page can be changed."""
    for path in site.iterdir():
        if path.name != "book":
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "book").mkdir()
    for path in (site / "book").iterdir():
        (tmp_path / "book" / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ('<a href="nowhere.html">gone</a>', "book/nowhere.html"),
        ('<a href="#nowhere">gone</a>', "nowhere"),
        ('<div style="width: 5000px">wide</div>', "wider than the page"),
        ('<div style="break-before: page; height: 500mm"></div>', "blank pages"),
    ],
)
def test_a_planted_fault_stops_the_print(browser, copy, tmp_path, planted, said):
    page = copy / "book" / "preface.html"
    page.write_text(page.read_text("utf8").replace("</h1>", f"</h1>{planted}", 1))
    done = print_pages(copy, tmp_path / "book.pdf", "book/preface")
    assert done.returncode == 1
    assert said in done.stderr


def test_without_chromium_the_print_says_what_to_install(site, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = print_pages(site, tmp_path / "book.pdf", "book/preface")
    assert done.returncode == 1
    assert done.stderr == "no Chromium found: install Debian's `chromium`, or Chrome\n"


def test_pages_are_built_again_when_they_are_missing_or_stale(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from pdf import is_current

    paths = ["_build/html/index.html", "_config.yml", "_toc.yml", "src/a.py"]
    for path in [*paths, "book/preface.md", "notebooks/01.ipynb"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
        os.utime(tmp_path / path, (1000, 1000))
    assert is_current(tmp_path)
    for source in ("_toc.yml", "src/a.py", "book/preface.md", "notebooks/01.ipynb"):
        os.utime(tmp_path / source, (2000, 2000))
        assert not is_current(tmp_path), source
        os.utime(tmp_path / source, (1000, 1000))
    (tmp_path / paths[0]).unlink()
    assert not is_current(tmp_path)


@pytest.fixture
def sheet(tab):
    """Opens a page as the browser lays it out for paper."""

    def open_page(path, theme="light"):
        tab.set_viewport_size({"width": PAPER, "height": 900})
        tab.goto(path.as_uri())
        tab.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
        tab.emulate_media(media="print")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        return tab

    return open_page


def test_a_printed_chapter_has_no_blank_fold(sheet, site, chapters):
    blank = """folds => folds.filter(fold => {
        const body = fold.querySelector(":scope > :not(summary)");
        const { opacity, visibility } = getComputedStyle(body);
        return body.offsetHeight < 5 || opacity !== "1" || visibility !== "visible";
    }).length"""
    for chapter in chapters[::4]:
        tab = sheet(site / chapter)
        folds = tab.locator("details.fold, details.hide")
        assert folds.count()
        assert folds.evaluate_all(blank) == 0, chapter


def test_nothing_of_a_printed_page_is_cut(sheet, site, chapters):
    """A few pages stand for all: `make pdf` stops where any is too wide."""
    measure = (ROOT / "tools" / "pdf.js").read_text("utf8") + "\nwindow.book = book;"
    clipped = """all => all.filter(box => box.scrollWidth > box.clientWidth + 1
        && getComputedStyle(box).overflowX !== "visible").length"""
    boxes = ".katex-display, .bd-article pre, .pst-scrollable-table-container"
    for page in [*chapters[1::4], "book/paper.html", "book/differences.html"]:
        tab = sheet(site / page)
        tab.evaluate(measure)
        assert tab.evaluate("book.tooWide()") == [], page
        assert tab.locator(boxes).evaluate_all(clipped) == 0, page


def test_paper_is_light_even_from_a_dark_page(sheet, site, chapters):
    tab = sheet(site / chapters[1], "dark")
    colours = """element => [getComputedStyle(element).color,
        getComputedStyle(document.body).backgroundColor]"""
    paragraph = tab.locator("article section > p:not([class])").first
    text, ground = paragraph.evaluate(colours)
    assert max(map(int, re.findall(r"\d+", text))) < 80
    assert ground == "rgb(255, 255, 255)"
    plotted = tab.locator("article svg.plot text").evaluate_all(
        "all => all.map(e => getComputedStyle(e).fill)"
    )
    for fill in set(plotted):
        assert max(map(int, re.findall(r"\d+", fill)[:3])) < 130, fill


def test_the_live_model_prints_what_it_found(sheet, site, texts, outline):
    """The tokens and the maps are buttons on the page, and stay when others go."""
    tab = sheet(site / "notebooks/14_copy_task.html")
    live = tab.locator("aiayn-live")
    assert live.locator(".tape button:visible").count() > 10
    assert live.locator(".heads svg:visible").count() == 24
    assert live.locator("[data-do]:visible, input:visible").count() == 0
    title = "The model in this page"
    start = next(page for _, name, page in outline if name.endswith(title))
    section = "".join(texts[start - 1 : start + 1])
    assert "jjaaddeeffaacceeendend" in section  # source and written
    assert "probabilityoftoken4" in section


def test_paper_says_that_a_figure_moves_on_the_page(sheet, site, chapters):
    tab = sheet(site / chapters[1])
    note = "e => getComputedStyle(e, '::after').content"
    figures = tab.locator("aiayn-figure figure")
    assert figures.count()
    assert "On the page this figure moves" in figures.first.evaluate(note)
