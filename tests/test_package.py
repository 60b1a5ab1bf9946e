"""The package's face: its public names, loaded when first used."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import aiayn

ROOT = Path(__file__).parents[1]
MODULES = sorted(module.name for module in pkgutil.iter_modules(aiayn.__path__))


def run(code: str, **settings) -> str:
    """What a fresh Python prints, without the shape checks of these tests."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        **settings,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@pytest.mark.parametrize("name", aiayn.__all__)
def test_every_public_name_is_there(name):
    assert getattr(aiayn, name) is getattr(aiayn, name)
    assert name in dir(aiayn)


def test_public_names_come_from_the_modules_that_export_them():
    for name, module in aiayn._MODULE_OF.items():
        home = importlib.import_module(f"aiayn.{module}")
        assert name in home.__all__, f"{module}.__all__ lacks {name}"
        assert getattr(aiayn, name) is getattr(home, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'aiayn' has no attribute 'nope'"):
        aiayn.nope  # noqa: B018
    with pytest.raises(ImportError, match="nope"):
        from aiayn import nope  # noqa: F401


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", aiayn.__version__)
    assert version("aiayn") == aiayn.__version__


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_named_like_what_it_holds(module):
    """``aiayn.attention`` has to be one thing, whatever was imported before."""
    assert module not in aiayn._MODULE_OF
    home = importlib.import_module(f"aiayn.{module}")
    assert module not in getattr(home, "__all__", ())


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module):
    home = importlib.import_module(f"aiayn.{module}")
    assert len(home.__doc__.strip()) > 20
    for name in getattr(home, "__all__", ()):
        thing = getattr(home, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            assert inspect.getdoc(thing), f"{module}.{name} has no docstring"


def test_importing_loads_nothing_and_changes_nothing():
    """Quick, silent, and without a trace in torch's global state."""
    printed = run(
        "import sys, aiayn\n"
        "assert 'torch' not in sys.modules, 'the bare import loads torch'\n"
        "import random, torch\n"
        "state = random.getstate(), torch.get_rng_state()\n"
        "settings = torch.get_default_dtype(), torch.get_num_threads(), "
        "torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()\n"
        "for name in aiayn.__all__: getattr(aiayn, name)\n"
        "assert random.getstate() == state[0]\n"
        "assert torch.equal(torch.get_rng_state(), state[1])\n"
        "assert settings == (torch.get_default_dtype(), torch.get_num_threads(), "
        "torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    assert printed == ""


def test_one_broken_chapter_does_not_block_the_others(tmp_path):
    """A module that cannot be imported is noticed only by who asks for its names."""
    package = tmp_path / "aiayn"
    package.mkdir()
    for path in (ROOT / "src" / "aiayn").glob("*.py"):
        (package / path.name).write_bytes(path.read_bytes())
    (package / "copy_task.py").write_text(
        "raise RuntimeError('this chapter is broken')"
    )
    printed = run(
        "import aiayn\n"
        "print(aiayn.__file__)\n"
        "aiayn.Transformer, aiayn.train, aiayn.greedy_decode\n"
        "try:\n    aiayn.CopyTask\n"
        "except RuntimeError as error:\n    print(error)\n",
        cwd=tmp_path,
    )
    file, error = printed.splitlines()
    assert Path(file).is_relative_to(tmp_path)
    assert error == "this chapter is broken"


GUARD = "__name__ == '__main__'"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "src" / "aiayn").glob("*.py")), ids=lambda path: path.stem
)
def test_modules_do_nothing_but_define(path):
    """At the top of a module: imports, definitions, constants, a docstring."""
    allowed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        guard = isinstance(node, ast.If) and ast.unparse(node.test) == GUARD
        runs = guard and path.stem == "__main__"
        assert isinstance(node, allowed) or docstring or runs, f"line {node.lineno}"
