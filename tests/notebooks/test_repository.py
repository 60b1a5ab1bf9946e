"""The repository's address is one setting; every copy of it agrees."""

from conftest import ROOT

from repository import address, problems, rewrite


def test_every_place_of_this_project_agrees():
    assert problems(ROOT) == []


def test_a_wrong_or_missing_address_is_found(project, edit):
    assert problems(project) == []
    edit(project / "README.md", "someone/somebook", "other/somebook")
    assert problems(project) == [
        "README.md: `github.com/someone/somebook` is not there",
        "README.md: names other/somebook, expected someone/somebook",
    ]


def test_one_command_changes_every_place(project):
    changed = rewrite(project, "vaswani", "attention")
    assert address(project) == ("vaswani", "attention")
    assert problems(project) == []
    assert {"README.md", "_config.yml", "notebooks/02_first.ipynb"} <= set(changed)
    committed = [
        p for p in project.rglob("*.*") if p.is_file() and "text" not in p.parts
    ]
    left = [p for p in committed if "someone" in p.read_text(errors="replace")]
    assert [p for p in left if p.suffix != ".pyc"] == []
