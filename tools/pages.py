"""Build the HTML pages of the book from notebooks that hold their outputs.

    make site       from the committed notebooks

Jupyter Book reads a copy of what the book consists of, so that nothing else in the
repository can get into the pages, and warnings are errors.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import facts
from environment import variables
from notebooks import chapters
from records import write


def stage(root: Path, source: Path, notebooks: Iterable[Path]) -> None:
    """Copy what the book consists of to ``source``; notebooks already there stay."""
    source.mkdir(parents=True, exist_ok=True)
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy2(root / name, source / name)
    shutil.rmtree(source / "book", ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "book", source / "book", ignore=ignore)
    (source / "notebooks").mkdir(exist_ok=True)
    for path in notebooks:
        if path.parent != source / "notebooks":
            shutil.copy2(path, source / "notebooks" / path.name)


def jupyter_book() -> str:
    """The command; the package has no `python -m` form."""
    folder = str(Path(sys.executable).parent)
    command = shutil.which("jupyter-book", path=folder)
    if command is None:
        raise SystemExit(f"jupyter-book is not installed beside {sys.executable}")
    return command


def build(root: Path, source: Path) -> Path:
    """Build the pages of ``source`` into ``_build/html``; return the index page.

    The pages take their place only when the whole build succeeded.
    """
    output = root / "_build" / "pages"
    shutil.rmtree(output, ignore_errors=True)
    command = [jupyter_book(), "build", str(source), "--path-output", str(output)]
    command += ["--all", "-W", "--keep-going"]
    done = subprocess.run(
        command,
        env=variables(root) | {"PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    built = output / "_build" / "html"
    if done.returncode or not (built / "index.html").exists():
        text = re.sub(r"\x1b\[[\d;]*m", "", done.stdout)  # colours
        lines = text.replace(f"{source}{os.sep}", "").splitlines()
        notable = [line for line in lines if "WARNING" in line or "ERROR" in line]
        print("\n".join(notable or lines[-40:]))
        raise SystemExit("the pages were not built")
    target = root / "_build" / "html"
    shutil.rmtree(target, ignore_errors=True)
    os.replace(built, target)
    return target / "index.html"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    root = parser.parse_args().root.resolve()
    start = time.perf_counter()
    source = root / "_build" / "sources"
    shutil.rmtree(source, ignore_errors=True)
    stage(root, source, chapters(root))
    if known := facts.passed(root):
        write(source / facts.NAME, known)
    index = build(root, source)
    print(f"{index} ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
