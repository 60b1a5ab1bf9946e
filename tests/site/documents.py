"""Reads the built pages without a browser."""

from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser

LOADED = {
    "stylesheet",
    "icon",
    "apple-touch-icon",
    "preload",
}  # what a <link> may make a page fetch
VOID = {"br", "hr", "img", "input", "link", "meta", "source", "wbr", "col"}


@dataclass
class Document:
    language: str = ""
    title: str = ""
    headings: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)  # the ids of <section>s
    links: list[dict] = field(default_factory=list)  # <a>, with attributes and text
    loads: list[tuple] = field(default_factory=list)  # (tag, address) a page fetches
    metas: dict = field(default_factory=dict)
    canonical: list[str] = field(default_factory=list)
    pictures: list[dict] = field(default_factory=list)  # alt text, and caption or None


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.document, self.stack = Document(), []
        self.figures = []  # pictures of the open <figure>s

    def handle_starttag(self, tag, attributes):
        attributes, page = dict(attributes), self.document
        if tag not in VOID:
            self.stack.append(tag)
        if attributes.get("id"):
            page.ids.append(attributes["id"])
            if tag == "section":
                page.sections.append(attributes["id"])
        if tag == "html":
            page.language = attributes.get("lang", "")
        elif tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            page.headings.append(int(tag[1]))
        elif tag == "a":
            page.links.append({**attributes, "text": ""})
        elif tag == "meta" and (
            name := attributes.get("name") or attributes.get("property")
        ):
            page.metas.setdefault(name, []).append(attributes["content"])
        elif tag == "link" and attributes.get("rel") == "canonical":
            page.canonical.append(attributes["href"])
        elif tag == "link" and attributes.get("rel") in LOADED:
            page.loads.append((tag, attributes["href"]))
        elif tag == "figure":
            self.figures.append([])
        classes = (attributes.get("class") or "").split()
        if "src" in attributes:
            page.loads.append((tag, attributes["src"]))
        if tag == "img" or (tag == "svg" and "plot" in classes):
            alt = attributes.get("alt" if tag == "img" else "aria-label")
            picture = {"alt": alt, "plot": tag == "svg", "caption": ""}
            page.pictures.append(picture)
            if self.figures:
                self.figures[-1].append(picture)

    def handle_endtag(self, tag):
        if tag in self.stack:
            while self.stack.pop() != tag:
                pass
        if tag == "figure" and self.figures:
            self.figures.pop()

    def handle_data(self, data):
        if "title" in self.stack and "svg" not in self.stack:
            self.document.title += data
        if "figcaption" in self.stack and self.figures:
            for picture in self.figures[-1]:
                picture["caption"] += data
        if "a" in self.stack and self.document.links:
            self.document.links[-1]["text"] += data


@cache
def read(path):
    reader = _Reader()
    reader.feed(path.read_text("utf8"))
    return reader.document
