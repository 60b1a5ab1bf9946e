"""Hides ``#| export``, ``# fmt: skip`` and their kin in the code that readers see.

They speak to the exporter, the formatter and the linter.
"""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

MARK = re.compile(
    r"^#\|.*(?:\n|\Z)"
    r"|^ *# fmt: (?:on|off) *(?:\n|\Z)"
    r"|[ \t]*# (?:fmt: skip|noqa(?:: [A-Z0-9, ]+)?|type: ignore(?:\[.*\])?)[ \t]*$",
    re.M,
)


class HideToolMarks(SphinxPostTransform):
    default_priority = 100

    def run(self, **kwargs):
        for block in list(self.document.findall(nodes.literal_block)):
            in_cell = "cell_input" in block.parent.get("classes", [])
            if not in_cell or not MARK.search(block.astext()):
                continue
            text = MARK.sub("", block.astext()).strip("\n")
            if text:
                block.rawsource = text
                block.children = []
                block.append(nodes.Text(text))
            else:  # a cell of marks alone shows nothing
                cell = block.parent.parent
                cell.parent.remove(cell)


def setup(app):
    app.add_post_transform(HideToolMarks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
