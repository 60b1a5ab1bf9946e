"""Write in every notebook the plain forms that JupyterLab and Colab show well.

    python tools/forms.py            nothing is executed, only markdown changes
    python tools/forms.py --check    fail if a form is missing, stale or leads nowhere

book/_ext/plain_forms.py says what they are. `make run` writes them too.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

from nbformat import NotebookNode

from notebooks import chapters, read, write

sys.path.append(str(Path(__file__).parents[1] / "book" / "_ext"))

from plain_forms import Forms, raw_forms, without_code

ADDRESS = re.compile(r"\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


def with_texts(notebook: NotebookNode, texts: list[str]) -> NotebookNode:
    copy = deepcopy(notebook)
    for cell, text in zip(copy.cells, texts, strict=True):
        cell.source = text
    return copy


def in_myst(notebook: NotebookNode, root: Path) -> NotebookNode:
    """The same notebook with its markdown in MyST."""
    return with_texts(notebook, Forms(root).to_myst(notebook.cells))


def in_plain(notebook: NotebookNode, root: Path, name: str) -> NotebookNode:
    """The same notebook, called ``name``, with its markdown in the plain forms."""
    return with_texts(notebook, Forms(root).to_plain(notebook.cells, name))


def write_forms(root: Path) -> list[str]:
    """Bring every notebook's forms up to date; return which changed.

    All of them, because a new equation in one chapter can change the numbers that
    the links of others show.
    """
    return [
        path.stem
        for path in chapters(root)
        if write(in_plain(read(path), root, path.stem), path)
    ]


def dead_links(notebook: NotebookNode, root: Path, site: str) -> Iterator[str]:
    """Links that lead nowhere from JupyterLab."""

    def anchors(book: NotebookNode) -> set[str]:
        texts = [c.source for c in book.cells if c.cell_type == "markdown"]
        return set(ANCHOR.findall("\n".join(texts)))

    here = anchors(notebook)
    for cell in notebook.cells:
        links = ADDRESS.findall(without_code(cell.source))
        for link in links if cell.cell_type == "markdown" else ():
            page, _, anchor = link.partition("#")
            if page.startswith(site):
                file = page.removeprefix(site).replace(".html", ".md")
                path = root / file
                text = path.read_text(encoding="utf-8") if path.exists() else None
                good = text is not None and (not anchor or f"({anchor})=" in text)
            elif page.startswith(("https://", "http://")):
                good = True
            elif not page:
                good = anchor in here
            else:
                path = root / "notebooks" / page
                good = path.suffix == ".ipynb" and path.exists()
                good = good and (not anchor or anchor in anchors(read(path)))
            if not good:
                yield link


def problems(root: Path) -> Iterator[str]:
    """Forms that are missing, stale, wrong or lead nowhere."""
    for path in chapters(root):
        forms, notebook = Forms(root), read(path)
        texts = forms.to_plain(notebook.cells, path.stem)
        for problem in dict.fromkeys(forms.problems):
            yield f"notebooks/{path.name}: {problem}"
        for cell, text in zip(notebook.cells, texts, strict=True):
            if cell.cell_type != "markdown":
                continue
            where = f"notebooks/{path.name} {cell.get('id')}"
            if cell.source != text:
                old, new = cell.source.splitlines(), text.splitlines()
                line = next((x for x in new if x not in old), "one line less")
                yield f"{where}: run `python tools/forms.py`, expected {line[:200]!r}"
            for form in raw_forms(text):
                yield f"{where}: `{form}` shows as typed in JupyterLab and Colab"
        for link in dead_links(with_texts(notebook, texts), root, forms.site):
            yield f"notebooks/{path.name}: the link {link} leads nowhere"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.check:
        found = list(problems(root))
        print("\n".join(found) or "every notebook has the plain forms")
        sys.exit(bool(found))
    print("\n".join(write_forms(root)) or "no change")


if __name__ == "__main__":
    main()
