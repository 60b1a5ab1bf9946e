"""The panel that is a table of coloured cells: weights, masks, signed numbers."""

import re
from collections.abc import Callable, Sequence
from html import escape

from .numbers import (
    check_below,
    check_decimals,
    check_maximum,
    check_number,
    check_text,
    fixed,
    rounded,
    shown_decimals,
)
from .states import States, check_names, check_names_fit, names_for
from .panels import Panel, cells_html


def filled(sentence: str, **words: str) -> str:
    """A sentence with words in place of {row}, {column}, …; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), sentence)


class Grid(Panel):
    """A table of coloured cells."""

    kind = "grid"
    KINDS = ("weights", "mask", "signed")

    def __init__(
        self,
        label: str,
        function: Callable,
        rows: Sequence | Callable | None = None,
        columns: Sequence | Callable | None = None,
        kind: str = "weights",
        *,
        axes: tuple[str, str] = ("query", "key"),
        say: str | tuple[str, str] | None = None,
        decimals: int | None = None,
        maximum: float | None = None,
    ):
        if kind not in self.KINDS:
            raise ValueError(f"kind={kind!r} is not one of {', '.join(self.KINDS)}")
        where = self.where(check_text(label, f"{type(self).__name__}, label"))
        check_decimals(decimals, where)
        check_maximum(maximum, where)
        if not isinstance(axes, tuple | list) or len(axes) != 2:
            raise TypeError(f"{where}, axes: expected two texts, got {axes!r}")
        for axis in axes:
            check_text(axis, f"{where}, axes")
        if say is not None:
            sentences = say if isinstance(say, tuple | list) else [say]
            for sentence in sentences:
                check_text(sentence, f"{where}, say")
        self.label, self.function, self.cells = label, function, kind
        self.rows, self.columns, self.axes = rows, columns, axes
        self.say, self.decimals, self.maximum = say, decimals, maximum
        if kind == "weights" and decimals is None:
            self.decimals = 2

    def prepare(self, controls):
        where = self.where(self.label)
        part = self.values = States(self.function, controls, where)
        part.each(self._matrix)
        every = [cell for state in part.states for row in state for cell in row]
        every = [cell for cell in every if cell is not None]
        if not every:
            raise ValueError(f"{where}: no state has a cell")
        self.prepare_cells(every, where)
        rows, columns = self.rows is not None, self.columns is not None
        self.row_names = names_for(part, self.rows, controls, f"{where}, rows")
        check_names_fit(part, self.row_names, controls, f"{where}, rows", rows)
        across = self.columns
        if across is None:
            across = list(range(max(len(rows[0]) for rows in part.states)))
        self.column_names = States(across, controls, f"{where}, columns")
        self.column_names.each(check_names)
        width = lambda rows: len(rows[0])
        check_names_fit(
            part, self.column_names, controls, f"{where}, columns", columns, width
        )
        if self.say is None:
            row = "“{row}”" if rows else f"{self.axes[0]} {{row}}"
            column = "“{column}”" if columns else f"{self.axes[1]} {{column}}"
            self.say = {
                "weights": f"{row} gives {column} the weight {{value}}",
                "mask": (
                    f"{row} may attend to {column}",
                    f"{row} may not attend to {column}",
                ),
                "signed": f"{row}, {column}: {{value}}",
            }[self.cells]
        self.say = [self.say] if isinstance(self.say, str) else list(self.say)
        if len(self.say) != 1 + (self.cells == "mask"):
            raise ValueError(f"{where}: say={self.say} is not one sentence for a value")

    def where(self, label: str) -> str:
        """How an error names this panel."""
        return f"{type(self).__name__} {label!r}"

    def prepare_cells(self, every: list, where: str) -> None:
        """Find decimals and scale of all cells, and round them."""
        self.high = 1
        if self.cells == "mask":
            return
        self.decimals = digits = shown_decimals(every, self.decimals, where)
        largest = max(map(abs, every))
        check_below(self.maximum, largest, where)
        self.high = self.maximum or rounded(largest, max(4, digits)) or 1
        self.values.each(
            lambda rows, at: [
                [None if cell is None else rounded(cell, digits) for cell in row]
                for row in rows
            ]
        )

    def _matrix(self, rows, where):
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise TypeError(f"{where}: expected rows of numbers, got {rows!r:.60}")
        if not rows or not rows[0] or len({len(row) for row in rows}) > 1:
            lengths = [len(row) for row in rows]
            raise ValueError(f"{where}: rows of {lengths} cells are no grid")
        return [[self._cell(cell, where) for cell in row] for row in rows]

    def _cell(self, cell, where):
        if cell is None:
            return None
        if self.cells != "mask":
            cell = check_number(cell, where)
            if self.cells == "weights" and cell < 0:
                raise ValueError(f'{where}: {cell} is negative; use kind="signed"')
            return cell
        if not isinstance(cell, bool):
            raise TypeError(f"{where}: a mask is boolean, got {cell!r}")
        return int(cell)

    def parts(self):
        return {
            "cells": self.values,
            "rows": self.row_names,
            "columns": self.column_names,
        }

    def settings(self):
        settings = {"cells": self.cells, "high": self.high, "say": self.say}
        if self.cells != "mask":
            settings["decimals"] = self.decimals
        return {**settings, "corner": " ╲ ".join(self.axes)}

    def shown(self, cell) -> str:
        if cell is None:
            return ""
        if self.cells == "mask":
            return "✓" if cell else "·"
        return fixed(cell, self.decimals)

    def said(self, cell, row: str, column: str) -> str:
        text = self.say[0] if self.cells != "mask" or cell else self.say[1]
        return filled(text, row=row, column=column, value=self.shown(cell))

    def td(self, cell, row: str, column: str) -> str:
        if cell is None:
            return '<td class="none"></td>'
        # a rounded cell may be larger than the largest number; a colour may not
        share = min(100, 100 * abs(cell) / self.high)
        share = f"{share:.1f}".removesuffix(".0")
        style = f' style="--w:{share}%"'
        kind = ' class="minus"' if cell < 0 else ""
        if self.cells == "mask":
            kind, style = (' class="yes"' if cell else ' class="no"'), ""
        label = escape(self.said(cell, row, column))
        name = f' aria-label="{label}"' if self.cells == "mask" else ""
        return f"<td{kind}{style}{name}>{self.shown(cell)}</td>"

    def body(self):
        cells, columns = self.values.now, self.column_names.now
        columns = columns[: len(cells[0])]
        head = f'<th scope="col">{escape(" ╲ ".join(self.axes))}</th>'
        head += cells_html("th", columns, ' scope="col"')
        body = "\n".join(
            f'<tr><th scope="row">{escape(name)}</th>'
            + "".join(self.td(c, name, k) for c, k in zip(row, columns, strict=True))
            + "</tr>"
            for name, row in zip(self.row_names.now, cells, strict=False)
        )
        tallest = max(map(len, self.values.states))
        return (
            f'<div class="scroll" style="--rows:{tallest + 1}">'
            f'<table class="cells {self.cells}" '
            f'aria-label="{escape(self.label)}"><thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>\n"
            '<p class="cell" aria-live="polite"></p>'
        )

    def text(self):
        cells, columns = (
            self.values.now,
            self.column_names.now[: len(self.values.now[0])],
        )
        table = [["", *columns]]
        for name, row in zip(self.row_names.now, cells, strict=False):
            table.append([name, *(self.shown(cell) for cell in row)])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            " ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
            for row in table
        ]
        return [f"{self.label}:", *(f"  {line.rstrip()}" for line in lines)]
