"""No line breaks between a formula and what belongs to it: a full stop, "-th", "(".

A browser may break a line on both sides of a formula, since it draws one as a box; a
full stop would then begin the next line. Both go into an element without breaks, where
formulas.py marks the places inside the formula at which lines may break as ever.
"""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

AFTER = re.compile(r"[.,;:!?)\]’”]+|[-–]\w*")
BEFORE = re.compile(r"[(\[‘“]+\Z")


def text_at(parent, place):
    """The text at this place, or none."""
    inside = 0 <= place < len(parent)
    return parent[place] if inside and isinstance(parent[place], nodes.Text) else ""


class JoinPunctuation(SphinxPostTransform):
    default_priority = 800  # the text is final by then
    formats = ("html",)

    def run(self, **kwargs):
        for formula in list(self.document.findall(nodes.math)):
            parent = formula.parent
            place = parent.index(formula)
            before, after = text_at(parent, place - 1), text_at(parent, place + 1)
            head, tail = BEFORE.search(before), AFTER.match(after)
            if not (head or tail):
                continue
            joined = nodes.inline(classes=["joined"])
            parent[place] = joined
            joined += [nodes.Text(head[0]), formula] if head else [formula]
            if tail:
                joined += nodes.Text(tail[0])
                parent[place + 1] = nodes.Text(after[tail.end() :])
            if head:
                parent[place - 1] = nodes.Text(before[: head.start()])


def setup(app):
    app.add_post_transform(JoinPunctuation)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
