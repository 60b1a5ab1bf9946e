"""Two pages whose code must not rot: every block of the register and the errata runs.

The first block of ``book/differences.md`` is the set-up of both pages. Each other block
runs in a fresh copy of what it defined, asserts something, and is the only one under
its heading.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

BOOK = Path(__file__).parents[1] / "book"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
TARGET = re.compile(r"^\(([\w-]+)\)=$", re.M)


@dataclass(frozen=True)
class Section:
    """The text behind one target, up to the next target or heading of any page part."""

    page: str
    anchor: str
    text: str

    @property
    def blocks(self) -> list[str]:
        return BLOCK.findall(self.text)


def text_of(page: str) -> str:
    return (BOOK / f"{page}.md").read_text("utf8")


@cache
def sections(page: str) -> tuple[Section, ...]:
    """Everything that has a target of its own."""
    anchors = list(TARGET.finditer(text_of(page)))
    ends = [*(match.start() for match in anchors), None][1:]
    return tuple(
        Section(page, match[1], text_of(page)[match.end() : end])
        for match, end in zip(anchors, ends, strict=True)
    )


def asserts(code: str) -> int:
    """How many assertions the block makes, torch's own among them."""
    nodes = list(ast.walk(ast.parse(code)))
    calls = [n.func for n in nodes if isinstance(n, ast.Call)]
    return sum(isinstance(n, ast.Assert) for n in nodes) + sum(
        isinstance(f, ast.Attribute) and f.attr == "assert_close" for f in calls
    )


def set_up() -> dict:
    """What the first block of the register defines."""
    namespace = {"__name__": "differences"}
    exec(compile(BLOCK.findall(text_of("differences"))[0], "set-up", "exec"), namespace)
    return namespace


WITH_BLOCK = [
    pytest.param(section, id=section.anchor)
    for page in ("differences", "errata")
    for section in sections(page)
    if section.blocks
]


@pytest.mark.parametrize("section", WITH_BLOCK)
def test_a_block_runs_and_holds(section, capsys):
    (code,) = section.blocks
    assert asserts(code), f"the block of {section.anchor} asserts nothing"
    with torch.random.fork_rng(devices=[]):
        exec(compile(code, f"{section.page}.md, {section.anchor}", "exec"), set_up())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("page", ["differences", "errata"])
def test_every_block_is_found(page):
    """A block outside of the sections, or a fence spelt otherwise, would never run."""
    found = [code for section in sections(page) for code in section.blocks]
    every = BLOCK.findall(text_of(page))
    assert every[1 if page == "differences" else 0 :] == found
    assert text_of(page).count("```") == 2 * len(every)
    assert len(found) >= {"differences": 20, "errata": 6}[page]


def test_the_table_has_a_row_for_each_topic_and_links_it():
    table = text_of("differences").split("## At a glance")[1].split("```python")[0]
    rows = re.findall(r"^\| \[[^\]]+\]\(#([\w-]+)\) \|", table, re.M)
    topics = [s.anchor for s in sections("differences") if s.anchor.startswith("diff-")]
    assert sorted(set(rows)) == sorted(topics)
    assert all(len(row.split("|")) == 7 for row in table.splitlines() if "|" in row)


@pytest.mark.parametrize("section", sections("differences"), ids=lambda s: s.anchor)
def test_a_topic_names_paper_first_code_copies_effect_and_here(section):
    prose = BLOCK.sub("", section.text)
    if section.anchor.startswith("diff-"):
        for name in ("Paper", "first code", "Effect", "Here"):
            assert re.search(rf"\*\*{name}\*\*", prose, re.I), name
        assert len(section.blocks) == 1


@pytest.mark.parametrize("page", ["differences", "errata"])
def test_links_to_code_name_a_full_commit_and_are_all_used(page):
    text = text_of(page)
    addresses = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text, re.M))
    used = set(re.findall(r"\]\[([\w-]+)\]", text))
    assert used == set(addresses)
    for address in addresses.values():
        if "github.com" in address and "/blob/" in address:
            assert re.search(r"/blob/[0-9a-f]{40}/", address), address


def test_the_block_checker_sees_a_block_without_assertion():
    assert asserts("x = 1\nprint(x)") == 0
    assert asserts("assert True") == asserts("torch.testing.assert_close(1, 1)") == 1
