"""Interactive figures that hold their numbers: plain HTML, a little script, no library.

An explorer is controls and panels. Each panel shows what a Python function gives for
the state of the controls that its parameters name; the function is called here, once
for every such state, and all results are stored in the output. The script in the page
only selects and shows. A calculator takes numbers of the reader's own.

    from aiayn.book import figures

    figures.explorer(
        "How the width of a head saturates the softmax",
        figures.Slider("d_k", label="Width d_k", values=(1, 4, 16, 64), start=16),
        figures.Switch("scaled", label="Divide by √d_k", start=True),
        figures.Words(lambda d_k, scaled: f"The largest weight is {…:.2f}."),
        figures.Bars("Weights, largest first", lambda d_k, scaled: weights[d_k, scaled]),
    )

Controls are Slider, Stepper, Switch and Choice; panels are Words, Bars, Curve, Grid,
Tiles and Numbers. The page "Figures, for authors" of the book shows each of them beside
its code, with what a figure owes its reader.

Where ``AIAYN_FIGURES=external`` is set, as in the tools that store outputs, an output
holds no style and no script: the pages of the book bring them once.
"""

from .memory import Calculator, Entry, Option, calculator
from .controls import Choice, Slider, Stepper, Switch
from .explorer import Explorer, explorer
from .grid import Grid
from .output import asset
from .panels import Numbers, Words
from .plots import Bars, Curve
from .tiles import Tiles

__all__ = [
    "Bars",
    "Calculator",
    "Choice",
    "Curve",
    "Entry",
    "Explorer",
    "Grid",
    "Numbers",
    "Option",
    "Slider",
    "Stepper",
    "Switch",
    "Tiles",
    "Words",
    "asset",
    "calculator",
    "explorer",
]
