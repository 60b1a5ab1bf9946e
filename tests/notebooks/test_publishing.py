"""Workflows, Binder and JupyterLab: what others run must exist and be complete."""

import ast
import re
import sys

import pytest
import tomllib
import yaml
from conftest import ROOT

from lab import command
from notebooks import chapters, code_cells, python_source, read

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def using(name, path):
    return [s["with"] for s in steps(path) if s.get("uses", "").startswith(name)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_yaml_and_runs_what_exists(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {
        "name",
        True,
        "permissions",
        "jobs",
    } <= workflow.keys()  # `on` reads as True
    targets = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.M)
    for step in steps(path):
        for target in re.findall(r"^\s*make (\w+)", step.get("run", ""), re.M):
            assert target in targets, target
        for script in re.findall(r"bash (\S+)", step.get("run", "")):
            assert (ROOT / script).is_file()


def test_the_pages_carry_the_facts_of_the_run_that_passed():
    test, book = (ROOT / ".github" / "workflows" / f"{n}.yml" for n in ("test", "book"))
    [kept] = [
        u for u in using("actions/upload-artifact", test) if u["name"] == "verified"
    ]
    [taken] = using("actions/download-artifact", book)
    assert kept["path"] == "_build/verified.json"
    assert (taken["name"], taken["path"]) == ("verified", "_build")
    assert "workflow_run.id" in taken["run-id"]  # of this run, not of any
    workflow = yaml.safe_load(book.read_text(encoding="utf-8"))
    assert workflow["permissions"]["actions"] == "read"
    assert workflow[True]["workflow_run"]["workflows"] == [
        yaml.safe_load(test.read_text(encoding="utf-8"))["name"]
    ]
    runs = [step.get("run", step.get("uses", "")) for step in steps(book)]
    order = ["download-artifact", "make site", "make pdf", "upload-pages", "deploy"]
    places = [next(i for i, r in enumerate(runs) if what in r) for what in order]
    assert places == sorted(places)


def imported():
    """Top-level names that the notebooks import, the standard library aside."""
    found = set()
    for path in chapters(ROOT):
        for cell in code_cells(read(path)):
            for node in ast.walk(ast.parse(python_source(cell))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names)


def test_binder_has_every_package_that_notebooks_import():
    lines = (ROOT / ".binder" / "requirements.txt").read_text().splitlines()
    lines = [line for line in lines if line and line[0] not in "#-"]
    names = {re.split(r"[=\[]", line)[0]: line for line in lines}
    assert names.pop(".") == ".[figures,train]"  # this checkout, with these extras
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"figures", "train"} <= extras["optional-dependencies"].keys()
    assert imported() - {"aiayn", "IPython"} <= names.keys()
    pinned = (ROOT / "requirements.txt").read_text().splitlines()
    assert set(names.values()) <= set(pinned)  # what the outputs were made with


def test_binder_takes_torch_for_a_cpu():
    text = (ROOT / ".binder" / "requirements.txt").read_text()
    assert "--extra-index-url https://download.pytorch.org/whl/cpu\n" in text
    assert (ROOT / ".binder" / "runtime.txt").read_text().strip() == "python-3.11"


def test_make_lab_opens_all_notebooks_or_one():
    assert command(ROOT)[1:] == [
        "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT / 'notebooks'}",
    ]  # fmt: skip
    assert command(ROOT, "3")[-1] == str(ROOT / "notebooks" / "03_multi_head.ipynb")
    with pytest.raises(SystemExit, match="no notebook notebooks/77_"):
        command(ROOT, "77")
