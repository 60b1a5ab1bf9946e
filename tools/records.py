"""What the stored training records share: a hash of what they rest on, and a command.

A record is a JSON file in src/aiayn/book/data/ that took minutes to make. It carries a
hash of its inputs: the code of modules and of the tool's own measuring functions, the
settings, and the pinned versions of what the package runs on. What changes no number
does not enter: comments, docstrings, annotations, imports, checks of arguments.
"""

import argparse
import ast
import datetime
import hashlib
import json
import platform
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT

DATA = Path("src", "aiayn", "book", "data")

# Fields of syntax trees that say nothing about what runs, or differ between Pythons.
IGNORED = {
    *("annotation", "returns", "ctx", "kind"),
    *("type_comment", "type_ignores", "type_params"),
}


def irrelevant(statement: ast.stmt) -> bool:
    """Whether a statement cannot change a number: an import, a check, an error."""
    match statement:
        case ast.Raise() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):  # a docstring
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.FunctionDef(name=name):
            return name.startswith("check_")
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name.startswith("check_")
        case ast.If(body=body, orelse=[]):
            return all(map(irrelevant, body))
    return False


def essence(node: object) -> str:
    """What of a syntax tree decides what a program computes."""
    if isinstance(node, list):
        kept = (x for x in node if not (isinstance(x, ast.stmt) and irrelevant(x)))
        return "[" + ",".join(map(essence, kept)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    is_field = isinstance(node, ast.AnnAssign)  # of a dataclass: its type counts
    fields = (
        f"{name}={essence(value)}"
        for name, value in ast.iter_fields(node)
        if name not in IGNORED or (name == "annotation" and is_field)
    )
    return f"{type(node).__name__}({','.join(fields)})"


def code_hash(
    root: Path, modules: Iterable[str], tool: Path, measured: Sequence[str], settings
) -> str:
    """A hash of modules, of a tool's measuring functions, its settings and the pins."""
    digest = hashlib.sha256()
    for module in modules:
        path = root / "src" / "aiayn" / f"{module}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        digest.update(f"{module}: {essence(tree)}\n".encode())
    for node in ast.parse(tool.read_text(encoding="utf-8")).body:
        if getattr(node, "name", None) in measured:
            digest.update(essence(node).encode())
    digest.update(repr(settings).encode())
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {re.match(r"[\w-]+", d)[0] for d in project["project"]["dependencies"]}
    for line in (root / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line.split("==")[0].strip() in needed:
            digest.update(line.split("#")[0].strip().encode())
    return digest.hexdigest()


def processor() -> str:
    """The processor's name, as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.M)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def circumstances() -> dict:
    """When and on what a record was made."""
    import torch

    return {
        "date": datetime.date.today().isoformat(),
        "machine": processor(),
        "threads": 1,
        "torch": torch.__version__.split("+")[0],
    }


@dataclass(frozen=True)
class Record:
    """A stored record and how it is made.

    Attributes:
        path: where it is, below the root.
        inputs: from the root to the hash of everything that its numbers depend on.
        make: from the root to the record without that hash.
        chapter: the notebook that shows it.
    """

    path: Path
    inputs: Callable[[Path], str]
    make: Callable[[Path], dict]
    chapter: int

    def is_current(self, root: Path) -> bool:
        path = root / self.path
        if not path.exists():
            return False
        found = json.loads(path.read_text(encoding="utf-8"))
        return found["inputs"] == self.inputs(root)

    def renew(self, root: Path) -> None:
        """Make and store it, unless the code changes meanwhile."""
        before = self.inputs(root)
        made = self.make(root)
        if self.inputs(root) != before:
            raise SystemExit("the code changed meanwhile: nothing was stored")
        write(root / self.path, {"inputs": before, **made})

    def main(self, description: str) -> None:
        """The command: train if needed, ``--force`` in any case, ``--check`` never."""
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--root", type=Path, default=ROOT)
        parser.add_argument("--check", action="store_true", help="train nothing")
        parser.add_argument("--force", action="store_true", help="train in any case")
        arguments = parser.parse_args()
        root, name = arguments.root.resolve(), self.path.as_posix()
        if self.is_current(root) and not arguments.force:
            print(f"{name} is current")
            return
        then = f"`make run CHAPTER={self.chapter}`"
        if arguments.check:
            sys.exit(
                f"{name} is missing or older than the code that it measures: "
                f"run `make slow`, then {then}"
            )
        self.renew(root)
        print(f"{name} written: now run {then}")


def write(path: Path, record: dict) -> None:
    """Store a record, the same bytes on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")
