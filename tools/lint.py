"""Style and spelling of code, notebooks and prose."""

import argparse
import subprocess
import sys
from pathlib import Path

COMMANDS = [
    ["ruff", "check"],
    ["ruff", "format", "--check"],
    ["codespell_lib"],
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    root = parser.parse_args().root
    failed = False
    for command in COMMANDS:  # all of them, so that one failure hides no other
        failed |= bool(subprocess.call([sys.executable, "-m", *command], cwd=root))
    sys.exit(failed)


if __name__ == "__main__":
    main()
