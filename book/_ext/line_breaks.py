"""No line breaks between a formula and the punctuation that belongs to it.

A browser may break a line on both sides of a formula, since it draws one as a box; a
full stop would then begin the next line. A word joiner forbids it.
"""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

JOINER = "\N{WORD JOINER}"
CLOSING = re.compile(r"[.,;:!?)\]’”\-–]")
OPENING = re.compile(r"[(\[‘“]\Z")


class JoinPunctuation(SphinxPostTransform):
    default_priority = 800  # the text is final by then
    formats = ("html",)

    def run(self, **kwargs):
        for formula in list(self.document.findall(nodes.math)):
            parent = formula.parent
            place = parent.index(formula)
            after = parent[place + 1] if place + 1 < len(parent) else None
            if isinstance(after, nodes.Text) and CLOSING.match(after):
                parent[place + 1] = nodes.Text(JOINER + after)
            before = parent[place - 1] if place else None
            if isinstance(before, nodes.Text) and OPENING.search(before):
                parent[place - 1] = nodes.Text(before + JOINER)


def setup(app):
    app.add_post_transform(JoinPunctuation)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
