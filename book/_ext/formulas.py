"""Formulas as HTML and MathML, rendered at build time by KaTeX inside Python.

No script reaches the page and no Node.js is needed. A formula that KaTeX cannot
set is a warning with its place, which `-W` turns into a failed build. An equation
labelled ``eq-name`` is addressed as ``#eq-name``.
"""

import json
from functools import cache
from pathlib import Path

import quickjs
from docutils import nodes
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

LOG = logging.getLogger(__name__)
KATEX = Path(__file__).parent / "katex" / "katex.min.js"
PART = '<span class="base">'  # lines may break between the parts of a formula
PREFIX = "equation-"  # what Sphinx puts before a label to make an id

LOAD = "var module = {exports: {}}, exports = module.exports;"
RENDER = """
function render(tex, displayMode) {
  const options = {displayMode, throwOnError: true, strict: "error", trust: false};
  try {
    return JSON.stringify({html: module.exports.renderToString(tex, options)});
  } catch (error) {
    return JSON.stringify({error: error.message});
  }
}
"""


@cache
def engine():
    context = quickjs.Context()
    context.eval(LOAD + KATEX.read_text("utf8") + ";" + RENDER)
    return context.get("render")


@cache
def render(tex, display):
    """KaTeX's answer for one formula: ``{"html": …}`` or ``{"error": …}``."""
    return json.loads(engine()(tex, display))


def to_html(node, *, display):
    answer = render(node.astext(), display)
    if "error" in answer:
        LOG.warning(
            "%s in the formula %r",
            answer["error"],
            node.astext(),
            location=node,
            type="katex",
        )
        return ""
    return answer["html"]


def visit_inline(self, node):
    self.body.append(self.starttag(node, "span", "", CLASS="math"))
    html = to_html(node, display=False)
    if "joined" in node.parent.get("classes", []):  # no breaks but inside (line_breaks)
        before, first, rest = html.partition(PART)
        html = before + first + rest.replace(PART, f"<wbr>{PART}")
    self.body.append(html + "</span>")
    raise nodes.SkipNode


def visit_block(self, node):
    label = node.get("label")
    numbered = node.get("number")
    anchor = f' id="{nodes.make_id(label)}"' if label else ""
    kind = "math numbered" if numbered else "math"
    self.body.append(f'<div class="{kind}"{anchor}>')
    self.body.append(to_html(node, display=True))
    if numbered:
        number = get_node_equation_number(self, node)
        self.body.append(
            f'<span class="eqno"><a href="#{nodes.make_id(label)}" '
            f'title="Link to this equation">({number})</a></span>'
        )
    self.body.append("</div>\n")
    raise nodes.SkipNode


def shorten_anchors(app, doctree, docname):
    """Point references at ``#eq-name`` where Sphinx wrote ``#equation-eq-name``."""
    for reference in doctree.findall(nodes.reference):
        if reference.get("refid", "").startswith(PREFIX):
            reference["refid"] = reference["refid"].removeprefix(PREFIX)
        if f"#{PREFIX}" in reference.get("refuri", ""):
            reference["refuri"] = reference["refuri"].replace(f"#{PREFIX}", "#")


def setup(app):
    app.add_html_math_renderer(
        "katex",
        inline_renderers=(visit_inline, None),
        block_renderers=(visit_block, None),
    )
    app.connect("doctree-resolved", shorten_anchors)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
