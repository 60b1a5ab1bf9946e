"""Read, write, normalise and run the book's notebooks: what the other tools share."""

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbformat import NotebookNode

from environment import variables

NAME = re.compile(r"(\d\d)_\w+")
DEFAULT_EXP = re.compile(r"^#\|\s*default_exp\s+(\S+)\s*$", re.M)
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
# What authors write. Everything else that editors leave in a notebook is removed.
NOTEBOOK_METADATA = {"kernelspec", "language_info", "myst", "mystnb"}
CELL_METADATA = {"mystnb", "tags"}


def chapters(root: Path, only: str | None = None) -> list[Path]:
    """The notebooks in chapter order; ``only`` is a chapter number such as ``3``."""
    found = sorted((root / "notebooks").glob("*.ipynb"))
    if only:
        number = f"{int(only):02d}"
        found = [path for path in found if path.name.startswith(f"{number}_")]
        if not found:
            raise SystemExit(f"there is no notebook notebooks/{number}_….ipynb")
    for path in found:
        if not NAME.fullmatch(path.stem):
            raise SystemExit(f"{path.name}: a notebook is named NN_name.ipynb")
    return found


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def to_text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def write(notebook: NotebookNode, path: Path) -> bool:
    """Write the notebook; return whether the file changed."""
    text = to_text(notebook)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8", newline="\n")
    return True


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells that run, which are those that are not empty."""
    return [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]


def module_of(notebook: NotebookNode) -> str | None:
    """The module that the notebook exports to, from its ``#| default_exp`` line."""
    for cell in code_cells(notebook):
        if match := DEFAULT_EXP.search(cell.source):
            return match[1]
    return None


def python_source(cell: NotebookNode) -> str:
    """A code cell as plain Python: line magics become function calls."""
    return TransformerManager().transform_cell(cell.source)


HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})")


def prose_lines(cell: NotebookNode) -> Iterator[str]:
    """The lines of a markdown cell outside fenced blocks."""
    fence = None
    for line in cell.source.splitlines():
        match = FENCE.match(line)
        if match and fence is None:
            fence = match[1]
        elif match and match[1].startswith(fence) and not line.strip(" `~"):
            fence = None
        elif fence is None:
            yield line


def headings(cell: NotebookNode) -> list[tuple[int, str]]:
    """Level and text of each heading in a markdown cell."""
    if cell.cell_type != "markdown":
        return []
    found = (HEADING.match(line) for line in prose_lines(cell))
    return [(len(match[1]), match[2]) for match in found if match]


def source_hash(notebook: NotebookNode) -> str:
    """A hash of what an author writes; outputs, ids and counts do not enter."""
    metadata = {key: notebook.metadata.get(key) for key in ("myst", "mystnb")}
    cells = [
        [
            cell.cell_type,
            cell.source.strip("\n"),
            {key: cell.metadata[key] for key in CELL_METADATA if key in cell.metadata},
        ]
        for cell in notebook.cells
    ]
    text = json.dumps([metadata, cells], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def normalise(notebook: NotebookNode, number: str) -> NotebookNode:
    """Give everything that a run or an editor decides at random one fixed form."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for key in set(notebook.metadata) - NOTEBOOK_METADATA:
        del notebook.metadata[key]
    notebook.metadata["kernelspec"] = nbformat.from_dict(KERNEL)
    notebook.metadata["language_info"] = nbformat.from_dict(LANGUAGE)
    count = 0
    for ordinal, cell in enumerate(notebook.cells, start=1):
        cell.id = f"{number}-{ordinal:03d}"
        cell.source = cell.source.strip("\n")
        for key in set(cell.metadata) - CELL_METADATA:
            del cell.metadata[key]
        if cell.cell_type != "code":
            continue
        count += bool(cell.source.strip())
        cell.execution_count = count if cell.source.strip() else None
        for output in cell.outputs:
            output.pop("transient", None)
            if "execution_count" in output:
                output.execution_count = cell.execution_count
    return notebook


def execute(
    notebook: NotebookNode, folder: Path, root: Path, *, fixed: bool = True
) -> None:
    """Run every cell in a fresh kernel; outputs go into ``notebook``.

    The kernel's own messages go to a file, shown only if the kernel dies: each kernel
    warns there about its local connection.
    """
    with tempfile.TemporaryFile("w+") as messages:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=None,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        )
        try:
            client.execute(env=variables(root, fixed), stderr=messages)
        except RuntimeError as error:  # DeadKernelError among them
            messages.seek(0)
            raise RuntimeError(f"{error}\n{messages.read()}") from error
