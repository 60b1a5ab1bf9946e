"""A line of letters above the glossary, each a link to the first term under it."""

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

PAGE = "book/glossary"


def letters(document):
    """First letter -> anchor of the first term that begins with it."""
    first = {}
    for term in document.findall(nodes.definition_list):
        anchor = next((i for i in term["ids"] if i.startswith("term-")), None)
        if anchor:
            first.setdefault(term.astext()[0].upper(), anchor)
    return first


class ShowLetters(SphinxPostTransform):
    default_priority = 700
    formats = ("html",)

    def run(self, **kwargs):
        if self.env.docname != PAGE:
            return
        line = nodes.paragraph(classes=["letters"])
        for letter, anchor in letters(self.document).items():
            line += nodes.reference("", letter, internal=True, refid=anchor)
            line += nodes.Text(" ")
        first = next(self.document.findall(nodes.definition_list))
        first.parent.insert(first.parent.index(first), line)


def setup(app):
    app.add_post_transform(ShowLetters)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
