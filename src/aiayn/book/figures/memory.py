"""A calculator of memory: the reader enters numbers, the page works out bytes."""

import ast
import math
import random
from collections.abc import Callable, Mapping
from html import escape

from .controls import check_name
from .grid import filled
from .numbers import check_number, check_text
from .output import Output
from .states import compact

SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
OWN = "your own"
TRIALS = 200  # random entries at which a formula has to equal its function


class Entry:
    """A whole number that the reader types."""

    def __init__(self, name: str, label: str, start: int, low: int, high: int):
        self.name, self.label = check_name(name), check_text(label, f"{name}, label")
        for value in (start, low, high):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}: expected a whole number, got {value!r}")
        if not low <= start <= high:
            raise ValueError(f"{name}: start={start} is not from {low} to {high}")
        self.start, self.low, self.high = start, low, high

    def allows(self, value) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high

    def any(self, generator: random.Random) -> int:
        """A number of any size in the range."""
        low, high = max(self.low, 1), max(self.high, 1)
        return min(self.high, round(low * (high / low) ** generator.random()))

    def text(self, value) -> str:
        return f"{value:,}"

    def html(self) -> str:
        return (
            f'<label class="field"><span>{escape(self.label)}</span><input type="number" '
            f'min="{self.low}" max="{self.high}" step="1" value="{self.start}" required '
            f'inputmode="numeric" data-field="{self.name}" autocomplete="off"></label>'
        )


class Option:
    """A number that the reader picks by its name, as the bytes of a format."""

    def __init__(self, name: str, label: str, values: Mapping[str, float], start: str):
        self.name, self.label = check_name(name), check_text(label, f"{name}, label")
        if not isinstance(values, Mapping) or len(values) < 2:
            raise TypeError(f"{name}: expected a dictionary of numbers, got {values!r}")
        self.names = {
            check_number(v, name): check_text(k, name) for k, v in values.items()
        }
        if len(self.names) < len(values):
            raise ValueError(f"{name}: values={values} has a number twice")
        if start not in values:
            raise ValueError(f"{name}: start={start!r} is not one of {list(values)}")
        self.start = values[start]

    def allows(self, value) -> bool:
        return value in self.names

    def any(self, generator: random.Random) -> float:
        return generator.choice(list(self.names))

    def text(self, value) -> str:
        return self.names[value]

    def html(self) -> str:
        options = "".join(
            f'<option value="{value:g}"{" selected" if value == self.start else ""}>'
            f"{escape(name)}</option>"
            for value, name in self.names.items()
        )
        return (
            f'<label class="field"><span>{escape(self.label)}</span>'
            f'<select data-field="{self.name}" autocomplete="off">{options}</select></label>'
        )


def postfix(formula: str, names: list[str]) -> list:
    """A formula of + - * / as the order in which a stack works it out."""

    def steps(node):
        if isinstance(node, ast.BinOp) and type(node.op) in SYMBOLS:
            return [*steps(node.left), *steps(node.right), SYMBOLS[type(node.op)]]
        if isinstance(node, ast.Name) and node.id in names:
            return [node.id]
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return [node.value]
        raise ValueError(
            f"{formula!r}: {ast.unparse(node)} is neither one of {', '.join(names)} nor "
            "a number, nor a sum, difference, product or quotient of these"
        )

    return steps(ast.parse(formula, mode="eval").body)


def worked_out(program: list, values: Mapping[str, float]) -> float:
    stack = []
    for step in program:
        if step in SYMBOLS.values():
            b, a = stack.pop(), stack.pop()
            step = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else math.nan}[
                step
            ]
        stack.append(values.get(step, step))
    return stack.pop()


def readable(size: float) -> str:
    """Bytes with three digits and a decimal unit: 2.15 GB."""
    at = 0
    while size >= 1000 and at < len(UNITS) - 1:
        size, at = size / 1000, at + 1
    return f"{float(f'{size:.3g}'):,g} {UNITS[at]}"


class Calculator(Output):
    """Entries, and the bytes that formulas make of them."""

    def __init__(
        self,
        title: str,
        *entries: Entry | Option,
        results: Mapping[str, tuple[str, Callable]],
        presets: Mapping[str, Mapping[str, float]] | None = None,
        say: str = "",
    ):
        self.title, self.entries = check_text(title, "title"), entries
        self.presets, self.say = dict(presets or {}), check_text(say, "say")
        names = [entry.name for entry in entries]
        if not entries or len(set(names)) < len(names):
            raise ValueError(
                f"{title}: expected entries of different names, got {names}"
            )
        if not results:
            raise ValueError(f"{title}: nothing is computed")
        for preset, values in self.presets.items():
            known = {entry.name: entry for entry in entries}
            for name, value in values.items():
                if name not in known or not known[name].allows(value):
                    raise ValueError(f"{title}, {preset}: {name}={value!r} is no entry")
        self.programs = {name: postfix(f, names) for name, (f, _) in results.items()}
        self.start = {entry.name: entry.start for entry in entries}
        for name, (_, function) in results.items():
            self._prove(name, function)

    def _prove(self, name: str, function: Callable) -> None:
        """The formula runs in the page; at many entries the function says the same."""
        generator = random.Random(0)
        trials = [self.start, *({**self.start, **p} for p in self.presets.values())]
        trials += [
            {e.name: e.any(generator) for e in self.entries} for _ in range(TRIALS)
        ]
        for values in trials:
            wanted, got = function(**values), worked_out(self.programs[name], values)
            if not math.isclose(wanted, got, rel_tol=1e-12):
                raise ValueError(f"{name}: {got} by the formula, {wanted} for {values}")
            if not 0 <= got < 2**53:
                raise ValueError(f"{name}: {got:.4g} bytes for {values}")

    def sizes(self) -> dict[str, int]:
        """Whole bytes of each result at the first state."""
        programs = self.programs.items()
        return {name: math.ceil(worked_out(p, self.start)) for name, p in programs}

    def sentence(self) -> str:
        words = {entry.name: entry.text(entry.start) for entry in self.entries}
        words |= {name: readable(size) for name, size in self.sizes().items()}
        return filled(self.say, **words)

    def preset(self) -> str:
        """The preset that has the numbers of the first state."""
        fits = lambda values: values.items() <= self.start.items()
        return next((n for n, values in self.presets.items() if fits(values)), OWN)

    def html(self) -> str:
        controls = [entry.html() for entry in self.entries]
        if self.presets:
            options = "".join(
                f"<option{' selected' if name == self.preset() else ''}>{escape(name)}"
                "</option>"
                for name in (OWN, *self.presets)
            )
            controls.insert(
                0,
                '<label class="field"><span>Shapes of</span>'
                f'<select data-preset autocomplete="off">{options}</select></label>',
            )
        rows = "\n".join(
            f"<div><dt>{escape(name)}</dt><dd>{readable(size)} <small>{size:,} bytes"
            "</small></dd></div>"
            for name, size in self.sizes().items()
        )
        panels = (
            '<div class="panel words">\n<div>\n<output aria-live="polite">'
            f"{escape(self.sentence())}</output>\n</div>\n</div>\n"
            f'<div class="panel numbers sizes">\n<div><dl>\n{rows}\n</dl></div>\n</div>'
        )
        data = {
            "programs": self.programs,
            "presets": list(self.presets.values()),
            "say": self.say,
            "units": UNITS,
        }
        return self.framed("\n".join(controls), panels, compact(data))

    def text(self) -> str:
        entries = ", ".join(f"{e.label}: {e.text(e.start)}" for e in self.entries)
        sizes = [
            f"{name}: {readable(size)} ({size:,} bytes)"
            for name, size in self.sizes().items()
        ]
        return "\n".join([self.title, entries, self.sentence(), *sizes])


def calculator(title: str, *entries, results, presets=None, say: str) -> Calculator:
    """A figure in which the reader enters numbers of any size.

    Args:
        title: stands above the figure.
        entries: ``Entry`` for a whole number, ``Option`` for one with a name.
        results: name -> (formula, function): the formula of + - * / runs in the page,
            the function, called with all entries by name, has to give the same here.
        presets: name -> values of some entries, offered as a menu.
        say: the sentence that is announced; {name} of an entry or a result is filled in.
    """
    return Calculator(title, *entries, results=results, presets=presets, say=say)
