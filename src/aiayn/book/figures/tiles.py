"""The panel that is a table of cells in named states: tiles of a matrix, blocks, beams."""

from collections.abc import Callable, Mapping, Sequence
from html import escape

from .grid import Grid, filled
from .numbers import check_text
from .plots import check_color


class Tiles(Grid):
    """A table of cells that are each in one of a few states; a legend explains them."""

    def __init__(
        self,
        label: str,
        function: Callable,
        states: Mapping[str, tuple[str, str | None]],
        rows: Sequence | Callable | None = None,
        columns: Sequence | Callable | None = None,
        *,
        axes: tuple[str, str] = ("row", "column"),
        say: str = "{row}, {column}: {value}",
    ):
        super().__init__(label, function, rows, columns, axes=axes, say=say)
        where = self.where(label)
        if not isinstance(states, Mapping) or not states:
            raise TypeError(f"{where}: expected a dictionary of states, got {states!r}")
        self.names, self.signs, self.roles = list(states), [], []
        for name, look in states.items():
            check_text(name, f"{where}, states")
            if not isinstance(look, tuple | list) or len(look) != 2:
                raise TypeError(f"{where}, {name!r}: {look!r} is not (sign, color)")
            sign, role = look
            self.signs.append(check_text(sign, f"{where}, {name!r}, sign"))
            self.roles.append("" if role is None else check_color(role))
        if len({*zip(self.signs, self.roles, strict=True)}) < len(states):
            raise ValueError(f"{where}: two states look the same")
        self.cells = "states"

    def prepare_cells(self, every, where):
        used = {self._state(cell)[0] for cell in every}
        if idle := [name for i, name in enumerate(self.names) if i not in used]:
            raise ValueError(f"{where}: no cell is ever {', '.join(idle)}")

    def _cell(self, cell, where):
        if cell is None:
            return None
        state, *text = cell if isinstance(cell, list) else [cell]
        if state not in self.names or len(text) > 1:
            raise ValueError(f"{where}: {cell!r} is not one of {', '.join(self.names)}")
        index = self.names.index(state)
        return [index, check_text(text[0], where)] if text else index

    def _state(self, cell) -> tuple[int, str]:
        """The state of a cell, and the text that stands in it."""
        return tuple(cell) if isinstance(cell, list) else (cell, self.signs[cell])

    def settings(self):
        look = {"names": self.names, "signs": self.signs, "roles": self.roles}
        corner = " ╲ ".join(self.axes)
        return {"cells": self.cells, "say": self.say, **look, "corner": corner}

    def shown(self, cell) -> str:
        return "" if cell is None else self._state(cell)[1]

    def td(self, cell, row, column):
        if cell is None:
            return '<td class="none"></td>'
        state, text = self._state(cell)
        words = {"row": row, "column": column, "value": self.names[state]}
        label = filled(self.say[0], **words, text=text)
        return (
            f'<td class="state {self.roles[state]}" aria-label="{escape(label)}">'
            f"{escape(text)}</td>"
        )

    def body(self):
        legend = "".join(
            f'<li><span class="state {role}" aria-hidden="true">{escape(sign)}</span> '
            f"{escape(name)}</li>"
            for name, sign, role in zip(self.names, self.signs, self.roles, strict=True)
        )
        return f'<ul class="legend states">{legend}</ul>\n{super().body()}'

    def text(self):
        pairs = zip(self.signs, self.names, strict=True)
        return [*super().text(), f"  ({', '.join(map(' '.join, pairs))})"]
