"""Repairs in the finished HTML that neither templates nor style sheets can reach."""

import re
import shutil
from pathlib import Path

REPAIRS = [
    # the layout template has the one viewport tag that a page needs
    (
        re.compile(
            r'<meta name="viewport" content="width=device-width, initial-scale=1"'
            r"\s*/>\s*"
        ),
        "",
    ),
    # Thebe is not used; its script is declared twice
    (re.compile(r"<script>const THEBE_JS_URL.*?</script>\s*"), ""),
    (re.compile(r'<script [^>]*src="[^"]*sphinx-thebe\.js[^"]*"></script>\s*'), ""),
    (re.compile(r'<link rel="stylesheet"[^>]*sphinx-thebe\.css[^>]*>\s*'), ""),
    (re.compile(r'<script type="text/x-thebe-config">.*?</script>\s*', re.S), ""),
    (re.compile(r"<script>kernelName = .*?</script>\s*"), ""),
    # what the theme's tooltips say is a title, which browsers show themselves
    (re.compile(r"\bdata-bs-title="), "title="),
    (re.compile(r'(?:\s+data-bs-(?:toggle="tooltip"|placement="\w+"))+'), ""),
    # the visible text of a fold names it; another aria-label breaks voice control
    (re.compile(r'<summary aria-label="Toggle hidden content">'), "<summary>"),
    # icons drawn by a font are decoration
    (
        re.compile(r'<(i|span) class="(fa-[^"]*)"></\1>'),
        r'<\1 class="\2" aria-hidden="true"></\1>',
    ),
    # docutils gives a list items of a role that lists must not have
    (re.compile(r'role="doc-biblioentry"'), 'role="listitem"'),
]

# A long signature is a list of definitions without terms, inside a term; browsers draw
# it, but it is not valid, and a screen reader announces an empty list.
SIGNATURE = re.compile(r'<dt class="sig .*?</dt>', re.S)
LINES = [
    ("<dl>", '<span class="sig-parameters">'),
    ("</dl>", "</span>"),
    ("<dd>", '<span class="sig-parameter">'),
    ("</dd>", "</span>"),
]


def flatten_signature(match):
    text = match[0]
    for old, new in LINES:
        text = text.replace(old, new)
    return text


UNUSED = [
    "_static/scripts/fontawesome.js*",
    "_static/**/*.map",
    "_static/vendor/fontawesome/webfonts/*.ttf",
    "_static/sphinx-thebe.*",
    "_static/images/logo_*",
    "_static/locales",
    "_static/webpack-macros.html",
    "_static/sbt-webpack-macros.html",
]


def finish(app, exception):
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for page in out.rglob("*.html"):
        text = before = page.read_text("utf8")
        for pattern, replacement in REPAIRS:
            text = pattern.sub(replacement, text)
        text = SIGNATURE.sub(flatten_signature, text)
        if text != before:
            page.write_text(text, "utf8")
    for pattern in UNUSED:
        for path in list(out.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def setup(app):
    app.connect("build-finished", finish)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
