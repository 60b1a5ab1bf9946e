"""A section titled ``Going deeper: …`` is folded under its heading.

The heading stays where it is, with its number, its anchor and its line in the page's
contents; what follows it goes into a ``<details>``, which works by keyboard and
without a script. JupyterLab and Colab show the same section unfolded.
"""

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

MARK = "Going deeper: "


class fold(nodes.Element):
    """Content under a line that opens it; ``node["summary"]`` is that line."""


def visit_fold(self, node):
    self.body.append(self.starttag(node, "details", CLASS="fold"))
    self.body.append(f"<summary>{self.encode(node['summary'])}</summary>\n")
    self.body.append('<div class="fold-body">\n')


def depart_fold(self, node):
    self.body.append("</div></details>\n")


def heading(section):
    """A section's own heading as text."""
    at = section.first_child_matching_class(nodes.title)
    return "" if at is None else section[at].astext()


def is_folded(section):
    return heading(section).startswith(MARK)


class FoldSections(SphinxPostTransform):
    default_priority = 600  # numbers, links and cells are final by then
    formats = ("html",)

    def run(self, **kwargs):
        for section in list(self.document.findall(nodes.section)):
            if not is_folded(section):
                continue
            at = section.first_child_matching_class(nodes.title) + 1
            body = fold(summary="Not needed for what follows")
            body.extend(section[at:])
            section[at:] = [body]


def setup(app):
    app.add_node(fold, html=(visit_fold, depart_fold))
    app.add_post_transform(FoldSections)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
