"""The page that a host shows for an address that leads nowhere: ``404.html``.

GitHub Pages serves it for addresses of any depth, so its links start at the book's root
there (``layout.html``); opened as a file they are relative, as on every page. It lists
the whole book; a script picks the entry that is most like the address.
"""

import re
from pathlib import Path
from urllib.parse import urlsplit

import yaml

NAME = "404"


def contents(app):
    """The parts of the book: their captions and (name, title) of their pages."""
    toc = yaml.safe_load(Path(app.srcdir, "_toc.yml").read_text("utf8"))
    for part in toc["parts"]:
        files = [chapter["file"] for chapter in part["chapters"]]
        yield part["caption"], [(name, titled(app.env, name)) for name in files]


def titled(env, name):
    title = env.titles[name]
    number = title.get("secnumber")
    return f"{number[0]} {title.astext()}" if number else title.astext()


def collect(app):
    context = {
        "title": "This page is not here",
        "parts": list(contents(app)),
        "book_root": urlsplit(app.config.html_baseurl).path,
        "noindex": True,
    }
    yield NAME, context, f"{NAME}.html"


def style(app, pagename, templatename, context, doctree):
    if pagename == NAME:
        app.add_css_file("front.css")


# Browsers look ahead for files to load, before the script has said where the root is.
# They do not look into templates.
LOADS = re.compile(
    r'(?:(?:<link\b[^>]*?href="[^":]*"[^>]*>|<script\b[^>]*?src="[^>]*></script>)\s*)+'
)
WRITE = (
    "<script>document.write(document.currentScript.previousElementSibling.innerHTML)"
    "</script>"
)


def hold_back(match):
    loads = match[0].strip()
    styles = "".join(re.findall(r"<link\b[^>]*stylesheet[^>]*>", loads))
    plain = f"<noscript>{styles}</noscript>" if styles else ""
    return f"<template>{loads}</template>{WRITE}{plain}\n"


def finish(app, exception):
    path = Path(app.outdir, f"{NAME}.html")
    if not exception and path.exists():
        path.write_text(LOADS.sub(hold_back, path.read_text("utf8")), "utf8")


def setup(app):
    app.connect("html-collect-pages", collect)
    app.connect("html-page-context", style)
    app.connect("build-finished", finish, priority=999)  # on what all others leave
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
