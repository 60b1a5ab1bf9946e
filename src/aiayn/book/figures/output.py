"""What a notebook or a page gets of a figure: HTML, with its style and script, and text."""

import os
import re
from html import escape
from importlib.resources import files


class Output:
    """A figure as a notebook shows it."""

    title = ""

    def html(self) -> str:
        """The first state, and what the script needs for all others."""
        raise NotImplementedError

    def text(self) -> str:
        """The first state in words and numbers."""
        raise NotImplementedError

    def framed(self, controls: str, panels: str, data: str) -> str:
        """Title, controls and panels; the script switches the controls on."""
        title, data = escape(self.title), data.replace("<", "\\u003c")
        return (
            f'<aiayn-figure>\n<figure aria-label="{title}">\n'
            f'<figcaption class="title">{title}</figcaption>\n'
            '<form autocomplete="off"><fieldset class="controls" disabled>'
            f"<legend>Controls</legend>\n{controls}\n</fieldset></form>\n"
            f'<div class="panels">\n{panels}\n</div>\n</figure>\n'
            f'<script type="application/json">{data}</script>\n</aiayn-figure>\n'
        )

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        html = self.html()
        if os.environ.get("AIAYN_FIGURES") != "external":
            html += (
                f"<style data-aiayn>\n{asset('figures.css')}</style>\n"
                f"<script data-aiayn>\n{asset('figures.js')}</script>\n"
            )
        return {"text/html": html, "text/plain": self.text()}

    def __repr__(self) -> str:
        return self.text()


def asset(name: str) -> str:
    """``figures.css`` or ``figures.js`` as a page carries it: no comments, no indents."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    text = re.sub(r"(?m)/\*.*?\*/|^\s*//.*$", "", text)
    text = re.sub(r"(?m)^\s+", "", text)
    if name.endswith(".css"):
        text = re.sub(r"\s*([{};>!])\s*|(?<=[,:]) ", r"\1", text)
        text = text.replace(";}", "}") + "\n"
    return text
