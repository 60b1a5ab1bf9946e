"""`make book` on a small book: it executes copies, and only what changed."""

import shutil

import pytest

from book import build_pages, exact_match, execute_all
from notebooks import read, write


def progress(capsys) -> dict[str, str]:
    """Chapter -> what was said of it, without the time."""
    lines = capsys.readouterr().out.splitlines()
    said = dict(line.split(": ", 1) for line in lines if ": " in line)
    return {key: value.split()[-1] for key, value in said.items()}


def test_only_what_changed_runs_again(project, edit, capsys):
    committed = {p: p.read_bytes() for p in project.glob("notebooks/*")}

    assert execute_all(project)
    assert progress(capsys) == {"02_first": "s", "03_second": "s"}
    assert execute_all(project)
    assert progress(capsys) == {"02_first": "unchanged", "03_second": "unchanged"}

    # tokens.py is imported by the second notebook, the first module by both modules
    edit(project / "src/aiayn/tokens.py", "PAD = 0", "PAD = 1")
    assert execute_all(project)
    assert progress(capsys) == {"02_first": "unchanged", "03_second": "s"}
    executed = project / "_build/stage/notebooks/03_second.ipynb"
    assert "(13, 9)" in str(read(executed).cells[-1].outputs)

    assert {p: p.read_bytes() for p in project.glob("notebooks/*")} == committed


def test_new_text_runs_nothing(project, edit, capsys):
    assert execute_all(project)
    edit(project / "notebooks/02_first.ipynb", "There is more.", "Much more.")
    executed = project / "_build/stage/notebooks/02_first.ipynb"
    before = [cell.get("outputs") for cell in read(executed).cells]
    capsys.readouterr()
    assert execute_all(project)
    assert progress(capsys) == {"02_first": "unchanged", "03_second": "unchanged"}
    assert "Much more." in executed.read_text(encoding="utf-8")
    assert [cell.get("outputs") for cell in read(executed).cells] == before


def test_a_module_two_steps_away_counts(project, edit, capsys):
    third = project / "notebooks/04_third.ipynb"
    shutil.copy(project / "notebooks/02_first.ipynb", third)
    edit(third, "print(double(4))", "from aiayn.second import quadruple")
    assert execute_all(project, "4")
    assert progress(capsys) == {"04_third": "s"}
    edit(project / "src/aiayn/first.py", "FACTOR = 2", "FACTOR = 5")
    assert execute_all(project, "4")
    assert progress(capsys) == {"04_third": "s"}


def test_a_failing_cell_stops_the_book(project, edit, capsys):
    edit(project / "notebooks/02_first.ipynb", "print(double(4))", "1 / 0")
    assert not execute_all(project, "2")
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert not (project / "_build/stage/notebooks/02_first.ipynb").exists()


def test_the_pages(project, edit, capsys):
    source = project / "_build/stage/notebooks"
    shutil.copytree(project / "notebooks", source)
    index = build_pages(project)
    assert index == project / "_build/html/index.html"
    assert "Four times" in (index.parent / "notebooks/03_second.html").read_text()
    assert "pages: unchanged" not in capsys.readouterr().out
    build_pages(project)
    assert "pages: unchanged" in capsys.readouterr().out

    edit(project / "book/intro.md", "Welcome.", "{eq}`eq-of-nobody`")
    with pytest.raises(SystemExit, match="were not built"):
        build_pages(project)
    assert "eq-of-nobody" in capsys.readouterr().out
    assert index.exists()  # the last good pages stay


def test_the_copy_task_is_read_from_the_executed_copy(project):
    assert exact_match(project) == "this book has no copy task"
    notebook = read(project / "notebooks/02_first.ipynb")
    stage = project / "_build/stage/notebooks"
    stage.mkdir(parents=True)
    write(notebook, stage / "14_copy_task.ipynb")
    assert exact_match(project) == "14_copy_task.ipynb printed no exact match"
    notebook.cells[-1].outputs[0].text = "steps: many\nexact match: 99.50 %\n"
    write(notebook, stage / "14_copy_task.ipynb")
    assert exact_match(project) == "exact match on the copy task: 99.50 %"
