"""From nothing to the book: install, execute every notebook here, build the pages.

    make book       or, where there is no make:  python tools/book.py

Copies of the notebooks are executed, in _build/stage/; the committed ones stay as they
are. A notebook runs again when its code, a module that it imports or a pinned version
changed, never otherwise. The reader's own device is used: a GPU when there is one.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import environment


def key(path, root, package) -> str:
    """A hash of everything that the outputs of a notebook depend on."""
    from notebooks import code_cells, read

    notebook = read(path)
    digest = hashlib.sha256()
    code = [[cell.source, cell.metadata.get("tags")] for cell in code_cells(notebook)]
    digest.update(json.dumps(code).encode())
    digest.update(environment.pins(environment.ROOT).encode())
    modules = package.notebook_uses(notebook)
    files = [package.files[module] for module in modules]
    if any(module.split(".")[0] == "book" for module in modules):
        data = (root / "src" / "aiayn" / "book").rglob("*")  # results that it shows
        files += [p for p in data if p.is_file() and p.suffix not in (".py", ".pyc")]
    for file in sorted(files):
        digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


def renew_text(path: Path, copy: Path) -> None:
    """Give an executed copy the text of its notebook, whose code is the same."""
    from notebooks import code_cells, read, write

    notebook = read(path)
    pairs = zip(code_cells(notebook), code_cells(read(copy)), strict=True)
    for cell, executed in pairs:
        cell.outputs = executed.outputs
    write(notebook, copy)


def load(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def execute_all(root: Path, only: str | None = None) -> bool:
    """Execute what changed into _build/stage/notebooks; return whether all ran."""
    from nbclient.exceptions import CellExecutionError

    from facts import forget_executed, store_executed
    from import_graph import Package
    from notebooks import chapters, execute, normalise, read, write

    folder = root / "_build" / "stage" / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    memory = root / "_build" / "executed.json"
    keys, package, good = load(memory), Package(root), True
    wanted = {path.name for path in chapters(root, only)}
    for path in chapters(root):
        copy, current = folder / path.name, key(path, root, package)
        if copy.exists() and keys.get(path.stem) == current:
            renew_text(path, copy)
            print(f"{path.stem}: unchanged", flush=True)
            continue
        if path.name not in wanted:  # its committed outputs will do
            keys.pop(path.stem, None)
            forget_executed(folder.parent, path.stem)
            shutil.copy2(path, copy)
            continue
        print(f"{path.stem}: ", end="", flush=True)
        start, notebook = time.perf_counter(), read(path)
        try:
            execute(notebook, folder, root, fixed=False)
        except (CellExecutionError, RuntimeError) as error:
            print(f"FAILED\n{error}", flush=True)
            good = False
            continue
        write(normalise(notebook, path.name[:2]), copy)
        store_executed(folder.parent, path.stem)
        keys[path.stem] = current
        memory.write_text(json.dumps(keys, indent=1, sort_keys=True))
        print(f"{time.perf_counter() - start:.1f} s", flush=True)
    for stale in {p.name for p in folder.glob("*.ipynb")} - {
        path.name for path in chapters(root)
    }:
        (folder / stale).unlink()
        forget_executed(folder.parent, Path(stale).stem)
    return good


def pages_key(root: Path) -> str:
    """A hash of everything that the pages are made from."""
    digest = hashlib.sha256(environment.pins(environment.ROOT).encode())
    for folder in (root / "_build" / "stage", root / "src"):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(path.relative_to(root).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def build_pages(root: Path) -> Path:
    """Build the pages unless they are current; return the index page."""
    from pages import build, stage

    source = root / "_build" / "stage"
    stage(root, source, [])
    current, index = pages_key(root), root / "_build" / "html" / "index.html"
    # `make site` writes the same folder: the mark inside tells whose pages they are
    mark = root / "_build" / "html" / ".made-by-book"
    if index.exists() and mark.exists() and mark.read_text() == current:
        print("pages: unchanged")
        return index
    start = time.perf_counter()
    build(root, source)
    mark.write_text(current)
    print(f"pages: {time.perf_counter() - start:.1f} s")
    return index


def exact_match(root: Path) -> str:
    """What the copy task's chapter printed, in its executed copy."""
    from notebooks import read

    folder = root / "_build" / "stage" / "notebooks"
    for path in folder.glob("14_*.ipynb"):
        outputs = [o for c in read(path).cells for o in c.get("outputs", [])]
        printed = "".join(o.get("text", "") for o in outputs)
        if found := re.findall(r"exact match: ([\d.]+ %)", printed):
            return f"exact match on the copy task: {found[-1]}"
        return f"{path.name} printed no exact match"
    return "this book has no copy task"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=environment.ROOT)
    parser.add_argument("--only", metavar="NN", help="execute one chapter")
    arguments = parser.parse_args()
    python = environment.ensure()
    if not environment.inside():
        command = [str(python), str(Path(__file__).resolve()), *sys.argv[1:]]
        sys.exit(subprocess.call(command))
    root = arguments.root.resolve()
    if not execute_all(root, arguments.only):
        sys.exit("the pages were not built, since a notebook failed")
    index = build_pages(root)
    print(index)
    print(exact_match(root))


if __name__ == "__main__":
    main()
