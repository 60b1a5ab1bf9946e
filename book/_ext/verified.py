"""The line in the footer that says what was executed, where and when, and what passed.

The facts stand in ``verified.json`` beside ``_config.yml``, where the tools put them.
Without that file the outputs are those that the authors stored, and nothing more is
said of them.
"""

import datetime
import json
from pathlib import Path

from aiayn import __version__

NAME = "verified.json"
STORED = "Outputs as stored by the authors"


def in_words(date):
    """2026-03-01 as 1 March 2026."""
    day = datetime.date.fromisoformat(date)
    return f"{day.day} {day:%B %Y}"


def executed(run, where=""):
    """With what, when and on what something ran."""
    day = in_words(run["date"])
    return f"executed {where}with torch {run['torch']} on {day}, {run['processor']}"


def capital(text):
    """A sentence's beginning."""
    return text[0].upper() + text[1:]


def verdict(facts, page, chapters):
    """What may be said of a page.

    Args:
        facts: the content of ``verified.json``, {} where there is none.
        page: the page's name; a chapter is named ``notebooks/NN_…``.
        chapters: the names of all chapters.
    """
    if "passed" in facts:
        return capital(f"{executed(facts['passed'])}, all checks passed")
    runs = {f"notebooks/{name}": run for name, run in facts.get("executed", {}).items()}
    if page in runs:
        return capital(
            f"{executed(runs[page], 'here ')}, every check in its cells passed"
        )
    if page in chapters or not runs:
        return STORED
    last = max(runs.values(), key=lambda run: run["date"])
    return (
        f"{len(runs)} of {len(chapters)} chapters {executed(last, 'here ')}, "
        "every check in their cells passed"
    )


def read_facts(app):
    path = Path(app.srcdir, NAME)
    app.facts = json.loads(path.read_text("utf8")) if path.exists() else {}


def add_verdict(app, pagename, templatename, context, doctree):
    chapters = {name for name in app.env.found_docs if name.startswith("notebooks/")}
    context["verdict"] = verdict(app.facts, pagename, chapters)
    context["package_version"] = __version__
    context["verified_commit"] = app.facts.get("passed", {}).get("commit")


def setup(app):
    app.connect("builder-inited", read_facts)
    app.connect("html-page-context", add_verdict)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
