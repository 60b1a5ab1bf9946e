"""Plots of notebooks, inlined as SVG so that they follow the page.

Black becomes the text's colour and each colour of the book's palette becomes a
variable of the style sheet, so that a plot has a dark form. The alternative text
names the image; a plot without one is a warning.
"""

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from aiayn.book.style import COLORS

LOG = logging.getLogger(__name__)
ROOT_TAG = re.compile(r'<svg [^>]*?viewBox="([\d. -]+)"[^>]*>')
VARIABLES = {
    color.lower(): f"var(--figure-{role}, {color})" for role, color in COLORS.items()
}
COLOR = re.compile("|".join(VARIABLES), re.I)


class InlinePlots(SphinxPostTransform):
    default_priority = 900
    formats = ("html",)

    def run(self, **kwargs):
        for image in list(self.document.findall(nodes.image)):
            path = Path(self.app.srcdir, image["uri"])
            # what a notebook drew lies in the build's own folder, not in the sources
            if path.suffix != ".svg" or "jupyter_execute" not in path.parts:
                continue
            alt = image.get("alt", "").strip()
            if not alt:
                LOG.warning("a plot without alternative text", location=image)
            svg = inline(path.read_text("utf8"), alt, prefix=f"p{path.stem[:8]}-")
            image.replace_self(nodes.raw(svg, svg, format="html"))


def inline(svg, alt, prefix):
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"\s*<style type=\"text/css\">.*?</style>", "", svg, flags=re.S)
    # ids are shared by everything on the page once inlined
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", svg)
    svg = re.sub(r"(stroke|fill): #000000", r"\1: currentColor", svg)
    svg = re.sub(r"<text\b", '<text fill="currentColor"', svg)
    svg = COLOR.sub(lambda match: VARIABLES[match[0].lower()], svg)

    def root(match):
        width, height = (float(n) * 4 / 3 for n in match[1].split()[2:])  # pt to px
        return (
            f'<svg class="plot" role="img" aria-label="{escape(alt)}" '
            f'viewBox="{match[1]}" width="{width:.0f}" height="{height:.0f}" '
            'xmlns="http://www.w3.org/2000/svg" '
            'xmlns:xlink="http://www.w3.org/1999/xlink">'
        )

    return ROOT_TAG.sub(root, svg, count=1)


def setup(app):
    app.add_post_transform(InlinePlots)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
