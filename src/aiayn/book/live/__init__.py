"""The copy model in the reader's page: it runs there, without a server or a library.

    from aiayn.book.live import live_model

    live_model()

The output holds a worked state: a sequence, what the model wrote, its probabilities, the
maps of all heads. The script beside it brings the same model to life: `engine.js` is the
Transformer, `live.js` what a reader sees and touches, `live.css` the look. Weights come
in half precision, from a script of their own that is loaded when it is needed. Where
``AIAYN_FIGURES=external`` is set, as in the tools that store outputs, style, scripts and
weights are left to the pages of the book.
"""

import os
from functools import cached_property
from importlib.resources import files

from . import page, state
from .weights import rounded_model, weights_file, weights_script

__all__ = [
    "LiveModel",
    "asset",
    "live_model",
    "rounded_model",
    "weights_file",
    "weights_script",
]


def asset(name: str) -> str:
    """``live.css`` or ``live.js`` as a page carries it, the engine included."""
    folder = files(__package__)
    names = ["engine.js", "live.js"] if name == "live.js" else [name]
    return "".join(folder.joinpath(part).read_text(encoding="utf-8") for part in names)


class LiveModel:
    """The trained copy model as a figure; a notebook shows it as HTML, and as text."""

    def __init__(self, title: str, sequence: str):
        self.title, self.sequence = title, state.check_sequence(sequence)

    @cached_property
    def copied(self) -> state.Copied:
        return state.copy(self.sequence)

    def html(self) -> str:
        return page.html(self.title, self.sequence, self.copied, weights_file())

    def text(self) -> str:
        return page.text(self.title, self.copied)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        html = self.html()
        if os.environ.get("AIAYN_FIGURES") != "external":
            html += (
                f"<style data-aiayn>\n{asset('live.css')}</style>\n"
                f"<script data-aiayn>\n{weights_script()}</script>\n"
                f"<script data-aiayn>\n{asset('live.js')}</script>\n"
            )
        return {"text/html": html, "text/plain": self.text()}

    def __repr__(self) -> str:
        return self.text()


def live_model(
    title: str = "The trained model at work", *, sequence: str = "jadeface"
) -> LiveModel:
    """The copy model, to run in the page.

    Args:
        title: stands above the figure.
        sequence: letters from a to j, what the page begins with; 1 to 20 of them.

    Raises:
        TypeError, ValueError: if the sequence is none that the model learned to copy.
    """
    return LiveModel(title, sequence)
