"""How long a chapter's core takes to read, under its title.

Counted at build, from what the page shows: prose at 200 words a minute, code at 20
lines a minute, displayed equations at 4 a minute. Folds, exercises and hidden cells
are left out.
"""

from docutils import nodes
from folds import fold, heading, is_folded
from sphinx.transforms.post_transforms import SphinxPostTransform

WORDS, LINES, EQUATIONS = 200, 20, 4  # a minute
SKIPPED = {"exercise", "solution", "tag_hide-input", "tag_hide-cell", "cell_output"}
TEXT = (nodes.paragraph, nodes.title, nodes.caption, nodes.term)


def minutes(page):
    """Reading time of a page's core, in minutes."""
    words = lines = equations = 0
    for node in page.findall(nodes.Element):
        if aside(node):
            continue
        if isinstance(node, nodes.math_block):
            equations += 1
        elif isinstance(node, nodes.literal_block):
            lines += sum(bool(line.strip()) for line in node.astext().splitlines())
        elif isinstance(node, TEXT):
            words += len(node.astext().split())
    return words / WORDS + lines / LINES + equations / EQUATIONS


def aside(node):
    """Whether a node belongs to a fold, an exercise or a hidden cell."""
    while node is not None:
        if isinstance(node, fold) or SKIPPED.intersection(node.get("classes", [])):
            return True
        if isinstance(node, nodes.section) and (
            is_folded(node) or heading(node) == "Exercises"
        ):
            return True
        node = node.parent
    return False


def in_words(time):
    """To the minute below ten, to five minutes above."""
    step = 1 if time < 10 else 5
    return max(1, step * round(time / step))


def spoken(time):
    return f"{time} minute" if time == 1 else f"{time} minutes"


class ShowReadingTime(SphinxPostTransform):
    default_priority = 150  # tool marks are gone, folds are not made yet
    formats = ("html",)

    def run(self, **kwargs):
        if not self.env.docname.startswith("notebooks/"):
            return
        time = in_words(minutes(self.document))
        text = f"About {spoken(time)}, folds and exercises aside"
        [title, *_] = self.document.findall(nodes.title)
        line = nodes.paragraph("", text, classes=["reading-time"])
        title.parent.insert(title.parent.index(title) + 1, line)


def setup(app):
    app.add_post_transform(ShowReadingTime)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
