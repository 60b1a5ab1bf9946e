"""``[the weights](#eq-name)`` reads "the weights (2.1)", with the number as the link.

MyST would show the number alone and drop the words, which JupyterLab and Colab show.
"""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

LABEL = re.compile(r"(?:eq|res)-[\w-]+")


class KeepWords(SphinxPostTransform):
    default_priority = 8  # before MyST resolves the reference

    def run(self, **kwargs):
        for reference in list(self.document.findall(addnodes.pending_xref)):
            if reference["reftype"] != "myst" or not reference.get("refexplicit"):
                continue
            if LABEL.fullmatch(reference["reftarget"]) and reference.astext():
                words = [child.deepcopy() for child in reference[0].children]
                place = reference.parent.index(reference)
                space = nodes.Text("\N{NO-BREAK SPACE}")
                reference.parent[place:place] = [*words, space]


def setup(app):
    app.add_post_transform(KeepWords)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
