"""Open the notebooks in JupyterLab on this machine.

make lab                 all of them
make lab CHAPTER=3       one chapter
"""

import argparse
import subprocess
import sys
from pathlib import Path

from notebooks import chapters


def command(root: Path, only: str | None = None) -> list[str]:
    """JupyterLab in the folder of the notebooks, with one of them open or none."""
    folder = root / "notebooks"
    [*opened] = [str(path) for path in chapters(root, only)] if only else []
    arguments = [f"--ServerApp.root_dir={folder}", *opened]
    return [sys.executable, "-m", "jupyterlab", *arguments]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", metavar="NN", help="open one chapter")
    arguments = parser.parse_args()
    sys.exit(subprocess.call(command(arguments.root.resolve(), arguments.only)))


if __name__ == "__main__":
    main()
