"""Run every notebook and compare each output with the stored one (nbval, strict).

    python tools/verify.py               all notebooks, two at a time
    python tools/verify.py --only 3      one chapter

It also fails when a notebook has no test, or fewer than it has code cells.
"""

import argparse
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from environment import variables
from notebooks import chapters, read

SANITIZER = Path(__file__).with_name("nbval.cfg")


def verify(root: Path, only: str | None = None, *, workers: int = 2) -> list[str]:
    """Return what is wrong, after pytest's own report on standard output."""
    paths = chapters(root, only)
    report = root / "_build" / "reports" / "outputs.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "--nbval", "-o", "addopts=", "-q"]
    command += ["--nbval-sanitize-with", str(SANITIZER), "-p", "no:cacheprovider"]
    command += ["--rootdir", str(root), f"--junitxml={report}"]
    if workers > 1 and len(paths) > 1:
        command += ["-n", str(workers), "--dist", "loadfile"]
    # last chapter first: the training chapters take longest
    command += [str(path) for path in reversed(paths)]
    code = subprocess.run(command, cwd=root, env=variables(root)).returncode
    found = [f"pytest ended with exit code {code}"] if code else []
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else []
    ran = Counter(
        case.get("classname", "").split(".")[-2]
        for case in cases
        if case.find("skipped") is None
    )
    for path in paths:
        cells = sum(cell.cell_type == "code" for cell in read(path).cells)
        if cells == 0 or ran[path.stem] != cells:
            found.append(f"{path.name}: {cells} code cells, {ran[path.stem]} compared")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", metavar="NN", help="one chapter")
    arguments = parser.parse_args()
    found = verify(arguments.root.resolve(), arguments.only)
    print("\n".join(found) or "every stored output is what its cell gives")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
