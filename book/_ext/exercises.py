"""Exercises and their solutions as valid, permanent HTML; a solution is a fold.

sphinx-exercise numbers them and gathers a solution's cells, but gives every exercise
of a page the same inner id, addresses a solution by its place in the file, and needs
a script to fold it. Here the solution of ``ex-02-two-keys`` is ``sol-02-two-keys``.
"""

from docutils import nodes
from folds import fold
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx_exercise.nodes import is_exercise_node, is_solution_node


def put(node, others):
    """Replace a node and its ids, which docutils' ``replace_self`` would hand on."""
    at = node.parent.index(node)
    node.parent[at : at + 1] = others


def unwrap(node):
    """Replace the inner section, whose id is the same everywhere, by its content."""
    for inner in list(node.findall(nodes.section)):
        if inner["ids"] in (["exercise-content"], ["solution-content"]):
            put(inner, inner.children)


class NumberLinks(SphinxPostTransform):
    """``[](#ex-02-two-keys)`` reads "Exercise 2.1"; MyST would write title and all."""

    default_priority = 4  # before sphinx-exercise and MyST

    def run(self, **kwargs):
        exercises = getattr(self.env, "sphinx_exercise_registry", {})
        for link in list(self.document.findall(addnodes.pending_xref)):  # other pages
            if link["reftarget"] in exercises and not link.get("refexplicit"):
                link["refdomain"], link["reftype"] = "std", "numref"
                link.children = [nodes.literal("", "", classes=["xref", "std-numref"])]
        numbers = self.env.toc_fignumbers.get(self.env.docname, {}).get("exercise", {})
        for link in self.document.findall(nodes.reference):  # this page
            words = link.next_node(nodes.inline)
            wordless = words is not None and "std-ref" in words["classes"]
            if wordless and link.get("refid") in numbers:
                number = ".".join(map(str, numbers[link["refid"]]))
                link.children = []
                link += nodes.Text(f"Exercise {number}")


class FoldSolutions(SphinxPostTransform):
    default_priority = 500  # after sphinx-exercise has written titles and links
    formats = ("html",)

    def run(self, **kwargs):
        for exercise in list(self.document.findall(is_exercise_node)):
            unwrap(exercise)
            title = exercise.next_node(nodes.title)
            words = [child for child in title if child.astext() not in (" (", ")")]
            title.children = []
            title.extend(words)
        for solution in list(self.document.findall(is_solution_node)):
            unwrap(solution)
            body = fold(
                summary=solution["title"],
                ids=["sol-" + solution["target_label"].removeprefix("ex-")],
                classes=["solution"],
            )
            body.extend(solution.children[1:])
            put(solution, [body])


def setup(app):
    app.setup_extension("folds")
    app.add_post_transform(NumberLinks)
    app.add_post_transform(FoldSolutions)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
