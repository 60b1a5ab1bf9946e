"""Examples that run while the pages are built: their code and the figure it gives.

    ```{figure-example}
    from aiayn.book import figures

    figures.explorer(...)
    ```

The last line of an example gives its figure; an example stands alone, so that it can
be copied. ``:no-code:`` shows the figure without its code. A plot of matplotlib needs
``:alt:`` and ``:caption:``, as in a chapter.
"""

import ast
import io
from html import escape

from docutils import nodes
from docutils.parsers.rst import directives
from notebook_figures import inline
from sphinx.util.docutils import SphinxDirective


def value_of(code):
    """Run ``code``; the value of its last line, which is an expression."""
    *lines, last = ast.parse(code).body or [None]
    if not isinstance(last, ast.Expr):
        raise ValueError("the last line of an example gives its figure")
    names = {"__name__": "example"}
    exec(compile(ast.Module(lines, []), "<example>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<example>", "eval"), names)


def html_of(value, alt, caption, prefix):
    """An interactive figure as it stands in a notebook, or a plot as SVG."""
    if hasattr(value, "_repr_mimebundle_"):
        return value._repr_mimebundle_()["text/html"]
    if not alt:
        raise ValueError("a plot without alternative text: give it as :alt:")
    if not caption:
        raise ValueError("a plot without a caption: give it as :caption:")
    drawn = io.StringIO()
    value.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    svg = inline(drawn.getvalue(), alt, prefix)
    words = f'<p><span class="caption-text">{escape(caption)}</span></p>'
    return f"<figure>{svg}<figcaption>{words}</figcaption></figure>"


class FigureExample(SphinxDirective):
    has_content = True
    option_spec = {
        "alt": directives.unchanged_required,
        "caption": directives.unchanged_required,
        "no-code": directives.flag,
    }

    def run(self):
        code = "\n".join(self.content)
        prefix = f"example-{self.env.new_serialno('example')}-"
        try:
            said = [self.options.get(name, "") for name in ("alt", "caption")]
            html = html_of(value_of(code), *said, prefix)
        except Exception as error:  # whatever it is: the build says where
            raise self.error(f"{type(error).__name__}: {error}") from error
        figure = nodes.container("", nodes.raw("", html, format="html"))
        figure["classes"].append("cell_output")  # looks like an output of a notebook
        if "no-code" in self.options:
            return [figure]
        return [nodes.literal_block(code, code, language="python"), figure]


def setup(app):
    app.add_directive("figure-example", FigureExample)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
