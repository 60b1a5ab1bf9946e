"""The editable text form loses nothing, in either direction."""

import json

import pytest

from notebooks import read
from text import Conflict, from_text, source_hash, take_in, to_text, write_text

NAME = "02_first"
FIRST = f"notebooks/{NAME}.ipynb"
TEXT = f"text/{NAME}.md"


def ids_and_outputs(path) -> list:
    cells = json.loads(path.read_text())["cells"]
    return [(c["id"], c.get("outputs"), c.get("execution_count")) for c in cells]


def test_text_and_back_keeps_everything(finished):
    notebook = read(finished / FIRST)
    assert source_hash(from_text(to_text(notebook))) == source_hash(notebook)


def test_an_edit_keeps_ids_and_outputs(project, edit):
    before = ids_and_outputs(project / FIRST)
    edit(project / TEXT, "There is more.", "There is much more.")
    assert take_in(project, NAME) == "taken in"
    assert ids_and_outputs(project / FIRST) == before
    assert "There is much more." in (project / FIRST).read_text()
    assert take_in(project, NAME) is None  # the header names the new source


def test_metadata_survives(project, edit_notebook):
    settings = {
        "image": {"alt": "x" * 20},
        "figure": {"caption": "A: *b*.", "name": "f"},
    }

    def add(notebook):
        notebook["cells"][-1]["metadata"] = {"mystnb": settings, "tags": ["hide-input"]}
        notebook["cells"][0]["metadata"] = {"tags": ["remove-cell"]}
        notebook["metadata"]["myst"] = {"html_meta": {"description": "d"}}

    edit_notebook(project / FIRST, add)
    notebook = read(project / FIRST)
    back = from_text(to_text(notebook))
    assert back.cells[-1].metadata == notebook.cells[-1].metadata
    assert back.cells[0].metadata == notebook.cells[0].metadata
    assert back.metadata["myst"] == notebook.metadata["myst"]


def test_edits_on_both_sides_are_refused(project, edit):
    edit(project / TEXT, "There is more.", "From the text.")
    edit(project / FIRST, "There is more.", "From the notebook.")
    before = (project / TEXT).read_bytes(), (project / FIRST).read_bytes()
    with pytest.raises(Conflict, match="both changed"):
        take_in(project, NAME)
    assert write_text(project, project / FIRST).startswith("kept")
    assert before == ((project / TEXT).read_bytes(), (project / FIRST).read_bytes())


def test_an_edited_notebook_renews_its_text(project, edit):
    edit(project / FIRST, "There is more.", "From the notebook.")
    assert take_in(project, NAME) == "text renewed from the notebook"
    assert "From the notebook." in (project / TEXT).read_text()


def test_edits_are_not_overwritten(project, edit):
    edit(project / TEXT, "There is more.", "From the text.")
    assert write_text(project, project / FIRST).startswith("kept")
    assert "From the text." in (project / TEXT).read_text()
