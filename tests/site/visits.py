"""Looks at a page in a browser once and writes down everything that tests ask for."""

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

LOOK = Path(__file__).with_name("look.js").read_text("utf8")
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf8")
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLOUR_RULES = ["color-contrast", "link-in-text-block"]


@dataclass
class Visit:
    outside: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    facts: dict = field(default_factory=dict)
    axe: dict[str, list[str]] = field(default_factory=dict)
    overflow: dict[int, list[str]] = field(default_factory=dict)


class Visitor:
    def __init__(self, browser, site):
        self.browser, self.site, self.seen = browser, site, {}
        self.current = Visit()

    def __enter__(self):
        self.context = self.browser.new_context(color_scheme="light")
        self.context.route("**/*", self.guard)
        self.page = self.context.new_page()
        self.page.on("console", self.note_message)
        self.page.on("pageerror", lambda e: self.current.messages.append(f"error: {e}"))
        self.page.on("requestfailed", lambda r: self.current.failed.append(r.url))
        return self

    def __exit__(self, *error):
        self.context.close()

    def guard(self, route):
        """Let the page read files and nothing else."""
        if route.request.url.startswith(("file:", "data:", "blob:")):
            return route.continue_()
        self.current.outside.append(route.request.url)
        return route.abort()

    def note_message(self, message):
        if message.type in ("error", "warning"):
            self.current.messages.append(f"{message.type}: {message.text}")

    def look(self, width, theme):
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.evaluate("t => document.documentElement.dataset.theme = t", theme)

    def visit(self, name):
        if name in self.seen:
            return self.seen[name]
        visit = self.seen[name] = self.current = Visit()
        page = self.page
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto((self.site / name).as_uri(), wait_until="load")
        page.evaluate(LOOK)
        page.evaluate("look.unfold()")
        visit.facts = page.evaluate("look.facts()")
        for width in (390, 320):
            self.look(width, "light")
            visit.overflow[width] = page.evaluate("look.overflow()")
        page.evaluate("look.prepareAxe()")
        page.evaluate(AXE)
        for width in (1280, 390):
            self.look(width, "light")
            visit.axe[f"{width} light"] = page.evaluate("look.runAxe", TAGS)
            self.look(width, "dark")  # changes colours and nothing else
            visit.axe[f"{width} dark"] = page.evaluate("look.runAxe", COLOUR_RULES)
        return visit
