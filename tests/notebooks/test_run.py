"""`make run` stores what the cells give; nbval turns red when that is no longer so."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from run import run
from verify import verify

FIRST = "notebooks/02_first.ipynb"
SECOND = "notebooks/03_second.ipynb"


def tree(root) -> dict[str, bytes]:
    patterns = ("notebooks/*", "src/aiayn/*.py", "text/*")
    return {
        str(p.relative_to(root)): p.read_bytes() for g in patterns for p in root.glob(g)
    }


def test_a_second_run_changes_no_byte(project, capfd):
    before = tree(project)
    assert run(project)
    assert tree(project) == before
    assert len(before) == 2 + 4 + 2
    printed, errors = capfd.readouterr()
    assert printed.count("no change") == 2
    assert errors == ""  # no warning of the kernel among the progress lines


def test_what_a_run_leaves_behind(finished):
    notebook = json.loads((finished / FIRST).read_text())
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert [c["id"] for c in notebook["cells"]] == [f"02-00{i}" for i in range(1, 7)]
    assert [c["execution_count"] for c in code] == [1, 2, 3, 4]
    assert all(set(c["metadata"]) <= {"tags"} for c in code)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert "version" not in notebook["metadata"]["language_info"]
    stream, result = code[-1]["outputs"]
    assert (stream["text"], result["data"]) == (["8\n"], {"text/plain": ["True"]})
    assert result["execution_count"] == 4


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ("raise RuntimeError('planted')", "planted"),
        ("%no_such_magic", "no_such_magic"),
    ],
)
def test_a_broken_cell_fails_the_run(project, edit, capsys, planted, message):
    before = (project / FIRST).read_bytes()
    edit(project / "text/02_first.md", "print(double(4))", planted)
    assert not run(project, "2")
    assert message in capsys.readouterr().out
    assert b'"text": [\n      "8' in before  # and the text keeps the edit
    assert planted in (project / "text/02_first.md").read_text()


def red_cells(root) -> set[tuple[str, str]]:
    """Notebook and cell of each failure in the last comparison."""
    report = ElementTree.parse(root / "_build/reports/outputs.xml")
    return {
        (case.get("classname").split(".")[-2], case.get("name"))
        for case in report.iter("testcase")
        if case.find("failure") is not None
    }


def test_true_outputs_pass(project):
    assert verify(project) == []
    assert red_cells(project) == set()


def test_each_planted_fault_turns_its_cell_red(project, edit, edit_notebook):
    edit(project / FIRST, "print(double(4))", "raise RuntimeError('planted')")
    edit(project / SECOND, "#| default_exp second", "%no_such_magic")
    edit(project / "src/aiayn/first.py", "FACTOR = 2", "FACTOR = 3")  # stale outputs

    def skip_setup(notebook):
        notebook["cells"][1]["metadata"]["tags"] = ["nbval-skip"]

    edit_notebook(project / FIRST, skip_setup)
    found = verify(project, workers=1)
    assert red_cells(project) == {
        ("02_first", "Cell 3"),  # the planted error
        ("03_second", "Cell 1"),  # the unknown magic
        ("03_second", "Cell 5"),  # quadruple(3), of the changed constant
    }
    assert found == [
        "pytest ended with exit code 1",
        "02_first.ipynb: 4 code cells, 3 compared",
    ]


def test_a_notebook_without_tests_fails_the_comparison(project, edit_notebook):
    def drop_code(notebook):
        cells = notebook["cells"]
        notebook["cells"] = [c for c in cells if c["cell_type"] == "markdown"]

    edit_notebook(project / FIRST, drop_code)
    assert verify(project, "2") == [
        "pytest ended with exit code 5",
        "02_first.ipynb: 0 code cells, 0 compared",
    ]
