"""Reads the plain forms of notebooks as the MyST that the pages are built from.

A citation whose name or year is not the bibliography's is a warning.
"""

import json

from plain_forms import Forms
from sphinx.util import logging

LOG = logging.getLogger(__name__)


def read_as_myst(app, name, content):
    if app.env.doc2path(name, base=False).endswith(".ipynb"):
        notebook = json.loads(content[0])
        forms = Forms(app.srcdir)
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
        texts = forms.to_myst(notebook["cells"])
        for cell, text in zip(notebook["cells"], texts, strict=True):
            cell["source"] = text
        content[0] = json.dumps(notebook)
        for problem in forms.problems:
            LOG.warning(problem, location=name, type="plain_notebooks")


def setup(app):
    app.connect("source-read", read_as_myst)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
