"""What every benchmark shares: a fixed environment, and a record of what was found.

Times are CPU seconds of this process, on one thread, of contenders that take turns
(`aiayn.book.timing`). A record holds medians, and ratios to one of the contenders with
their quartiles: times differ from machine to machine and from day to day, ratios much
less. It also says on which machine, when and beside how much other work it was made.
"""

import datetime
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "aiayn" / "book" / "data"
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src")]

from environment import FIXED
from records import processor

os.environ.update(FIXED)  # before torch is loaded

import torch

from aiayn.book.timing import paired_ratio, take_turns

torch.set_num_threads(1)

Contenders = Mapping[str, Callable[[], object]]


def load() -> float | None:
    """Processes that wanted to run, on average over the last minute; our own is one."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def rounded(number: float, digits: int = 3) -> float:
    """A number with so many significant digits."""
    return float(f"{number:.{digits}g}")


def row(contenders: Contenders, base: str, **options) -> dict:
    """Median seconds of each contender, and its ratio to ``base`` with quartiles."""
    seconds = take_turns(contenders, **options)
    return {
        "seconds": {
            name: rounded(statistics.median(found)) for name, found in seconds.items()
        },
        f"ratio to {base}": {
            name: [rounded(ratio) for ratio in paired_ratio(found, seconds[base])]
            for name, found in seconds.items()
            if name != base
        },
    }


def record(settings: Mapping, cases: Iterable[tuple[Mapping, Contenders]], **options):
    """Measure every case, and describe the circumstances.

    Args:
        settings: what holds for all cases; its "base" names a contender.
        cases: what is special about each, and its contenders, made when their turn
            comes.
        options: of :func:`aiayn.book.timing.take_turns`.
    """
    before, rows = load(), []
    for case, contenders in cases:
        rows.append({**case, **row(contenders, settings["base"], **options)})
        print(as_line(rows[-1]), flush=True)
    return {
        "date": datetime.date.today().isoformat(),
        "machine": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.split("+")[0],
        "load before and after": [before, load()],
        **settings,
        "rows": rows,
    }


def as_line(row: Mapping) -> str:
    """One row for the terminal."""
    case = ", ".join(f"{k} {v}" for k, v in row.items() if not isinstance(v, Mapping))
    times = (f"{name} {1e3 * s:.3g} ms" for name, s in row["seconds"].items())
    return f"{case}: {'; '.join(times)}"


def as_table(name: str, found: Mapping) -> str:
    """A record as a Markdown section: a row for each case, a column for each ratio."""
    ratios = f"ratio to {found['base']}"
    cases = [k for k, v in found["rows"][0].items() if not isinstance(v, Mapping)]
    columns = [name for name in found["rows"][0]["seconds"] if name != found["base"]]
    head = [*cases, f"{found['base']}, ms", *columns]
    before, after = found["load before and after"]
    lines = [
        f"## {name}",
        "",
        f"{found['title']} {found['machine']}, {found['threads']} thread, "
        f"torch {found['torch']}, {found['date']}; load {before} before and {after} "
        f"after. Columns: CPU milliseconds of {found['base']}; time of the others "
        "divided by it, median of the turns and quartiles.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---:|' * len(head)}",
    ]
    for row in found["rows"]:
        cells = [f"{row[case]:,}" for case in cases]
        cells.append(f"{1e3 * row['seconds'][found['base']]:.3g}")
        for column in columns:
            if column in row[ratios]:
                low, middle, high = row[ratios][column]
                cells.append(f"{middle:.2f} ({low:.2f}–{high:.2f})")
            else:
                cells.append("")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def store(name: str, found: Mapping) -> None:
    """Write a record where the chapters read it, and renew the table of all records."""
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    (DATA / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")
    write_tables()


def write_tables(data: Path = DATA, target: Path | None = None) -> None:
    """Every stored record as one page of tables."""
    parts = [
        "# Results\n\nWritten by `make bench` from src/aiayn/book/data/*_times.json.\n"
    ]
    for path in sorted(data.glob("*_times.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        parts.append(as_table(path.stem.removesuffix("_times"), found))
    target = target or ROOT / "benchmarks" / "RESULTS.md"
    target.write_text("\n".join(parts), encoding="utf-8", newline="\n")
