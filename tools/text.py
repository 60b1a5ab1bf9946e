"""An editable text form of each notebook, in the git-ignored folder text/.

    make text        notebooks/NN_name.ipynb -> text/NN_name.md
    (edit)
    make run         takes the edits in, exports, runs

The text form is MyST markdown with code cells; notebooks hold plain forms of it (see
forms.py). Its header holds a hash of the notebook source that it shows, so that an edit
on both sides is seen and neither is lost.
"""

import argparse
import re
import sys
from itertools import zip_longest
from pathlib import Path

import jupytext
import nbformat
from jupytext.combine import combine_inputs_with_outputs
from nbformat import NotebookNode

from forms import in_myst, in_plain
from notebooks import KERNEL, NAME, normalise, read, source_hash, write

FORMAT = "md:myst"
SOURCE = re.compile(r"^  source: (\w+)$", re.M)


class Conflict(Exception):
    """Both the text and the notebook changed since one was made from the other."""


def text_path(root: Path, name: str) -> Path:
    return root / "text" / f"{name}.md"


def to_text(notebook: NotebookNode) -> str:
    """The text form, with the hash of ``notebook`` in its header."""
    copy = nbformat.from_dict(notebook)
    copy.metadata = nbformat.from_dict(
        {key: copy.metadata[key] for key in ("myst", "mystnb") if key in copy.metadata}
        | {
            "kernelspec": KERNEL,
            "aiayn": {"source": source_hash(notebook)},
            "jupytext": {"notebook_metadata_filter": "kernelspec,aiayn,myst,mystnb"},
        }
    )
    text = jupytext.writes(copy, fmt=FORMAT)
    if source_hash(from_text(text)) != source_hash(notebook):
        before = [cell.source for cell in notebook.cells]
        after = [cell.source for cell in from_text(text).cells]
        pairs = zip_longest(before, after)
        changed = next((old for old, new in pairs if old != new), "its metadata")
        raise SystemExit(f"this does not survive the text form:\n{changed}")
    return text


def from_text(text: str) -> NotebookNode:
    """A notebook without outputs from its text form."""
    return jupytext.reads(text, fmt=FORMAT)


def shown_source(text: str) -> str | None:
    """The hash in the header: the notebook source that this text was made from."""
    match = SOURCE.search(text.split("\n---\n", 1)[0])
    return match[1] if match else None


def set_source(text: str, source: str, notebook: NotebookNode) -> str:
    """The same text saying that it shows ``notebook``; no other line changes."""
    if shown_source(text) is None:
        return to_text(notebook)
    return SOURCE.sub(f"  source: {source}", text, count=1)


def write_text(root: Path, path: Path) -> str:
    """Write the text form of one notebook unless that would lose edits."""
    notebook, target = in_myst(read(path), root), text_path(root, path.stem)
    if target.exists():
        old = target.read_text(encoding="utf-8")
        written = source_hash(from_text(old))
        if written == source_hash(notebook) == shown_source(old):
            return "current"
        if written not in (shown_source(old), source_hash(notebook)):
            return "kept: it has edits that are not in the notebook; `make run` first"
    target.parent.mkdir(exist_ok=True)
    target.write_text(to_text(notebook), encoding="utf-8", newline="\n")
    return "written"


def take_in(root: Path, name: str) -> str | None:
    """Bring the edits of ``text/NAME.md`` into its notebook; say what was done."""
    target, path = text_path(root, name), root / "notebooks" / f"{name}.ipynb"
    text = target.read_text(encoding="utf-8")
    edited = from_text(text)
    new = source_hash(edited)
    if not path.exists():
        done = "new notebook"
        notebook = edited
    else:
        notebook = in_myst(read(path), root)
        current, shown = source_hash(notebook), shown_source(text)
        if new == current:
            if shown != current:
                text = set_source(text, current, notebook)
                target.write_text(text, encoding="utf-8", newline="\n")
            return None
        if new == shown:  # only the notebook changed: bring the text up to date
            write_text(root, path)
            return "text renewed from the notebook"
        if current != shown:
            raise Conflict(
                f"text/{name}.md and notebooks/{name}.ipynb both changed since the "
                "text was made; neither was touched.\n"
                f"  Keep the notebook: move text/{name}.md away and run `make text`.\n"
                f"  Keep the text: write `  source: {current}` into its header."
            )
        done = "taken in"
        notebook = combine_inputs_with_outputs(edited, notebook, FORMAT)
    notebook = in_plain(normalise(notebook, name[:2]), root, name)
    write(notebook, path)
    notebook = in_myst(notebook, root)
    if source_hash(notebook) == new:
        text = set_source(text, new, notebook)
    else:  # the forms are less free than MyST
        text = to_text(notebook)
    target.write_text(text, encoding="utf-8", newline="\n")
    return done


def texts(root: Path, only: str | None = None) -> list[str]:
    """Names of the text forms, in chapter order."""
    names = sorted(path.stem for path in (root / "text").glob("*.md"))
    if bad := [name for name in names if not NAME.fullmatch(name)]:
        raise SystemExit(f"text/{bad[0]}.md: a chapter is named NN_name.md")
    return [n for n in names if only is None or n.startswith(f"{int(only):02d}_")]


def main() -> None:
    from notebooks import chapters

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", metavar="NN", help="one chapter")
    arguments = parser.parse_args()
    kept = 0
    for path in chapters(arguments.root, arguments.only):
        result = write_text(arguments.root, path)
        kept += result.startswith("kept")
        print(f"text/{path.stem}.md: {result}")
    sys.exit(bool(kept))


if __name__ == "__main__":
    main()
