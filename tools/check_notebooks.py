"""What must hold in every committed notebook, beyond that it runs.

    python tools/check_notebooks.py      fail on any problem

nbval proves that stored outputs are true; this proves that nothing hides from nbval
(an unrun cell, a skip tag) and that nothing stands there that differs between runs or
machines (an address, a path, a time, an unrounded number).
"""

import argparse
import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from nbformat import NotebookNode

import forms
from notebooks import (
    CELL_METADATA,
    KERNEL,
    LANGUAGE,
    chapters,
    code_cells,
    headings,
    module_of,
    read,
)
from repository import address

TAGS = {
    *("remove-cell", "remove-input", "remove-output"),
    *("hide-cell", "hide-input", "hide-output"),
}
LONGEST_OUTPUT = 100_000  # bytes
SHORTEST_ALT = 20  # characters

SETUP = '''\
import importlib.util
import os
from importlib.metadata import version

if importlib.util.find_spec("aiayn") is None:  # on Colab, or any bare kernel
    source = os.environ.get(
        "AIAYN_SOURCE", "git+https://github.com/{owner}/{name}@v{version}"
    )
    %pip install -q "{{source}}" "torch=={{version('torch')}}"'''

# Words that must not stand in an output, and what to call them.
FORBIDDEN = {
    "an address": re.compile(r"\b0x[0-9a-fA-F]{6,}"),
    "an absolute path": re.compile(
        r"(?<![\w./:~<-])/(?:[\w.+-]+/)+[\w.+-]+|\b[A-Za-z]:\\\w|file://"
    ),
    "a time": re.compile(
        r"(?<![\w.])\d+(?:\.\d+)?\s?(?:ns|µs|us|ms|s|sec|secs|seconds?|minutes?|hours?)\b"
        r"|\b\d{1,2}:\d{2}:\d{2}\b|\b20\d\d-\d\d-\d\d\b|\b(?:wall|CPU) times?:",
        re.I,
    ),
}
NUMBER = re.compile(r"(?<![\w.])(\d+)\.(\d+)")


def setup_cell(root: Path) -> str:
    """The first code cell of every notebook."""
    owner, name = address(root)
    text = (root / "src" / "aiayn" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', text, re.M)[1]
    return SETUP.format(owner=owner, name=name, version=version)


def unrounded(text: str) -> str | None:
    """A number with more than four decimals of which more than four are significant.

    0.00215 is rounded to three digits and fine; 0.333333 and 12.34567 are not.
    """
    for match in NUMBER.finditer(text):
        digits = (match[1] + match[2]).lstrip("0")
        if len(match[2]) > 4 and len(digits) > 4:
            return match[0]
    return None


def visible(markup: str) -> str:
    """The words of an HTML output, without tags, styles and scripts."""
    bare = re.sub(r"(?s)<(style|script|svg)\b.*?</\1>", " ", markup)
    return html.unescape(re.sub(r"<[^>]*>", " ", bare))


def texts(output: NotebookNode) -> Iterator[str]:
    """What a reader sees of an output as text."""
    if output.output_type == "stream":
        yield output.text
    for kind, data in output.get("data", {}).items():
        if kind == "text/html":
            yield visible(data)
        elif kind in ("text/plain", "text/markdown", "text/latex"):
            yield data


def allowed_tags(root: Path) -> list[tuple[str, str]]:
    """(notebook, tag) for each cell that may carry a tag which weakens nbval."""
    path = root / "tools" / "allowed_tags.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        tuple(line.split("#")[0].split())
        for line in lines
        if line.split("#")[0].strip()
    ]


def structure(notebook: NotebookNode, number: str, setup: str) -> Iterator[str]:
    """Problems of the whole notebook."""
    if notebook.metadata.get("kernelspec") != KERNEL:
        yield "kernelspec is not the fixed one (run `make run`)"
    if notebook.metadata.get("language_info") != LANGUAGE:
        yield "language_info is not the fixed one (run `make run`)"
    levels = [level for cell in notebook.cells for level, _ in headings(cell)]
    if levels.count(1) != 1:
        yield f"{levels.count(1)} headings of the first level, expected 1"
    if levels[:1] != [1] or not headings(notebook.cells[0]):
        yield "the title is not in the first cell"
    for before, after in zip(levels, levels[1:], strict=False):
        if after > before + 1:
            yield f"a heading of level {after} follows one of level {before}"
    ids = [cell.get("id") for cell in notebook.cells]
    if ids != [f"{number}-{i:03d}" for i in range(1, len(ids) + 1)]:
        yield f"cell ids are not {number}-001, {number}-002, … (run `make run`)"
    code = code_cells(notebook)
    if not code:
        yield "no code cell"
        return
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        yield f"execution counts are not 1..{len(code)}: run `make run`"
    if len(code) != sum(cell.cell_type == "code" for cell in notebook.cells):
        yield "an empty code cell"
    if code[0].source != setup or code[0].metadata.get("tags") != ["remove-cell"]:
        yield f"the first code cell is not, tagged remove-cell,\n{setup}"
    module = module_of(notebook)
    alone = [cell for cell in code if cell.source == f"#| default_exp {module}"]
    if module is None or code[1:2] != alone:
        yield "the second code cell is not `#| default_exp NAME` alone"
    elif alone[0].metadata.get("tags") != ["remove-cell"]:
        yield "the cell `#| default_exp` is not tagged remove-cell"


def source_problems(cell: NotebookNode) -> Iterator[str]:
    """Problems of what the author wrote in a cell."""
    tags = cell.metadata.get("tags", [])
    for tag in sorted(set(tags) - TAGS):
        yield f"tag {tag} (known are {', '.join(sorted(TAGS))})"
    for key in sorted(set(cell.metadata) - CELL_METADATA):
        yield f"metadata {key} (run `make run`)"
    if cell.cell_type != "code":
        return
    for line in cell.source.splitlines():
        if re.match(r"\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)", line):
            yield f"`{line.strip()}` weakens the comparison of outputs"
        if re.match(r"#\|[ \t]*export\w*[ \t]+\S", line):
            yield f"`{line}`: a notebook exports to its own module only"


def output_problems(cell: NotebookNode) -> Iterator[str]:
    """Problems of a code cell's stored outputs."""
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"an error: {output.ename}: {output.evalue}"
        if output.get("name") == "stderr":
            yield f"stderr: {output.text[:80]!r}"
        size = len(json.dumps(output))
        if size > LONGEST_OUTPUT:
            yield f"an output of {size:,} bytes (at most {LONGEST_OUTPUT:,})"
        for text in texts(output):
            for what, pattern in FORBIDDEN.items():
                if match := pattern.search(text):
                    yield f"{what} in an output: {match[0]!r}"
            if number := unrounded(text):
                yield f"an unrounded number in an output: {number}"
    kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
    if any(kind.startswith("image/") for kind in kinds):
        settings = cell.metadata.get("mystnb", {})
        alt = settings.get("image", {}).get("alt", "")
        if len(alt) < SHORTEST_ALT:
            yield f"an image whose alternative text has {len(alt)} characters"
        figure = settings.get("figure", {})
        if not figure.get("caption"):
            yield "an image without a caption"
        if not figure.get("name", "").startswith("fig-"):
            yield "an image without a name fig-…"


def listed(entry: object) -> Iterator[str]:
    """Every file that a table of contents names."""
    if isinstance(entry, dict):
        for key, value in entry.items():
            if key in ("file", "root"):
                yield str(value).removesuffix(".ipynb").removesuffix(".md")
            else:
                yield from listed(value)
    elif isinstance(entry, list):
        for item in entry:
            yield from listed(item)


def contents_problems(root: Path) -> Iterator[str]:
    """Notebooks that the table of contents lacks, and pages that it invents."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    pages = list(listed(toc))
    for path in chapters(root):
        if f"notebooks/{path.stem}" not in pages:
            yield f"_toc.yml: notebooks/{path.stem} is not listed"
    for page in pages:
        if not any((root / f"{page}{suffix}").exists() for suffix in (".ipynb", ".md")):
            yield f"_toc.yml: {page} does not exist"
    for page in sorted({page for page in pages if pages.count(page) > 1}):
        yield f"_toc.yml: {page} is listed twice"


def problems(root: Path) -> list[str]:
    """Everything that is wrong with the notebooks below ``root``."""
    found = list(contents_problems(root))
    paths = chapters(root)
    if not paths:
        found.append("notebooks/: there is no notebook")
    found += forms.problems(root)
    setup = setup_cell(root)
    allowed = allowed_tags(root)
    for path in paths:
        notebook = read(path)
        name = f"notebooks/{path.name}"
        found += [f"{name}: {p}" for p in structure(notebook, path.name[:2], setup)]
        for cell in notebook.cells:
            where = f"{name} {cell.get('id')}"
            permitted = set()
            for tag in cell.metadata.get("tags", []):
                if (path.stem, tag) in allowed:  # each line permits one cell
                    allowed.remove((path.stem, tag))
                    permitted.add(tag)
            here = list(source_problems(cell))
            if cell.cell_type == "code":
                here += output_problems(cell)
                if "raises-exception" in permitted:
                    here = [p for p in here if not p.startswith("an error:")]
            here = [
                p for p in here if not any(p.startswith(f"tag {t} ") for t in permitted)
            ]
            found += [f"{where}: {problem}" for problem in here]
    found += [
        f"tools/allowed_tags.txt: no cell needs `{' '.join(entry)}`"
        for entry in allowed
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    root = parser.parse_args().root.resolve()
    found = problems(root)
    print("\n".join(found) or f"{len(chapters(root))} notebooks are in order")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
