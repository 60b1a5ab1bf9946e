"""The site's permanent addresses: equations, figures, results, terms, sections.

    python tests/site/anchors.py    adds the addresses of a newly built site

Nothing is ever removed by this command: an address that was once published stays. To
rename a heading, keep its old anchor with a target above it: ``(old-anchor)=``.
"""

import os
import re
from pathlib import Path

from documents import read

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".txt")
LABELLED = re.compile(r"(eq|res|fig|tab|thm|ex|sol|sec|term|diff|err)-[a-z0-9-]+")
TEXTS = (
    "index",
    *("book/preface", "book/paper", "book/conventions"),
    *("book/beyond_one_machine", "book/differences", "book/errata", "book/glossary"),
)
AUTOMATIC = re.compile(r"id\d+")  # numbered by order: moves when text is added


def anchors(site):
    """Every address of the site that readers may have kept, sorted."""
    found = set()
    texts = [site / f"{name}.html" for name in TEXTS]
    for path in [*texts, *site.glob("notebooks/*.html")]:
        page, document = path.relative_to(site).as_posix(), read(path)
        own = {name for name in document.ids if LABELLED.fullmatch(name)}
        own |= {name for name in document.sections if not AUTOMATIC.fullmatch(name)}
        found |= {f"{page}#{name}" for name in own}
    return sorted(found)


def listed():
    return LIST.read_text("utf8").splitlines() if LIST.exists() else []


def main():
    site = Path(os.environ.get("AIAYN_SITE", ROOT / "_build" / "html"))
    before = set(listed())
    after = sorted(before | set(anchors(site)))
    LIST.write_text("\n".join(after) + "\n", "utf8")
    print(f"{len(after) - len(before)} new of {len(after)} permanent addresses")


if __name__ == "__main__":
    main()
