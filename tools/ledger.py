"""The ledger of equations: what is claimed, what computes it, what tests it.

    make test, or after a full pytest run:  python tools/ledger.py

Labels stand in the notebooks, in MyST `$$ … $$ (eq-name)` for an equation that code
computes, `(res-name)` for a result that no function computes. A function claims an
equation by naming it in its docstring, :eq:`eq-name`. A test claims it by
`@pytest.mark.equation("eq-name")`. A hole fails:

- an equation without a function, or without a passed test;
- a function whose equation no test executes it for: coverage contexts prove that a test
  of that label ran a line of the function's body;
- a result without a passed test;
- a label that is named but stands nowhere, stands twice or has another form.

It reads what pytest left behind: _build/equations.json (tests/conftest.py) and the
coverage data with one context a test.
"""

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coverage import CoverageData

from forms import in_myst
from import_graph import module_files
from notebooks import chapters, code_cells, prose_lines, python_source, read

LABELLED = re.compile(r"\$\$[ \t]*\(([^)\s]+)\)[ \t]*$", re.M)
DIRECTIVE = re.compile(r"^[`:]{3,}\{math\}.*\n(?::.*\n)*?:label:[ \t]*(\S+)", re.M)
NAMED = re.compile(r":eq:`(?:[^`<]*<)?([\w-]+)>?`")
FORM = re.compile(r"(?:eq|res)-[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass
class Function:
    """A function, method or class and the lines that prove that it ran."""

    name: str
    labels: set[str]
    lines: set[int]
    file: Path | None = None  # of an exported module
    notebook: str | None = None  # of a function that only a notebook has


@dataclass
class Ledger:
    labels: dict[str, str] = field(default_factory=dict)  # label -> where it stands
    functions: list[Function] = field(default_factory=list)
    tests: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    holes: list[str] = field(default_factory=list)


def labels_of(notebook) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from LABELLED.findall("\n".join(prose_lines(cell)))
            yield from DIRECTIVE.findall(cell.source)


def body_lines(node: ast.AST) -> set[int]:
    """The lines inside ``node`` that run only when it is used.

    Of a class, that means its methods: making an object computes no equation, unless
    the class has no other method.
    """
    inside = [
        inner
        for inner in ast.walk(node)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    working = [f for f in inside if f.name not in ("__init__", "__post_init__")]
    lines: set[int] = set()
    for inner in working or inside:
        body = inner.body
        if ast.get_docstring(inner) is not None:
            body = body[1:]
        if body:
            lines |= set(range(body[0].lineno, inner.end_lineno + 1))
    return lines


def functions_in(source: str, prefix: str = "") -> Iterator[Function]:
    """Everything with a docstring that names an equation."""

    def visit(node: ast.AST, prefix: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if labels := set(NAMED.findall(ast.get_docstring(child) or "")):
                    yield Function(name, labels, body_lines(child))
                yield from visit(child, f"{name}.")

    yield from visit(ast.parse(source), prefix)


def executed_lines(data: CoverageData, file: Path) -> dict[str, set[int]]:
    """Test -> the lines of ``file`` that its body ran."""
    found: dict[str, set[int]] = defaultdict(set)
    for line, contexts in data.contexts_by_lineno(str(file)).items():
        for context in contexts:
            test, _, phase = context.rpartition("|")
            if phase == "run":
                found[test].add(line)
    return found


def collect(root: Path) -> Ledger:
    """Read notebooks, modules and the record of the tests."""
    ledger = Ledger()
    for path in chapters(root):
        notebook = read(path)
        for label in labels_of(in_myst(notebook, root)):
            if not FORM.fullmatch(label):
                ledger.holes.append(
                    f"notebooks/{path.name}: label `{label}` is not of the form "
                    "eq-name or res-name (a step carries no label)"
                )
            elif label in ledger.labels:
                ledger.holes.append(
                    f"`{label}` stands twice: in {ledger.labels[label]} and {path.stem}"
                )
            ledger.labels.setdefault(label, path.stem)
        for cell in code_cells(notebook):
            if not re.match(r"#\|[ \t]*export", cell.source):
                for function in functions_in(python_source(cell)):
                    function.notebook = path.stem
                    ledger.functions.append(function)
    for module, path in module_files(root).items():
        if module.split(".")[0] != "book":
            source = path.read_text(encoding="utf-8")
            for function in functions_in(source, f"aiayn.{module}."):
                function.file = path
                ledger.functions.append(function)
    return ledger


def find_holes(ledger: Ledger, tests: dict[str, dict], data: CoverageData) -> None:
    """Add to ``ledger.holes`` what has no counterpart."""
    for test, entry in tests.items():
        for label in entry["labels"]:
            if label not in ledger.labels:
                ledger.holes.append(f"{test} names `{label}`, which stands nowhere")
            elif entry["passed"]:
                ledger.tests[label].append(test)
    executed: dict[Path, dict[str, set[int]]] = {}
    claimed: set[str] = set()
    for function in ledger.functions:
        if function.file and function.file not in executed:
            executed[function.file] = executed_lines(data, function.file)
        for label in sorted(function.labels):
            name = function.name
            if label not in ledger.labels:
                ledger.holes.append(f"{name} names `{label}`, which stands nowhere")
                continue
            claimed.add(label)
            if function.notebook and ledger.labels[label] != function.notebook:
                ledger.holes.append(
                    f"{name} in a cell of {function.notebook} names `{label}`, which "
                    f"stands in {ledger.labels[label]}: export the function"
                )
            if function.file:
                ran = executed[function.file]
                proof = any(ran[t] & function.lines for t in ledger.tests[label])
            else:
                call = f"{function.notebook}:{name}"
                proof = any(call in tests[t]["functions"] for t in ledger.tests[label])
            if ledger.tests[label] and not proof:
                ledger.holes.append(
                    f"{name} implements `{label}`, but no test of it executes {name}: "
                    + ", ".join(ledger.tests[label])
                )
    for label, where in ledger.labels.items():
        if label.startswith("eq-") and label not in claimed:
            ledger.holes.append(f"{where}: no function's docstring names `{label}`")
        if not ledger.tests[label]:
            ledger.holes.append(f"{where}: no passed test names `{label}`")
        if label.startswith("res-") and label in claimed:
            ledger.holes.append(
                f"{where}: a function names `{label}`: what code computes is an `eq-…`"
            )


def check(root: Path, coverage_file: Path) -> Ledger:
    record = root / "_build" / "equations.json"
    for path in (record, coverage_file):
        if not path.exists():
            raise SystemExit(f"{path} is missing: run pytest with coverage first")
    data = CoverageData(str(coverage_file))
    data.read()
    ledger = collect(root)
    find_holes(ledger, json.loads(record.read_text()), data)
    return ledger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--coverage", type=Path, help="default: ROOT/_build/coverage")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    ledger = check(root, arguments.coverage or root / "_build" / "coverage")
    equations = sum(label.startswith("eq-") for label in ledger.labels)
    tests = {test for found in ledger.tests.values() for test in found}
    if ledger.holes:
        print("\n".join(ledger.holes))
    print(
        f"{equations} equations, {len(ledger.labels) - equations} results, "
        f"{len(ledger.functions)} functions, {len(tests)} tests, "
        f"{len(ledger.holes)} holes"
    )
    sys.exit(bool(ledger.holes))


if __name__ == "__main__":
    main()
