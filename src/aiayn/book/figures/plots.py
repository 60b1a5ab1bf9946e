"""Panels with an axis of values: bars and curves."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from .numbers import (
    MOST_DECIMALS,
    as_lists,
    check_below,
    check_decimals,
    check_maximum,
    check_number,
    check_text,
    decimals_for,
    fixed,
    round_span,
    rounded,
    shown_decimals,
    ticks_within,
)
from .states import States, check_list, check_names_fit, names_for
from .panels import Panel, cells_html

MOST_X_LABELS = 8  # labels below a plot that a phone can show side by side
NUMBERS_IN_TEXT = 12  # numbers of a row in the plain text


def numbers_fold(
    label: str, heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """The numbers of a plot, as a table that opens."""
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{cells_html("td", row[1:])}</tr>'
        for row in rows
    )
    head = cells_html("th", heads, ' scope="col"')
    return (
        "<details><summary>The numbers</summary>"
        '<div class="scroll" tabindex="0" role="region" '
        f'aria-label="The numbers of {escape(label)}">'
        f"<table><thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div></details>"
    )


class Plot(Panel):
    """What has an axis of values: a frame, paths in it, and the numbers in a fold."""

    low = high = 0.0
    y_label: str | None = None
    x_label: str | None = None

    def height(self, value: float) -> float:
        """From 0 at the top of the frame to 100 at its foot."""
        return round(100 - 100 * (value - self.low) / (self.high - self.low), 2)

    def frame(self, what: str, paths: Sequence[str], x_labels) -> str:
        ticks, decimals = ticks_within(self.low, self.high)
        texts = [fixed(tick, decimals) for tick in ticks]
        heights = [f"{self.height(tick):g}" for tick in ticks]
        ys = " ".join(
            f'<span style="top:{height}%">{text}</span>'
            for height, text in zip(heights, texts, strict=True)
        )
        lines = "".join(f"M0 {height}H100" for height in heights)
        foot = 0 if self.low <= 0 <= self.high else self.low
        zero = f'<path class="zero" d="M0 {self.height(foot):g}H100"/>'
        y = f'<p class="axis" aria-hidden="true">{escape(self.y_label or "")}</p>'
        x = f'<p class="axis" aria-hidden="true">{escape(self.x_label or "")}</p>'
        return (
            f"{y if self.y_label else ''}"
            f'<div class="frame" style="--tick:{max(map(len, texts))}ch">'
            f'<div class="ys" aria-hidden="true">{ys}</div>'
            f'<svg role="img" aria-label="{escape(what)}" viewBox="0 0 100 100" '
            f'preserveAspectRatio="none"><path class="lines" d="{lines}"/>'
            f"{zero}{''.join(paths)}"
            '<path class="guide"/></svg>'
            f'<div class="xs" aria-hidden="true">{x_labels}</div>'
            f'<p class="read" aria-hidden="true"></p></div>{x if self.x_label else ""}'
        )


class Bars(Plot):
    """One bar for each number."""

    kind = "bars"

    def __init__(
        self,
        label: str,
        function: Callable,
        names: Sequence | Callable | None = None,
        maximum: float | None = None,
        *,
        x_label: str | None = None,
        decimals: int | None = None,
        color: str = "query",
    ):
        where = f"Bars {check_text(label, 'Bars, label')!r}"
        check_maximum(maximum, where)
        check_decimals(decimals, where)
        check_axis(x_label, f"{where}, x_label")
        self.label, self.function, self.names = label, function, names
        self.maximum, self.decimals, self.x_label = maximum, decimals, x_label
        self.color = check_color(color)

    def prepare(self, controls):
        where = f"Bars {self.label!r}"
        self.values = States(self.function, controls, where)
        self.values.each(check_list)
        self.values.each(lambda row, at: [check_number(value, at) for value in row])
        self.named = names_for(self.values, self.names, controls, f"{where}, names")
        given = self.names is not None
        check_names_fit(self.values, self.named, controls, where, given)
        every = [value for row in self.values.states for value in row]
        check_below(self.maximum, max(map(abs, every)), where)
        self.decimals = digits = shown_decimals(every, self.decimals, where)
        self.values.each(lambda row, at: [rounded(value, digits) for value in row])
        every = [value for row in self.values.states for value in row]
        self.low, self.high = round_span(every, zero=True)
        if self.maximum is not None:
            self.high = self.maximum
            self.low = -self.maximum if min(every) < 0 else 0

    def parts(self):
        return {"values": self.values, "names": self.named}

    def settings(self):
        return {"decimals": self.decimals, "low": self.low, "high": self.high}

    def body(self):
        values, names = self.values.now, self.named.now
        count, zero, path = len(values), self.height(0), ""
        for i, value in enumerate(values):
            left, right = 100 * (i + 0.1) / count, 100 * (i + 0.9) / count
            top = self.height(value)
            path += f"M{left:.2f} {zero:g}V{top:g}H{right:.2f}V{zero:g}Z"
        path = f'<path class="area {self.color}" d="{path}"/>'
        step = math.ceil(count / MOST_X_LABELS)
        labels = " ".join(
            f'<span style="left:{100 * (i + 0.5) / count:.2f}%">{escape(names[i])}</span>'
            for i in range(0, count, step)
        )
        what = f"Bars: {self.label}; the table below has the numbers"
        rows = [
            (name, fixed(value, self.decimals))
            for name, value in zip(names, values, strict=False)
        ]
        fold = numbers_fold(self.label, (self.x_label or "bar", self.label), rows)
        return self.frame(what, [path], labels) + fold

    def text(self):
        return [f"{self.label}: {row_text(self.values.now, self.decimals)}"]


def row_text(values: Sequence[float], decimals: int) -> str:
    texts = [fixed(value, decimals) for value in values[:NUMBERS_IN_TEXT]]
    return " ".join([*texts, "…"] if len(values) > NUMBERS_IN_TEXT else texts)


LINE_COLORS = ("query", "key", "value", "accent", "muted")


def place_label(left: float, text: str) -> str:
    """A label below its place; a long one at the right edge stays inside of it."""
    inside = ";transform:translateX(-100%)" if left > 95 and len(text) > 3 else ""
    return f'<span style="left:{left:g}%{inside}">{text}</span>'


def check_axis(label, where: str) -> None:
    if label is not None:
        check_text(label, where)


def check_range(span, where: str) -> None:
    """Two numbers that rise, by enough for ticks between them."""
    if not isinstance(span, tuple | list) or len(span) != 2:
        raise TypeError(f"{where}: expected two numbers, got {span!r}")
    low, high = (check_number(end, where) for end in span)
    if high - low < max(1e-9 * max(abs(low), abs(high)), 10.0**-MOST_DECIMALS):
        raise ValueError(f"{where}: {span} is no range")


def decimals_of_places(x: Sequence[float], where: str) -> int:
    """Decimals that keep the places of a curve apart, and its steps in proportion."""
    if all(float(place).is_integer() for place in x):
        return 0
    gap = min(b - a for a, b in itertools.pairwise(x))
    decimals = max(decimals_for(x, None), 1 - math.floor(math.log10(gap) + 1e-9))
    if decimals > MOST_DECIMALS:
        raise ValueError(f"{where}: steps of {gap:.4g} are too small; rescale")
    return decimals


def check_color(role: str) -> str:
    if role not in LINE_COLORS:
        raise ValueError(f"color={role!r} is not one of {', '.join(LINE_COLORS)}")
    return role


class Curve(Plot):
    """A line over x, or several."""

    kind = "curve"

    def __init__(
        self,
        label: str,
        function: Callable | Mapping[str, Callable],
        x: Iterable,
        x_label: str | None = None,
        y_label: str | None = None,
        y_range: tuple[float, float] | None = None,
        *,
        mark: Callable | None = None,
        decimals: int | None = None,
        colors: Sequence[str] = LINE_COLORS,
    ):
        where = f"Curve {check_text(label, 'Curve, label')!r}"
        check_decimals(decimals, where)
        check_axis(x_label, f"{where}, x_label")
        check_axis(y_label, f"{where}, y_label")
        if y_range is not None:
            check_range(y_range, f"{where}, y_range")
        if isinstance(function, Mapping):
            for name in function:
                check_text(name, f"{where}, name")
        self.label, self.x, self.mark = label, x, mark
        self.lines = function if isinstance(function, Mapping) else {"": function}
        self.x_label, self.y_label, self.y_range = x_label, y_label, y_range
        self.decimals, self.colors = decimals, [check_color(color) for color in colors]

    def prepare(self, controls):
        where = f"Curve {self.label!r}"
        if not 0 < len(self.lines) <= len(self.colors):
            raise ValueError(
                f"{where}: {len(self.lines)} lines, expected 1 to {len(self.colors)}"
            )
        x = check_list(as_lists(self.x), f"{where}, x")
        x = [check_number(value, f"{where}, x") for value in x]
        if len(x) < 2 or any(a >= b for a, b in itertools.pairwise(x)):
            raise ValueError(f"{where}, x: expected two or more rising numbers")
        self.x_decimals = decimals_of_places(x, f"{where}, x")
        self.xs = [rounded(value, self.x_decimals) for value in x]

        def line(values, at):
            values = [check_number(value, at) for value in check_list(values, at)]
            if len(values) != len(x):
                raise ValueError(f"{at}: {len(values)} numbers for {len(x)} of x")
            return values

        self.series = {}
        for name, function in self.lines.items():
            said = f"{where}, {name!r}" if name else where
            self.series[name] = States(function, controls, said)
            self.series[name].each(line)
        everything = self.series.values()
        every = [v for part in everything for state in part.states for v in state]
        self.decimals = digits = shown_decimals(every, self.decimals, where)
        for part in everything:
            part.each(lambda row, at: [rounded(value, digits) for value in row])
        self.low, self.high = self.y_range or round_span(every, zero=False)
        slack = 10.0**-digits
        if min(every) < self.low - slack or max(every) > self.high + slack:
            raise ValueError(
                f"{where}: numbers from {min(every):.4g} to {max(every):.4g} "
                f"leave y_range={self.y_range}"
            )
        self.marked = None
        if self.mark is not None:

            def place(value, at):
                if not x[0] <= check_number(value, at) <= x[-1]:
                    raise ValueError(f"{at}: {value} is outside of x")
                return rounded(value, max(4, self.x_decimals))

            self.marked = States(self.mark, controls, f"{where}, mark")
            self.marked.each(place)

    def parts(self):
        parts = {str(i): part for i, part in enumerate(self.series.values())}
        return {**parts, **({"mark": self.marked} if self.marked else {})}

    def settings(self):
        return {
            **{"decimals": self.decimals, "low": self.low, "high": self.high},
            **{"x": self.xs, "xDecimals": self.x_decimals},
            "names": list(self.series),
        }

    def along(self, x: float) -> float:
        return round(100 * (x - self.xs[0]) / (self.xs[-1] - self.xs[0]), 2)

    def body(self):
        paths, legend = [], ""
        for color, (name, part) in zip(self.colors, self.series.items(), strict=False):
            points = zip(self.xs, part.now, strict=True)
            path = "L".join(f"{self.along(x):g} {self.height(y):g}" for x, y in points)
            paths.append(f'<path class="line {color}" d="M{path}"/>')
            legend += f'<li class="{color}">{escape(name)}</li>'
        if self.marked:
            paths.append(
                f'<path class="mark" d="M{self.along(self.marked.now):g} 0V100"/>'
            )
        ticks, decimals = ticks_within(self.xs[0], self.xs[-1])
        labels = " ".join(place_label(self.along(x), fixed(x, decimals)) for x in ticks)
        legend = f'<ul class="legend">{legend}</ul>' if len(self.series) > 1 else ""
        what = f"Line plot: {self.label}; the table below has the numbers"
        rows = [
            [fixed(x, self.x_decimals), *(fixed(y, self.decimals) for y in ys)]
            for x, *ys in zip(
                self.xs, *(part.now for part in self.series.values()), strict=True
            )
        ]
        heads = [self.x_label or "x", *(name or self.label for name in self.series)]
        fold = numbers_fold(self.label, heads, rows)
        return legend + self.frame(what, paths, labels) + fold

    def text(self):
        return [
            f"{self.label}{f', {name}' if name else ''}: "
            f"{row_text(part.now, self.decimals)}"
            for name, part in self.series.items()
        ]
