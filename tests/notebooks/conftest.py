"""A small project of two chapters, made by the real tools, to plant faults in."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from check_notebooks import SETUP
from run import run

FRONT = "---\nkernelspec:\n  display_name: Python 3\n  name: python3\n---\n\n"
SETUP_CELL = SETUP.format(owner="someone", name="somebook", version="1.2.3")


def cell(source: str, tags: str = "") -> str:
    options = f":tags: [{tags}]\n" if tags else ""
    return f"```{{code-cell}}\n{options}\n{source}\n```\n\n"


FIRST = (
    f"{FRONT}# The first chapter\n\nDoubling is *easy*. There is more.\n\n"
    + cell(SETUP_CELL, "remove-cell")
    + cell("#| default_exp first", "remove-cell")
    + "## Twice\n\n$$\ny = 2 x\n$$ (eq-double)\n\n$$\n2 x \\ge x\n$$ (res-grows)\n\n"
    + cell(
        "#| export\n"
        "FACTOR = 2\n\n\n"
        "def double(x):\n"
        '    """Twice ``x``: :eq:`eq-double`."""\n'
        "    return FACTOR * x"
    )
    + cell("print(double(4))\ndouble(1) / 3 < 1")
)
SECOND = (
    f"{FRONT}# The second chapter\n\nIt builds on the first.\n\n"
    + cell(SETUP_CELL, "remove-cell")
    + cell("#| default_exp second", "remove-cell")
    + cell("#| export\nfrom aiayn.first import double\nfrom aiayn.tokens import PAD")
    + "## Four times\n\n$$\nz = 4 x\n$$ (eq-quadruple)\n\n"
    + "$$\ns = x^2\n$$ (eq-square)\n\n"
    + cell(
        "#| export\n"
        "def quadruple(x):\n"
        '    """Four times ``x``: :eq:`eq-quadruple`."""\n'
        "    return double(double(x)) + PAD"
    )
    + cell('def square(x):\n    """:eq:`eq-square`"""\n    return x * x')
    + cell("quadruple(3), square(3)")
)
TESTS = """\
import pytest

from aiayn.first import double
from aiayn.second import quadruple


@pytest.mark.equation("eq-double")
def test_double():
    assert double(3) == 6


@pytest.mark.equation("res-grows")
def test_grows():
    assert double(3) > 3


@pytest.mark.equation("eq-quadruple")
def test_quadruple():
    assert quadruple(3) == 12


@pytest.mark.equation("eq-square")
def test_square(notebook_function):
    assert notebook_function("03_second", "square")(3) == 9
"""
PROJECT = """\
[project]
name = "somebook"

[project.urls]
Homepage = "https://someone.github.io/somebook/"
Repository = "https://github.com/someone/somebook"

[tool.pytest.ini_options]
markers = ["equation(*labels): as in the book", "cuda: as in the book"]
"""
ADDRESS = "https://github.com/someone/somebook"
FILES = {
    "pyproject.toml": PROJECT,
    "README.md": f"See {ADDRESS}.\n",
    "CITATION.cff": f"repository-code: {ADDRESS}\n",
    "_config.yml": (
        "title: A small book\nonly_build_toc_files: true\n"
        "execute:\n  execute_notebooks: 'off'\n"
        f"repository:\n  url: {ADDRESS}\nhtml:\n"
        "  baseurl: https://someone.github.io/somebook/\n"
        "sphinx:\n  config:\n    html_theme_options:\n"
        f"      repository_url: {ADDRESS}\n"
    ),
    "_toc.yml": (
        "format: jb-book\nroot: book/intro\nchapters:\n"
        "- file: notebooks/02_first\n- file: notebooks/03_second\n"
    ),
    "book/intro.md": "# A small book\n\nWelcome.\n",
    "src/aiayn/__init__.py": '"""A small package."""\n\n__version__ = "1.2.3"\n',
    "src/aiayn/tokens.py": '"""Special tokens."""\n\nPAD = 0\n',
    "tests/test_chapters.py": TESTS,
    "text/02_first.md": FIRST,
    "text/03_second.md": SECOND,
}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after `make run`; copy it before changing it."""
    root = tmp_path_factory.mktemp("project")
    (root / "notebooks").mkdir()
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for name in ("conftest.py", "shape_checks.py"):
        shutil.copy2(ROOT / "tests" / name, root / "tests" / name)
    assert run(root)
    return root


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of the project to plant a fault in."""
    return Path(shutil.copytree(finished, tmp_path / "project"))


@pytest.fixture
def edit() -> Callable[[Path, str, str], None]:
    """Replace one passage of a file, which has to be there."""

    def replace(path: Path, old: str, new: str) -> None:
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{old!r} is not in {path.name}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    return replace


@pytest.fixture
def edit_notebook() -> Callable[[Path, Callable[[dict], None]], None]:
    """Change a notebook as data."""

    def change(path: Path, mutate: Callable[[dict], None]) -> None:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        mutate(notebook)
        path.write_text(json.dumps(notebook), encoding="utf-8")

    return change
