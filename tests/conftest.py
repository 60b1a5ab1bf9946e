"""What every test shares: a fixed environment, shape checks, the equations' ledger.

Shapes and types in signatures are checked in each call, since the package is imported
through jaxtyping's hook with beartype. The tests that carry
``@pytest.mark.equation("eq-…")`` are written to ``_build/equations.json``, with their
outcome, for tools/ledger.py.
"""

import ast
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Before torch is loaded: what the stored outputs of the book were made with.
for variable, value in {
    "AIAYN_DEVICE": "cpu",
    "ATEN_CPU_CAPABILITY": "avx2",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(variable, value)

import jaxtyping
import pytest

if "aiayn" in sys.modules:
    raise RuntimeError("aiayn was imported before its shape checks were installed")
jaxtyping.install_import_hook("aiayn", "shape_checks.checker")

import torch

torch.set_num_threads(1)

NO_GPU = "needs an NVIDIA GPU (torch.cuda.is_available() is false)"
outcomes: dict[str, dict] = {}


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """Switch the shape checks off: a test of bad input wants our own message."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def notebook_function(request: pytest.FixtureRequest) -> Callable:
    """Get a function that a notebook defines in a cell without exporting it.

    ``notebook_function("02_scaled_dot_product", "score_variance")``. Its surroundings
    are the notebook's imports, definitions and literal constants; nothing else runs.
    A call counts for the ledger as an execution of that function.
    """
    called: list[str] = []
    request.node.user_properties.append(("notebook_functions", called))

    def get(notebook: str, name: str) -> Callable:
        path = request.config.rootpath / "notebooks" / f"{notebook}.ipynb"
        namespace = {"__name__": notebook}
        for node in definitions(path):
            exec(compile(ast.Module([node], []), path.name, "exec"), namespace)
        function = namespace[name]

        def counted(*args, **kwargs):
            called.append(f"{notebook}:{name}")
            return function(*args, **kwargs)

        return counted

    return get


def definitions(path: Path) -> Iterator[ast.stmt]:
    """The imports, definitions and literal constants of a notebook, in order."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or "default_exp" in source:
            continue
        try:
            body = ast.parse(source).body
        except SyntaxError:  # the first cell's %pip
            continue
        for node in body:
            match node:
                case (
                    ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.ClassDef()
                ):
                    yield node
                case ast.Assign(targets=[ast.Name() | ast.Tuple()], value=value):
                    try:
                        ast.literal_eval(value)
                    except ValueError:
                        continue
                    yield node


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
        for marker in item.iter_markers("equation"):
            if not marker.args or marker.kwargs:
                raise pytest.UsageError(f"{item.nodeid}: equation() names no label")
            # travels with the report, so that it also arrives from pytest-xdist
            item.user_properties.append(("equations", list(marker.args)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    labels = [
        x for key, value in report.user_properties if key == "equations" for x in value
    ]
    if not labels:
        return
    entry = outcomes.setdefault(
        report.nodeid, {"labels": sorted(set(labels)), "passed": False, "functions": []}
    )
    if report.when == "call":
        entry["passed"] = report.passed
        for key, value in report.user_properties:
            if key == "notebook_functions":
                entry["functions"] = sorted({*entry["functions"], *value})
    elif report.failed:
        entry["passed"] = False


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # the controller has every report
    path = session.config.rootpath / "_build" / "equations.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(outcomes, indent=1, sort_keys=True))
