"""Train the copy task's model from five seeds, test each, and store the record.

    python tools/copy_seeds.py            train, if what the record rests on changed
    python tools/copy_seeds.py --force    train in any case
    python tools/copy_seeds.py --check    fail if the record is out of date

The record is src/aiayn/book/data/copy_seeds.json, which chapter 14 shows. It holds a
hash of its inputs: the code of the modules that the result depends on, the code of
`measure` below and the pinned versions of what the package runs on. What changes no
number does not enter: comments, docstrings, annotations, imports, checks of arguments.
"""

import argparse
import ast
import datetime
import hashlib
import json
import os
import platform
import re
import sys
import time
import tomllib
from pathlib import Path

from environment import FIXED, ROOT

MODULES = (
    "tokens",
    "scaled_dot_product",
    "multi_head",
    "positional_encoding",
    "sublayers",
    "transformer",
    "decoding",
    "training",
    "copy_task",
)
SEEDS = range(5)
BEYOND = (20, 21, 22, 23, 24, 25, 30)  # lengths; training ends at 20
SAMPLES = 200  # sequences of each of these lengths
PAPER_BETA2 = 0.98  # trained too, for comparison
RECORD = Path("src", "aiayn", "book", "data", "copy_seeds.json")

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


def inputs(root: Path) -> str:
    """A hash of everything that the record's numbers depend on."""
    digest = hashlib.sha256()
    for module in MODULES:
        path = root / "src" / "aiayn" / f"{module}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        digest.update(f"{module}: {essence(tree)}\n".encode())
    own = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    for node in own.body:
        if isinstance(node, ast.FunctionDef) and node.name == "measure":
            digest.update(essence(node).encode())
    digest.update(repr((list(SEEDS), BEYOND, SAMPLES, PAPER_BETA2)).encode())
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {re.match(r"[\w-]+", d)[0] for d in project["project"]["dependencies"]}
    for line in (root / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line.split("==")[0].strip() in needed:
            digest.update(line.split("#")[0].strip().encode())
    return digest.hexdigest()


def measure(seed: int) -> dict:
    """Train from one seed and test: what a row of the record holds."""
    import torch

    from aiayn.copy_task import CopyTask, exact_match, held_out_set, train_copy_model

    torch.set_num_threads(1)
    task, cpu = CopyTask(), torch.device("cpu")
    start = time.process_time()
    run = train_copy_model(task, seed=seed, device=cpu)
    trained = time.process_time()
    right = exact_match(run.model, task, held_out_set(task))
    tested = time.process_time()
    beyond = {}
    for length in BEYOND:
        generator = torch.Generator().manual_seed(length)
        drawn = torch.randint(3, 13, (SAMPLES, length), generator=generator).tolist()
        beyond[str(length)] = int(exact_match(run.model, task, drawn).sum())
    paper = train_copy_model(task, seed=seed, beta2=PAPER_BETA2, device=cpu)
    also_right = exact_match(paper.model, task, held_out_set(task))
    return {
        "seed": seed,
        "steps": len(run.losses),
        "validated": run.finished,
        "validation": run.validation,
        "training_cpu_seconds": round(trained - start, 1),
        "test_cpu_seconds": round(tested - trained, 1),
        "tested": len(right),
        "copied": int(right.sum()),
        "copied_by_length": beyond,
        "with_paper_beta2": {
            "steps": len(paper.losses),
            "validated": paper.finished,
            "validation": paper.validation,
            "copied": int(also_right.sum()),
        },
    }


def processor() -> str:
    """The processor's name, as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.M)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def record(root: Path) -> dict:
    """Train and test every seed."""
    # before torch is loaded: one thread and one instruction set, as for the notebooks
    os.environ.update(FIXED)
    sys.path.insert(0, str(root / "src"))
    import torch

    before, rows = inputs(root), []
    for seed in SEEDS:
        rows.append(row := measure(seed))
        print(
            f"seed {seed}: {row['steps']} updates in {row['training_cpu_seconds']} CPU "
            f"seconds, {row['copied']:,} of {row['tested']:,} copied; with the paper's "
            f"beta2: {row['with_paper_beta2']['copied']:,}",
            flush=True,
        )
    if inputs(root) != before:
        raise SystemExit("the code changed meanwhile: nothing was stored")
    return {
        "inputs": before,
        "date": datetime.date.today().isoformat(),
        "machine": processor(),
        "threads": 1,
        "torch": torch.__version__.split("+")[0],
        "samples_by_length": SAMPLES,
        "seeds": rows,
    }


def is_current(root: Path) -> bool:
    path = root / RECORD
    if not path.exists():
        return False
    return json.loads(path.read_text(encoding="utf-8"))["inputs"] == inputs(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--check", action="store_true", help="compare, train nothing")
    parser.add_argument("--force", action="store_true", help="train in any case")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if is_current(root) and not arguments.force:
        print(f"{RECORD.as_posix()} is current")
        return
    if arguments.check:
        sys.exit(
            f"{RECORD.as_posix()} is missing or older than the code that it measures: "
            "run `make slow`, then `make run CHAPTER=14`"
        )
    text = json.dumps(record(root), indent=1) + "\n"
    (root / RECORD).parent.mkdir(parents=True, exist_ok=True)
    (root / RECORD).write_text(text, encoding="utf-8", newline="\n")
    print(f"{RECORD.as_posix()} written: now run `make run CHAPTER=14`")


if __name__ == "__main__":
    main()
