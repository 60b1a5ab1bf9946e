"""Pages that load little: one style sheet, one script, the icons in use.

What every page of the theme loads is joined into `_static/book.all.css`, with the faces
of the text in it, and `_static/book.all.js`. Rules that no page can match, icons that
no page shows and files that nothing names are left out. What stands on some pages only
stays a file of its own.
"""

import base64
import hashlib
import re
import shutil
from io import BytesIO
from os.path import relpath
from pathlib import Path
from urllib.parse import urlsplit

import style_sheets
from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont
from sphinx.errors import ExtensionError

SHEET, SCRIPT = "book.all.css", "book.all.js"
THEME = "styles/pydata-sphinx-theme.css"  # a page that loads it is one of the theme's
OPTIONS = "documentation_options.js"  # scripts in the page itself add to it
PREVIEWS = "previews"
ICONS, TEXT_FONTS = "fontawesome", "fonts/source-serif"

LINK = re.compile(r'[ \t]*<link\b[^>]*rel="stylesheet"[^>]*>\n?')
SOURCE = re.compile(r'[ \t]*<script\b([^>]*?)\ssrc="([^"]+)"([^>]*)></script>\n?')
ADDRESS = re.compile(r'(?:href|src)="([^"]*?)_static/([^"?]+)[^"]*"')
CODE = re.compile(r"\\([0-9a-f]{1,6}) ?", re.I)
# The name of a file at the end of an address, in a page, a sheet or a script.
NAMED = re.compile(r"""(?<=[\s/"'`(])[\w.+-]+\.\w+(?=[?#]?[^\s"'`)]*["'`)])""")

# Scripts that do nothing on a page without one of these.
SERVES = {
    "togglebutton.js": r'class="(?:[^"]* )?(?:toggle|dropdown)[ "]',
    "design-tabs.js": r'class="(?:[^"]* )?sd-tab-set[ "]',
    "scripts/bootstrap.js": r"data-bs-toggle=",
}
# The theme lays out a whole page to find what scrolls; book.js waits until it is near.
THEME_SCRIPT = "scripts/pydata-sphinx-theme.js"
TAB_STOPS = re.compile(
    r'"complete"===document\.readyState\?(\w+)\(\):window\.addEventListener\("load",\1\)'
)
# what such a script is told
TOLD = re.compile(r"[ \t]*<script>(?:let|var) toggle\w+ = [^<]*</script>\n?")


def assets(pages, pattern):
    """What every page of the theme loads, by its place in `_static`, in order."""
    found = []
    for text in pages.values():
        tags = [
            ADDRESS.search(match[0])
            for match in pattern.finditer(text)
            if ' media="' not in match[0]  # a sheet for paper stays one
        ]
        found.append([tag[2] for tag in tags if tag])
    return [name for name in found[0] if all(name in names for names in found)]


def icon_font(path, characters):
    """The part of an icon font that holds these characters, as WOFF2."""
    # lines keep their height, and a second build gives the same bytes
    font = TTFont(path, recalcBBoxes=False, recalcTimestamp=False)
    options = Options(layout_features=[], hinting=True)
    options.flavor = "woff2"
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=map(ord, characters))
    subsetter.subset(font)
    if not font.getBestCmap():
        return None
    font.flavor = "woff2"
    data = BytesIO()
    font.save(data)
    return data.getvalue()


def keep_icons(rules, static):
    """Replace the icon fonts by what the rules show of them."""
    shown = set()
    for rule in rules:
        for part in rule.walk():
            for name, value in part.declarations:
                if name == "content" or name.startswith("--"):
                    shown |= characters(value)
    for rule in list(rules):
        source = dict(rule.declarations).get("src", "")
        if rule.prelude != "@font-face" or ICONS not in source:
            continue
        file = re.search(r'url\("([^"]+\.woff2)"\)', source)[1]
        data = icon_font(static / file, shown) if "solid" in file else None
        if data is None:
            rules.remove(rule)
        else:
            rule.declarations = [
                (name, face(data) if name == "src" else value)
                for name, value in rule.declarations
            ]


def embed_text_fonts(rules, static):
    """Put the faces of the text into the sheet: the first paint has them.

    A face that came later would move what is being read, from a file as well.
    """
    for rule in rules:
        source = dict(rule.declarations).get("src", "")
        if rule.prelude == "@font-face" and TEXT_FONTS in source:
            file = re.search(r'url\("([^"]+\.woff2)"\)', source)[1]
            rule.declarations = [
                (name, face((static / file).read_bytes()) if name == "src" else value)
                for name, value in rule.declarations
            ]


def face(woff2):
    """A font as the value of ``src``, in the sheet itself."""
    data = base64.b64encode(woff2).decode()
    return f'url(data:font/woff2;base64,{data}) format("woff2")'


def characters(value):
    """The characters of icons in a value of a style sheet."""
    text = "".join(re.findall(r'"([^"]*)"', value))
    text = re.sub(
        r"\\([0-9a-f]{1,6}) ?", lambda m: chr(int(m[1], 16)), text, flags=re.I
    )
    return {c for c in text if "\ue000" <= c <= "\uf8ff"}


def join_sheets(static, names, vocabulary):
    rules, licences = [], []
    for name in names:
        for path in style_sheets.imports(static / name):

            def locate(address, folder=path.parent):
                if address.startswith(("data:", "#")) or urlsplit(address).scheme:
                    return address
                return Path(relpath(folder / address, static)).as_posix()

            text = path.read_text("utf8")
            licences += style_sheets.NOTICE.findall(text)
            rules += style_sheets.read_rules(text, vocabulary, locate)
    rules = style_sheets.drop_unused(rules, vocabulary.variables)
    keep_icons(rules, static)
    embed_text_fonts(rules, static)
    texts = [*dict.fromkeys(licences), *(rule.text() for rule in rules)]
    return "\n".join([*texts, ""])


def join_scripts(static, names):
    parts = []
    for name in names:
        text = (static / name).read_text("utf8")
        if name == THEME_SCRIPT:
            text, found = TAB_STOPS.subn("0", text)
            if found != 1:
                raise ExtensionError(f"{name} has {found} places that set tab stops")
        parts.append(re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.M).strip())
    # the first statement of a file may set a mode that is not for all of them
    return "".join(f";\n{part}\n" for part in parts)


def write(path, text):
    """Write a file of `_static`; return its address, which changes with its content."""
    path.write_text(text, "utf8")
    return f"{path.name}?v={hashlib.sha256(text.encode()).hexdigest()[:8]}"


def rewrite(text, sheets, scripts, unused, options, sheet, script):
    """A page that loads the joined files instead of their parts.

    Style sheets come last in the head: a script in the page waits for those before it.
    """
    links, joined = [], set()

    def join(name, address, tag):
        first = name not in joined
        joined.add(name)
        return f"  {tag.format(f'{address}_static/{name}')}\n" * first

    def link(match):
        address = ADDRESS.search(match[0])
        if address and address[2] in sheets:
            links.append(join(sheet, address[1], '<link rel="stylesheet" href="{}">'))
        else:
            links.append(match[0])
        return ""

    def source(match):
        address = ADDRESS.search(match[0])
        name = address and address[2]
        if name in unused:
            return ""
        if name == OPTIONS:
            return f"  <script>{options}</script>\n"
        if name in scripts:
            return join(script, address[1], '<script defer src="{}"></script>')
        return (
            match[0] if "defer" in match[0] else match[0].replace(" src", " defer src")
        )

    text = SOURCE.sub(source, LINK.sub(link, text))
    text = text.replace("</head>", "".join(links) + "  </head>", 1)
    return TOLD.sub("", text) if "togglebutton.js" in unused else text


def drop_files(out):
    """Delete what no page, sheet or script names, until everything left is named."""
    static = out / "_static"
    names = {
        path: set(NAMED.findall(path.read_text("utf8")))
        for path in out.rglob("*")
        if path.suffix in (".html", ".css", ".js") and path.name != "searchindex.js"
    }
    while True:
        named = {path: found for path, found in names.items() if path.exists()}
        unnamed = [
            path
            for path in static.rglob("*.*")
            if path.parent.name != PREVIEWS  # a script puts their names together
            and not any(
                path.name in found for own, found in named.items() if own != path
            )
        ]
        if not unnamed:
            break
        for path in unnamed:
            path.unlink()
    for folder in sorted((p for p in static.rglob("*") if p.is_dir()), reverse=True):
        if not any(folder.rglob("*.*")):  # at most a licence of what is gone
            shutil.rmtree(folder)


def slim(app, exception):
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    static = out / "_static"
    every = {path: path.read_text("utf8") for path in sorted(out.rglob("*.html"))}
    pages = {path: text for path, text in every.items() if THEME in text}
    unused = {
        name
        for name, mark in SERVES.items()
        if not any(re.search(mark, text) for text in every.values())
    }
    sheets = assets(pages, LINK)
    scripts = [n for n in assets(pages, SOURCE) if n not in unused and n != OPTIONS]

    vocabulary = style_sheets.Vocabulary()
    for text in every.values():
        vocabulary.read_page(text)
    for path in [*static.rglob("*.js"), *static.rglob("*.css")]:
        name = path.relative_to(static).as_posix()
        if path.suffix == ".js" and name not in unused:
            vocabulary.read_script(path.read_text("utf8"))
        elif path.suffix == ".css" and name not in sheets:
            read = re.findall(r"var\(\s*(--[\w-]+)", path.read_text("utf8"))
            vocabulary.variables.update(read)

    options = " ".join((static / OPTIONS).read_text("utf8").split())
    sheet = write(static / SHEET, join_sheets(static, sheets, vocabulary))
    script = write(static / SCRIPT, join_scripts(static, scripts))
    for path, text in pages.items():
        text = rewrite(text, sheets, scripts, unused, options, sheet, script)
        path.write_text(text, "utf8")
    drop_files(out)


def setup(app):
    app.connect(
        "build-finished", slim, priority=990
    )  # when the pages are what they are
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
