"""Print the whole book into one PDF with Chromium.

    make pdf        _build/attention-line-by-line.pdf

The pages of the site, in the order of `_toc.yml`, become one document: ids made
unique, links between pages turned into links within it (tools/pdf.js), a cover and
contents in front (tools/pdf.html, tools/pdf.css). Chromium prints that document twice,
since only the first print tells on which page a chapter begins. What comes out is put
right (tools/pdf_tags.py): bookmarks, and tags that say what a formula is.
"""

import argparse
import datetime
import importlib.metadata
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jinja2
import pikepdf
import yaml
from markupsafe import Markup

from environment import ROOT, variables
from pdf_tags import simplify

HERE = Path(__file__).parent
SCRIPT = (HERE / "pdf.js").read_text("utf8") + "\nwindow.book = book;"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ON_SITE_ONLY = {"book/api", "book/figures_guide"}
SUBTITLE = "“Attention Is All You Need”, derived, built and checked"
TEXT_WIDTH = 627  # CSS pixels between the margins that pdf.css sets: 166 mm


@dataclass
class Part:
    caption: str
    pages: list[str]  # as _toc.yml names them


def parts(root: Path, only: list[str] | None = None) -> list[Part]:
    """The book's pages in their order, or only some of them.

    The front page, and what serves those who work with the package, are for the site.
    """
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    found = []
    for part in toc["parts"]:
        files = [chapter["file"] for chapter in part["chapters"]]
        files = [file for file in files if file not in ON_SITE_ONLY]
        found.append(Part(part["caption"], files))
    for part in found:
        part.pages = [page for page in part.pages if not only or page in only]
    return [part for part in found if part.pages]


def is_current(root: Path) -> bool:
    """Whether the site is newer than everything that it is made from."""
    index = root / "_build" / "html" / "index.html"
    if not index.exists():
        return False
    sources = [root / "_config.yml", root / "_toc.yml", *root.glob("notebooks/*.ipynb")]
    for folder in (root / "book", root / "src"):
        sources += [p for p in folder.rglob("*") if "__pycache__" not in p.parts]
    newest = max(p.stat().st_mtime for p in sources if p.is_file())
    return newest <= index.stat().st_mtime


def date_of(root: Path) -> str:
    """The day of the last commit, or today where there is no history."""
    command = ["git", "-C", str(root), "log", "-1", "--format=%cs"]
    try:
        day = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        day = ""
    date = datetime.date.fromisoformat(day) if day else datetime.date.today()
    return f"{date.day} {date:%B %Y}"


def chromium() -> str:
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        raise SystemExit("no Chromium found: install Debian's `chromium`, or Chrome")
    return executable


@contextmanager
def paper() -> Iterator:
    """A tab as wide as the text on paper, that may read files and nothing else."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox"],  # Chromium refuses to run as root otherwise
        )
        tab = browser.new_page(viewport={"width": TEXT_WIDTH, "height": 900})
        tab.set_default_timeout(300_000)
        tab.route(re.compile("^(?!file:|data:|blob:)"), lambda route: route.abort())
        tab.emulate_media(media="print", color_scheme="light")
        yield tab
        browser.close()


def gather(tab, site: Path, book: list[Part], address: str) -> list[dict]:
    """Each part with its chapters as they go into the one document."""
    names = {f"{p}.html": p.replace("/", "-") for part in book for p in part.pages}
    gathered = []
    for part in book:
        chapters = []
        for page in part.pages:
            tab.goto((site / f"{page}.html").as_uri())
            tab.evaluate(SCRIPT)
            chapter = tab.evaluate(
                "settings => book.gather(settings)",
                {"root": f"{site.as_uri()}/", "address": address, "names": names},
            )
            for file in chapter["site"]:
                if not (site / file).is_file():
                    raise SystemExit(f"{page} links to {file}, which the site lacks")
            chapters.append(chapter)
        gathered.append({"caption": part.caption, "chapters": chapters})
    return gathered


def css_string(text: str) -> Markup:
    """A text between quotes, as style sheets write it."""
    return Markup(json.dumps(text, ensure_ascii=False).replace("<", r"\3c "))


def join(root: Path, gathered: list[dict], config: dict) -> str:
    """The one document, its page numbers still open."""
    chapters = [chapter for part in gathered for chapter in part["chapters"]]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["css"] = css_string
    template = environment.from_string((HERE / "pdf.html").read_text("utf8"))
    return template.render(
        language=config["sphinx"]["config"]["language"],
        title=config["title"],
        subtitle=SUBTITLE,
        author=config["author"],
        copyright=f"© {config['copyright']}",
        version=importlib.metadata.version("aiayn"),
        date=date_of(root),
        address=config["html"]["baseurl"],
        styles=dict(style for chapter in chapters for style in chapter["styles"]),
        own_style=(HERE / "pdf.css").as_uri(),
        parts=gathered,
        chapters=chapters,
    )


def print_twice(tab) -> bytes:
    """The PDF of what the tab shows, page numbers filled in."""
    settings = {"prefer_css_page_size": True, "print_background": True}
    draft = pikepdf.open(io.BytesIO(tab.pdf(outline=False, tagged=False, **settings)))
    number = {page.objgen: n for n, page in enumerate(draft.pages, 1)}
    pages = {
        name.removeprefix("/"): number[destination[0].objgen]
        for name, destination in draft.Root.Dests.items()
    }
    tab.evaluate("pages => book.number(pages)", pages)
    return tab.pdf(outline=True, tagged=True, **settings)


def name_outline(pdf: pikepdf.Pdf, headings: list[str]) -> None:
    """Write the headings into the outline.

    Chromium's own titles lack the space at a line's end, and say a heading twice that
    was pushed to the next page.
    """

    def entries(parent):
        child = parent.get("/First")
        while child is not None:
            yield child
            yield from entries(child)
            child = child.get("/Next")

    found = list(entries(pdf.Root.Outlines))
    if len(found) != len(headings):
        raise SystemExit(f"{len(found)} bookmarks for {len(headings)} headings")
    for entry, heading in zip(found, headings, strict=True):
        entry.Title = heading


def has_content(page: pikepdf.Page) -> bool:
    """Whether a page has more than its running title and number, which have no tag."""
    return b"/MCID" in page.Contents.read_bytes()


def make(root: Path, site: Path, output: Path, only: list[str] | None = None) -> int:
    """Write the PDF; return how many pages it has."""
    config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
    document = output.with_suffix(".html")
    with paper() as tab:
        address = config["html"]["baseurl"]
        gathered = gather(tab, site, parts(root, only), address)
        document.write_text(join(root, gathered, config), "utf8")
        tab.goto(document.as_uri())
        tab.evaluate(SCRIPT)
        if missing := tab.evaluate("book.missing()"):
            raise SystemExit("links that lead nowhere: " + ", ".join(missing))
        tab.evaluate("book.fit()")
        if wide := tab.evaluate("book.tooWide()"):
            raise SystemExit("wider than the page:\n" + "\n".join(wide))
        printed, headings = print_twice(tab), tab.evaluate("book.headings()")
    document.unlink()
    with pikepdf.open(io.BytesIO(printed)) as pdf:
        name_outline(pdf, headings)
        simplify(pdf)
        if blank := [n for n, page in enumerate(pdf.pages, 1) if not has_content(page)]:
            raise SystemExit(f"blank pages: {blank}")
        with pdf.open_metadata() as about:
            about["dc:title"] = config["title"]
            about["dc:creator"] = [config["author"]]
            about["dc:description"] = SUBTITLE
            about["dc:language"] = [config["sphinx"]["config"]["language"]]
        pdf.save(
            output,
            linearize=True,  # a browser shows the first page before it has the last
            object_stream_mode=pikepdf.ObjectStreamMode.generate,
        )
        return len(pdf.pages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--site", type=Path, help="a built site; else _build/html")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="+", metavar="PAGE", help="as in _toc.yml")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    output = arguments.output or root / "_build" / "attention-line-by-line.pdf"
    chromium()  # or stop here, before pages are built
    if arguments.site is None and not is_current(root):
        command = [sys.executable, str(HERE / "pages.py"), "--root", str(root)]
        if subprocess.run(command, env=variables(root)).returncode:
            raise SystemExit("no PDF without the pages")
    site = (arguments.site or root / "_build" / "html").resolve()
    start = time.perf_counter()
    pages = make(root, site, output.resolve(), arguments.only)
    size, seconds = output.stat().st_size / 1e6, time.perf_counter() - start
    print(f"{output} ({pages} pages, {size:.1f} MB, {seconds:.0f} s)")


if __name__ == "__main__":
    main()
