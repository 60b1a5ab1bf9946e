"""How a chapter reads: words of prose, lines of code, and their proportion, as a table.

    python tools/rhythm.py               every chapter
    python tools/rhythm.py --only 3      one chapter

Words: markdown, as MyST, without formulas, tables, code and the marker lines of
directives. Core is all but the folds (sections "Going deeper: …") and the exercises
with solutions.
Lines: code of the core that the page shows without a click (no cell tagged hide-… or
remove-…), without blank and `#|` lines. Heading: core words up to the next heading.
"""

import argparse
import re
from itertools import chain
from pathlib import Path
from statistics import median

from nbformat import NotebookNode

from forms import in_myst
from notebooks import HEADING, chapters, prose_lines, read

MATH = re.compile(r"\$\$.*?\$\$(?:\s*\([\w-]+\))?|\$[^$]+\$", re.S)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
MARKER = re.compile(r"\s*(:{3,}|:[\w-]+:|\||\([\w-]+\)=)")
HIDDEN = {"remove-cell", "remove-input", "hide-cell", "hide-input"}


def part_of(title: str) -> str:
    if title.startswith("Going deeper:"):
        return "folds"
    return "exercises" if title == "Exercises" else "core"


def words(lines: list[str]) -> int:
    text = "\n".join(line for line in lines if not MARKER.match(line))
    return len(WORD.findall(LINK.sub(r"\1", MATH.sub(" ", text))))


def sections(notebook: NotebookNode) -> list[tuple[str, list[str], list[int]]]:
    """(core, folds or exercises; lines of prose; lengths of shown cells) a heading."""
    found: list[tuple[str, list[str], list[int]]] = [("core", [], [])]
    part, level = "core", 0  # a fold and the exercises end at a heading of their level
    for cell in notebook.cells:
        if cell.cell_type == "code":
            lines = [x for x in cell.source.splitlines() if x.strip()]
            shown = [x for x in lines if not x.startswith("#|")]
            if shown and not HIDDEN & set(cell.metadata.get("tags", ())):
                found[-1][2].append(len(shown))
        for line in prose_lines(cell) if cell.cell_type == "markdown" else ():
            if match := HEADING.match(line):
                depth, title = len(match[1]), match[2]
                if part == "core" or depth <= level:
                    part, level = part_of(title), depth
                found.append((part, [], []))
            else:
                found[-1][1].append(line)
    return found


def row(notebook: NotebookNode) -> list[float]:
    """The figures of one chapter, in the order of COLUMNS."""
    found = sections(notebook)
    counts = {part: 0 for part in ("core", "folds", "exercises")}
    for part, lines, _ in found:
        counts[part] += words(lines)
    core = [(words(lines), cells) for part, lines, cells in found if part == "core"]
    under = [n for n, _ in core if n] or [0]
    cells = list(chain.from_iterable(c for _, c in core)) or [0]
    ratio = counts["core"] / max(sum(cells), 1)
    figures = [sum(cells), round(ratio, 1), median(under), max(under)]
    return [*counts.values(), *figures, median(cells), max(cells)]


COLUMNS = ["core", "folds", "exercises", "lines", "words/line"]
COLUMNS += ["heading", "max", "cell", "max"]  # median and largest of each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", metavar="NN", help="one chapter")
    arguments = parser.parse_args()
    print(f"{'':24}", *(f"{name:>11}" for name in COLUMNS), sep="")
    for path in chapters(arguments.root, arguments.only):
        print(
            f"{path.stem:24}",
            *(f"{x:>11g}" for x in row(in_myst(read(path), arguments.root))),
            sep="",
        )


if __name__ == "__main__":
    main()
