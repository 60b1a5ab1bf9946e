"""Run every benchmark of this folder, each in a process of its own.

    make bench
    python benchmarks/run.py layers        one of them

Best on a quiet machine; the record says how quiet it was.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NOT_BENCHMARKS = {"measure", "run"}


def main() -> None:
    found = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
    names = sys.argv[1:] or [name for name in found if name not in NOT_BENCHMARKS]
    for name in names:
        if name not in found or name in NOT_BENCHMARKS:
            sys.exit(f"there is no benchmark {name!r} in {FOLDER.name}/")
        print(f"--- {name}", flush=True)
        subprocess.run([sys.executable, str(found[name])], check=True)


if __name__ == "__main__":
    main()
