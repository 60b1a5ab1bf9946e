"""Chapters use earlier chapters only, in this project and in a small one."""

from conftest import ROOT

from import_graph import Package, forward_edges, order
from notebooks import read

FIRST = "notebooks/02_first.ipynb"


def test_the_book_has_no_forward_edge():
    assert forward_edges(ROOT) == []
    assert list(order(ROOT).values()) == sorted(order(ROOT).values())


def test_the_edges_of_the_small_project(finished):
    package = Package(finished)
    assert package.edges("second") == {"", "first", "tokens"}
    assert package.notebook_uses(read(finished / FIRST)) == set()
    second = read(finished / "notebooks/03_second.ipynb")
    assert package.notebook_uses(second) == {"", "first", "tokens"}
    assert package.uses("from aiayn import double") == {"", "first"}
    assert package.uses("import aiayn\naiayn.quadruple(1)") == {"", "second"}


def test_a_module_that_imports_a_later_one(project, edit):
    edit(project / "src/aiayn/first.py", "FACTOR = 2", "from .second import quadruple")
    assert forward_edges(project) == ["src/aiayn/first.py imports second"]


def test_a_module_that_imports_the_package(project, edit):
    edit(project / "src/aiayn/second.py", "from .first import", "from aiayn import")
    assert forward_edges(project) == ["src/aiayn/second.py imports the whole package"]


def test_a_notebook_uses_a_later_module_in_a_preview_only(project, edit):
    edit(project / FIRST, "print(double(4))", "from aiayn.second import quadruple")
    assert len(forward_edges(project)) == 1
    assert "02-006 uses second (chapter 3)" in forward_edges(project)[0]
    edit(project / FIRST, "## Twice", "## Preview of chapter 3")
    assert forward_edges(project) == []
