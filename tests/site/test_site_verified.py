"""The footer says what was executed and verified, and never more."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import aiayn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import verified  # noqa: E402
from verified import STORED, verdict  # noqa: E402

RUN = {"date": "2026-03-01", "processor": "A CPU @ 2 GHz", "torch": "2.13.0"}
CHAPTERS = {f"notebooks/{name}" for name in ("01_a", "02_b", "03_c")}
LATER = RUN | {"date": "2026-11-30"}


@pytest.mark.parametrize("name", ["book/intro", "notebooks/01_a", "search"])
def test_after_all_checks(name):
    facts = {"passed": RUN | {"commit": "1234567890", "inputs": "…"}}
    assert verdict(facts, name, CHAPTERS) == (
        "Executed with torch 2.13.0 on 1 March 2026, A CPU @ 2 GHz, all checks passed"
    )


def test_after_an_execution_on_the_reader_s_machine():
    facts = {"executed": {"01_a": RUN, "03_c": LATER}}
    assert verdict(facts, "notebooks/01_a", CHAPTERS) == (
        "Executed here with torch 2.13.0 on 1 March 2026, A CPU @ 2 GHz, "
        "every check in its cells passed"
    )
    assert verdict(facts, "notebooks/02_b", CHAPTERS) == STORED
    assert verdict(facts, "book/intro", CHAPTERS) == (
        "2 of 3 chapters executed here with torch 2.13.0 on 30 November 2026, "
        "A CPU @ 2 GHz, every check in their cells passed"
    )


@pytest.mark.parametrize("name", ["book/intro", "notebooks/01_a", "search"])
@pytest.mark.parametrize("facts", [{}, {"executed": {}}])
def test_without_facts_nothing_is_claimed(facts, name):
    assert verdict(facts, name, CHAPTERS) == STORED


@pytest.mark.parametrize("commit", ["1234567890", None])
def test_the_footer_takes_the_facts_that_stand_beside_the_sources(tmp_path, commit):
    env = SimpleNamespace(found_docs=CHAPTERS | {"book/intro"})
    app = SimpleNamespace(srcdir=tmp_path, env=env)
    facts = {"passed": RUN | {"commit": commit}}
    for found, said in (({}, STORED), (facts, verdict(facts, "search", CHAPTERS))):
        context = {}
        verified.read_facts(app)
        verified.add_verdict(app, "search", "page.html", context, None)
        assert context["verdict"] == said
        assert context["verified_commit"] == (commit if found else None)
        (tmp_path / verified.NAME).write_text(json.dumps(facts), encoding="utf8")


def test_every_page_says_it_with_the_version(page, site):
    text = (site / page).read_text("utf8")
    footers = re.findall(r'<p class="book-footer">(.*?)</p>', text, re.S)
    said = " ".join(re.sub(r"<[^>]+>", "", footers[0]).split())
    assert said.startswith(f"Version {aiayn.__version__}")
    assert STORED in said or "xecuted" in said
