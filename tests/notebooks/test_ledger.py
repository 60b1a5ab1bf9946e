"""The ledger of equations turns red on each kind of hole."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from environment import variables
from ledger import check


def run_tests(root: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    command += [
        "-p",
        "pytest_cov",
        "--cov=aiayn",
        "--cov-context=test",
        "--cov-report=",
    ]
    env = variables(root) | {"COVERAGE_FILE": str(root / "_build" / "coverage")}
    env = {key: value for key, value in env.items() if not key.startswith("PYTEST_")}
    env["COVERAGE_CORE"] = "ctrace"
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # quicker
    return subprocess.run(command, cwd=root, env=env).returncode


def holes(root: Path) -> list[str]:
    return check(root, root / "_build" / "coverage").holes


@pytest.fixture(scope="module")
def tested(finished, tmp_path_factory) -> Path:
    """The project after its tests have run."""
    root = tmp_path_factory.mktemp("tested") / "project"
    shutil.copytree(finished, root)
    assert run_tests(root) == 0
    return root


def test_no_hole(tested):
    assert holes(tested) == []
    record = json.loads((tested / "_build/equations.json").read_text())
    assert record["tests/test_chapters.py::test_square"] == {
        "functions": ["03_second:square"],
        "labels": ["eq-square"],
        "passed": True,
    }


def plant(tested: Path, name: str, old: str, new: str) -> list[str]:
    """The holes with one passage of a file changed, which is then put back."""
    path = tested / name
    before = path.read_text(encoding="utf-8")
    assert old in before
    path.write_text(before.replace(old, new), encoding="utf-8")
    try:
        return holes(tested)
    finally:
        path.write_text(before, encoding="utf-8")


def test_an_equation_without_a_function(tested):
    found = plant(tested, "src/aiayn/first.py", ":eq:`eq-double`", "twice")
    assert found == ["02_first: no function's docstring names `eq-double`"]


def test_an_equation_without_a_test(tested):
    found = plant(tested, "_build/equations.json", '"eq-double"', '"res-grows"')
    assert found == ["02_first: no passed test names `eq-double`"]


def test_a_label_that_stands_nowhere(tested):
    found = plant(tested, "notebooks/02_first.ipynb", 'id=\\"eq-double', 'id=\\"double')
    assert found == [
        "tests/test_chapters.py::test_double names `eq-double`, which stands nowhere",
        "aiayn.first.double names `eq-double`, which stands nowhere",
    ]


def test_a_label_that_stands_twice(tested):
    found = plant(
        tested, "notebooks/03_second.ipynb", 'id=\\"eq-quadruple', 'id=\\"eq-double'
    )
    assert "`eq-double` stands twice: in 02_first and 03_second" in found


def test_a_label_of_another_form(tested):
    found = plant(
        tested, "notebooks/02_first.ipynb", '\\\\tag{2.2}\\n",\n    "$$', "$$ (grows)"
    )
    assert "label `grows` is not of the form" in found[0]


def test_a_cell_function_of_another_notebook(tested):
    found = plant(
        tested, "notebooks/03_second.ipynb", ":eq:`eq-square`", ":eq:`eq-double`"
    )
    assert any("export the function" in hole for hole in found)


def test_tests_that_prove_nothing(tested, tmp_path):
    """One never calls, one is skipped, one fails, one names an unknown label."""
    root = Path(shutil.copytree(tested, tmp_path / "project"))
    tests = root / "tests/test_chapters.py"
    text = tests.read_text()
    for old, new in {
        "assert double(3) == 6": "assert 3 + 3 == 6",
        "assert quadruple(3) == 12": "pytest.skip('not today')",
        "assert double(3) > 3": "assert double(3) < 3",
        "assert notebook_function(": "assert 9 or notebook_function(",
    }.items():
        assert old in text
        text = text.replace(old, new)
    text += "\n\n@pytest.mark.equation('eq-unknown')\ndef test_unknown():\n    pass\n"
    tests.write_text(text)
    assert run_tests(root) == 1
    found = "\n".join(holes(root))
    assert "aiayn.first.double implements `eq-double`, but no test of it" in found
    assert "no passed test names `eq-quadruple`" in found
    assert "no passed test names `res-grows`" in found
    assert "square implements `eq-square`, but no test of it executes" in found
    assert "test_unknown names `eq-unknown`, which stands nowhere" in found
    assert len(holes(root)) == 5
