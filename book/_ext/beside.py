"""Marks an equation and the code that computes it, so that they can stand together.

The pair is a labelled equation and the next code cell of its section, if a docstring
in that cell names the equation; a few sentences may lie between. On a wide screen the
style sheet puts the two side by side. JupyterLab, Colab, paper and phones show them
one below the other.
"""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

NAMED = re.compile(r":eq:`((?:eq|res)-[\w-]+)`")
BETWEEN = (nodes.math_block, nodes.paragraph, nodes.bullet_list, nodes.target)
MOST_WORDS = 130  # between an equation and its code
FOLDED = {"tag_hide-input", "tag_hide-cell"}


class beside(nodes.Element):
    """Two ``side``s: the equation with its words, and the cell."""


class side(nodes.Element):
    """One half of a pair."""


def named(cell):
    """Labels of the equations that the docstrings of a visible cell name."""
    classes = set(cell.get("classes", []))
    if "cell" not in classes or FOLDED & classes:
        return set()
    code = cell.next_node(nodes.literal_block)
    return set(NAMED.findall(code.astext())) if code is not None else set()


def start(section, place):
    """Where the pair that ends with the cell at ``place`` begins, or None."""
    labels, words, first = named(section[place]), 0, None
    for at in reversed(range(place)):
        node = section[at]
        if not labels or not isinstance(node, BETWEEN) or words > MOST_WORDS:
            break
        if isinstance(node, nodes.math_block):
            if node.get("label") in labels:
                first = at
        else:
            words += len(node.astext().split())
    return first


class PairUp(SphinxPostTransform):
    default_priority = 200  # tool marks are gone, folds are not made yet
    formats = ("html",)

    def run(self, **kwargs):
        for section in list(self.document.findall(nodes.section)):
            for cell in [node for node in section if "cell" in node.get("classes", [])]:
                place = section.index(cell)
                first = start(section, place)
                if first is None:
                    continue
                words, code = (
                    side(classes=["beside-words"]),
                    side(classes=["beside-code"]),
                )
                words.extend(section[first:place])
                code.append(cell)
                pair = beside(classes=["beside"])
                pair.extend([words, code])
                section[first : place + 1] = [pair]


def visit(self, node):
    self.body.append(self.starttag(node, "div"))


def depart(self, node):
    self.body.append("</div>\n")


def setup(app):
    app.add_node(beside, html=(visit, depart))
    app.add_node(side, html=(visit, depart))
    app.add_post_transform(PairUp)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
