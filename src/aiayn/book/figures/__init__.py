"""Interactive figures that hold their numbers: plain HTML, a little script, no library.

An explorer is controls and panels. Each panel shows what a Python function gives for
the state of the controls; the function is called here, once for every state, and all
results are stored in the output. The script in the page only selects and shows.

    from aiayn.book import figures

    figures.explorer(
        "How the width of a head saturates the softmax",
        figures.Slider("d_k", label="Width d_k", values=(1, 4, 16, 64), start=16),
        figures.Switch("scaled", label="Divide by √d_k", start=True),
        figures.Bars("Weights, largest first", lambda d_k, scaled: weights[d_k, scaled]),
        figures.Words(lambda d_k, scaled: f"The largest weight is {…:.2f}."),
    )

**Controls.** ``Slider(name, label, values, start)`` for an ordered list of values,
``Switch(name, label, start)`` for False and True, ``Choice(name, label, values, start)``
for a few alternatives. ``start`` is one of the values.

**Panels.** A function's parameters name the controls that it depends on, and it is
called for every combination of *those*: name only what is used. A parameter with a
default value that is no control keeps its default. Functions return numbers: lists,
tensors, arrays.

- ``Bars(label, function, names=None, maximum=None)``: one bar for each number, from 0,
  up or down. `names` of the bars are a list, or a function where they vary.
- ``Grid(label, function, rows=None, columns=None, kind="weights")``: a table of
  coloured cells, a row of it a query. Kinds are "weights" (from nothing to blue),
  "mask" (booleans) and "signed" (orange below zero, blue above). `rows` and `columns`
  name its headers, as lists, or as functions where sizes vary; `axes` says what they
  count. ``None`` in place of a number: no such cell.
- ``Curve(label, function, x, x_label=None, y_label=None, y_range=None, mark=None)``: a
  line, or several from a dictionary of named functions. `mark` is a function that
  gives the place on the x axis of a vertical line.
- ``Numbers({label: function, …})``: a small list of numbers; strings stand as they are.
- ``Words(function)``: the sentence that says what the state means; it is announced.

Axes and colours span all states, so that states can be compared by eye. Arrays are
rounded to `decimals` (by default four digits of the largest number) and shown so.
Numbers that are too large to show, or that all round to zero, are refused: rescale.
An output stays below 100 kB; 60 kB is a good limit. Fewer values, fewer names in a
parameter list and shorter sentences make it smaller.

Where ``AIAYN_FIGURES=external`` is set, as in the tools that store outputs, an output
holds no style and no script: the pages of the book bring them once.
"""

from .calculator import Calculator, Entry, Option, calculator
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
