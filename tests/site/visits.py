"""Looks at a page in a browser once and writes down everything that tests ask for."""

import gzip
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOOK = Path(__file__).with_name("look.js").read_text("utf8")
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf8")
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COMPRESSED = (".woff2", ".png", ".jpg", ".webp")  # no host makes these smaller


@cache
def wire_size(path):
    """The bytes of a file on its way from a host."""
    data = path.read_bytes()
    return len(data if path.suffix in COMPRESSED else gzip.compress(data, 6))


def lay_out(page):
    """Lay out the sections far away too, with their fonts, to measure them all."""
    page.add_style_tag(content=".late { content-visibility: visible !important; }")
    page.evaluate(
        """async () => {
            document.body.getBoundingClientRect();
            await document.fonts.ready;
            await new Promise(frame => requestAnimationFrame(() =>
                requestAnimationFrame(frame)));
        }"""
    )


@dataclass
class Visit:
    page: Path
    outside: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    loaded: list[Path] = field(default_factory=list)  # in both loads
    shift: dict[int, float] = field(default_factory=dict)  # width -> CLS
    facts: dict = field(default_factory=dict)
    axe: dict[str, list[str]] = field(default_factory=dict)
    overflow: dict[int, list[str]] = field(default_factory=dict)


class Visitor:
    def __init__(self, browser, site):
        self.browser, self.site, self.seen = browser, site, {}
        self.current = None
        self.late = None  # requests for fonts, while they are held back

    def __enter__(self):
        self.context = self.browser.new_context(color_scheme="light")
        self.context.route("**/*", self.guard)
        self.page = self.context.new_page()
        self.page.on("console", self.note_message)
        self.page.on("pageerror", lambda e: self.current.messages.append(f"error: {e}"))
        self.page.on("requestfailed", self.note_failure)
        return self

    def __exit__(self, *error):
        self.context.close()

    def guard(self, route):
        """Let the page read files and nothing else."""
        address = route.request.url
        if address.startswith("file:"):
            self.current.loaded.append(Path(unquote(urlsplit(address).path)))
            if self.late is not None and address.endswith(".woff2"):
                return self.late.append(route)
        elif not address.startswith(("data:", "blob:")):
            self.current.outside.append(address)
            return route.abort()
        return route.continue_()

    def note_failure(self, request):
        if request.failure != "net::ERR_ABORTED":  # by going to another page
            self.current.failed.append(request.url)

    def note_message(self, message):
        if message.type in ("error", "warning"):
            self.current.messages.append(f"{message.type}: {message.text}")

    def look(self, width, theme):
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.evaluate("t => document.documentElement.dataset.theme = t", theme)

    def load(self, visit, width, *, slow_fonts=False):
        """Open the page, its fonts after its first paint if they are slow."""
        page = self.page
        page.set_viewport_size({"width": width, "height": 900})
        self.late = [] if slow_fonts else None
        page.goto(visit.page.as_uri(), wait_until="domcontentloaded")
        if slow_fonts:
            page.wait_for_timeout(150)
            held, self.late = self.late, None
            for route in held:
                route.continue_()
        page.wait_for_load_state("load")
        page.evaluate("document.fonts.ready.then(() => 0)")
        page.evaluate(LOOK)
        visit.shift[width] = page.evaluate("look.shift()")

    def visit(self, name, axe=True):
        if name in self.seen:
            return self.seen[name]
        visit = self.seen[name] = self.current = Visit(self.site / name)
        page = self.page
        self.load(visit, 390, slow_fonts=True)
        self.load(visit, 1280)
        page.evaluate("look.unfold()")
        visit.facts = page.evaluate("look.facts()")
        for width in (390, 320):
            self.look(width, "light")
            visit.overflow[width] = page.evaluate("look.overflow()")
        if not axe:
            return visit
        page.evaluate("look.prepareAxe()")
        page.evaluate(AXE)
        for width in (1280, 390):
            self.look(width, "light")
            visit.axe[f"{width} light"] = page.evaluate("look.runAxe", TAGS)
            self.look(width, "dark")
            visit.axe[f"{width} dark"] = page.evaluate("look.runAxe", None)
        return visit
