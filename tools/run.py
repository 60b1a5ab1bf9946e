"""Take in edits, format, export, run the notebooks in order and store their outputs.

    make run                 every chapter
    make run CHAPTER=3       one chapter

A second run changes no byte.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from nbclient.exceptions import CellExecutionError

from export import write_modules
from forms import write_forms
from notebooks import chapters, execute, normalise, read, write
from text import Conflict, take_in, text_path, texts, write_text


def format_code(root: Path, paths: list[Path]) -> None:
    """Give the code cells ruff's format, which `make lint` asks for."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", *map(str, paths)]
    subprocess.run(command, cwd=root, check=False)  # a syntax error fails when it runs


def run(root: Path, only: str | None = None) -> bool:
    """Return whether every notebook ran."""
    good = True
    for name in texts(root, only):
        try:
            if done := take_in(root, name):
                print(f"text/{name}.md: {done}", flush=True)
        except Conflict as conflict:
            print(conflict)
            good = False
    if not good:
        return False
    paths = chapters(root, only)
    for path in paths:
        write(normalise(read(path), path.name[:2]), path)
    write_forms(root)
    format_code(root, paths)
    write_modules(root, only)
    for path in paths:
        start = time.perf_counter()
        notebook = read(path)
        try:
            execute(notebook, path.parent, root)
        except (CellExecutionError, RuntimeError) as error:
            print(f"{path.stem}: FAILED\n{error}", flush=True)
            good = False
            continue
        changed = write(normalise(notebook, path.name[:2]), path)
        if text_path(root, path.stem).exists():
            write_text(root, path)
        seconds = time.perf_counter() - start
        state = "outputs changed" if changed else "no change"
        print(f"{path.stem}: {seconds:.1f} s, {state}", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", metavar="NN", help="one chapter")
    arguments = parser.parse_args()
    sys.exit(not run(arguments.root.resolve(), arguments.only))


if __name__ == "__main__":
    main()
