"""What holds for every page: each check returns what is wrong, an empty list at best.

The pages of the book must pass all of them; pages with planted faults must not.
"""

import re
from urllib.parse import unquote, urlsplit

from documents import read
from visits import wire_size

KIB = 1024
WHOLE = 400 * KIB  # all that a page asks for, compressed as hosts do
SHELL = 150 * KIB  # of that, what is not the page's own content
REQUESTS = 24
BIGGEST_SCRIPT = 100_000  # bytes, as the browser has to read it
BIGGEST_INDEX = 400_000  # of the words of all pages; the search page alone loads it
SHIFT = 0.05  # how far things may move while the page comes

# The page's own content, beside its HTML: formulas, figures, pictures, the search.
CONTENT = re.compile(
    r"_static/katex/fonts/|_static/figures\.|_static/live/|/searchindex\.js$"
    r"|_images/|\.(?:png|jpe?g|webp)$"
)


# ---- of a visit ----------------------------------------------------------------------
def requests(visit):
    return visit.outside + visit.failed


def console(visit):
    return visit.messages


def formulas(visit):
    facts = visit.facts
    return facts["unrendered"] + facts["errors"] + facts["rawTex"]


def export_marks(visit):
    return visit.facts["marks"]


def accessibility(visit):
    return [f"{mode}: {found}" for mode, all_ in visit.axe.items() for found in all_]


def width(visit):
    return [f"{w} px: {found}" for w, all_ in visit.overflow.items() for found in all_]


def shift(visit):
    return [f"{w} px: {sum_:.3f}" for w, sum_ in visit.shift.items() if sum_ >= SHIFT]


def weight(visit):
    """Too many files or too heavy; scripts that are too big for a phone."""
    files = list(dict.fromkeys(visit.loaded))
    sizes = {path: wire_size(path) for path in files if path.is_file()}
    whole = sum(sizes.values())
    shell = sum(
        size
        for path, size in sizes.items()
        if path != visit.page and not CONTENT.search(path.as_posix())
    )
    found = []
    if len(files) > REQUESTS:
        found.append(f"{len(files)} requests")
    if whole > WHOLE:
        found.append(f"{whole / KIB:.0f} KiB in all")
    if shell > SHELL:
        found.append(f"{shell / KIB:.0f} KiB beside its content")
    for path in sizes:
        limit = BIGGEST_INDEX if path.name == "searchindex.js" else BIGGEST_SCRIPT
        if path.suffix == ".js" and path.stat().st_size > limit:
            found.append(f"{path.name}: {path.stat().st_size} bytes of script")
    return found


def figure_files(visit):
    """The figures' style and script are there exactly where a figure is."""
    loaded = {path.name for path in visit.loaded} & {"figures.css", "figures.js"}
    wanted = {"figures.css", "figures.js"} if visit.facts["figures"] else set()
    return sorted(loaded ^ wanted)


def headings(visit):
    """One first heading, and no level left out on the way down."""
    levels = visit.facts["headings"]
    found = [] if levels.count(1) == 1 else [f"{levels.count(1)} first headings"]
    steps = zip([0, *levels], levels, strict=False)
    return found + [f"h{b} after h{a}" for a, b in steps if b > a + 1]


VISIT_CHECKS = [
    requests, console, formulas, export_marks, accessibility, width, shift, weight,
    figure_files, headings,
]  # fmt: skip


# ---- of a file -----------------------------------------------------------------------
def lands(site, page, address):
    """Whether an address on a page leads to a file, and to an element in it."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return True
    target = site / page
    if parts.path:
        target = (target.parent / unquote(parts.path)).resolve()
    if not target.is_file():
        return False
    return not parts.fragment or unquote(parts.fragment) in read(target).ids


def links(site, page):
    addresses = [a["href"] for a in read(site / page).links if a.get("href")]
    # "#" alone is the top of the page
    found = [a for a in addresses if a != "#" and not lands(site, page, a)]
    return found if addresses else ["no link at all"]


def ids(site, page):
    every = read(site / page).ids
    return sorted({name for name in every if every.count(name) > 1})


def loads(site, page):
    """A page fetches files of the site only."""
    found = []
    for tag, address in read(site / page).loads:
        parts = urlsplit(address)
        if parts.scheme == "data":
            continue
        path = ((site / page).parent / unquote(parts.path)).resolve()
        if parts.scheme or parts.netloc or not path.is_file():
            found.append(f"{tag}: {address}")
    return found


def pictures(site, page):
    """Alternative text in words; a plot has a caption too."""
    found = []
    for picture in read(site / page).pictures:
        alt = picture["alt"] or ""
        if not alt or re.fullmatch(r"[\w./-]+\.(svg|png|jpe?g)", alt):
            found.append(f"alternative text {alt!r}")
        if picture["plot"] and (len(alt) < 20 or not picture["caption"].strip()):
            found.append(f"a plot, {alt!r}, {picture['caption']!r}")
    return found


FILE_CHECKS = [links, ids, loads, pictures]
