"""The search finds a term of the glossary by its name, before pages that use it.

Sphinx's index knows titles and objects of programming languages; a term of the glossary
is neither, so it enters as a title, with its own address.
"""

import json
import re
from pathlib import Path

GLOSSARY = "book/glossary"
HEAD, TAIL = "Search.setIndex(", ")"
TERM = re.compile(r"^\(term-([a-z0-9-]+)\)=\n(\*\*.*)$", re.M)


def terms(text):
    """The names of each term in the glossary's source, with its anchor."""
    for anchor, names in TERM.findall(text):
        for name in re.findall(r"\*\*(.+?)\*\*", names):
            yield name, f"term-{anchor}"


def add_terms(app, exception):
    index = Path(app.outdir, "searchindex.js")
    if exception or app.builder.format != "html" or GLOSSARY not in app.env.found_docs:
        return
    text = index.read_text("utf8").removeprefix(HEAD).removesuffix(TAIL)
    entries = json.loads(text)
    page = entries["docnames"].index(GLOSSARY)
    for name, anchor in terms(Path(app.env.doc2path(GLOSSARY)).read_text("utf8")):
        entries["alltitles"].setdefault(name, []).append([page, anchor])
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
    index.write_text(f"{HEAD}{text}{TAIL}", "utf8")


def setup(app):
    app.connect("build-finished", add_terms, priority=910)  # landing_page: 900
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
