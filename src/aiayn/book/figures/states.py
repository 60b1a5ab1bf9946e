"""The values of a function for every state of the controls it names."""

import inspect
import itertools
import json
import math
from collections.abc import Callable

from .controls import Control
from .numbers import as_lists, value_text

MOST_STATES = 20_000
"""Calls of one function; more would not fit in an output anyway."""


class States:
    """The values of one function for every state of the controls it names."""

    def __init__(self, function, controls: list[Control], where: str):
        names = [control.name for control in controls]
        self.on: list[int] = []
        if callable(function):
            self.on = self._depends(function, names, where)
        sizes = [len(controls[i].values) for i in self.on]
        if math.prod(sizes) > MOST_STATES:
            raise ValueError(
                f"{where}: {math.prod(sizes):,} states of "
                f"{', '.join(names[i] for i in self.on)}, at most {MOST_STATES:,}"
            )
        self.start = 0
        for i in self.on:
            self.start = self.start * len(controls[i].values) + controls[i].start
        self.states, self.where = [], []
        for values in itertools.product(*(controls[i].values for i in self.on)):
            setting = dict(zip([names[i] for i in self.on], values, strict=True))
            said = ", ".join(f"{name}={value!r}" for name, value in setting.items())
            self.where.append(f"{where} ({said})" if said else where)
            value = function(**setting) if callable(function) else function
            self.states.append(as_lists(value))

    @staticmethod
    def _depends(function: Callable, names: list[str], where: str) -> list[int]:
        found = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
            ):
                raise TypeError(f"{where}: a function with the parameter {parameter}")
            if parameter.name in names:
                found.append(names.index(parameter.name))
            elif parameter.default is parameter.empty:
                raise ValueError(
                    f"{where}: its function takes {parameter.name!r}, which is no "
                    f"control; the controls are {', '.join(names) or 'none'}"
                )
        return sorted(found)

    @property
    def now(self):
        return self.states[self.start]

    def each(self, change: Callable) -> None:
        """Replace every state by what ``change(state, where)`` makes of it."""
        pairs = zip(self.states, self.where, strict=True)
        self.states = [change(state, where) for state, where in pairs]

    def data(self) -> dict:
        """Equal states are stored once."""
        unique, at = {}, []
        for state in self.states:
            at.append(unique.setdefault(compact(state), len(unique)))
        data = {"on": self.on, "states": self.states}
        shared = {
            "on": self.on,
            "states": [json.loads(key) for key in unique],
            "at": at,
        }
        return min(data, shared, key=lambda d: len(compact(d)))


def compact(value) -> str:
    """JSON that a browser reads: no NaN, no Infinity."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def check_list(value, where: str) -> list:
    if not isinstance(value, list):
        raise TypeError(f"{where}: expected a list of numbers, got {value!r}")
    if not value:
        raise ValueError(f"{where}: an empty list")
    for item in value:
        if isinstance(item, list):
            raise ValueError(f"{where}: expected one dimension, got more")
    return value


def check_names(value, where: str) -> list[str]:
    """Names of bars, rows or columns."""
    if not isinstance(value, list):
        raise TypeError(f"{where}: expected a list of names, got {value!r}")
    return [value_text(name, where) for name in value]


def names_for(part: States, names, controls, where: str) -> States:
    """The given names, or 0, 1, 2, … as many as `part` needs in its longest state."""
    if names is None:
        names = list(range(max(map(len, part.states))))
    named = States(names, controls, where)
    named.each(check_names)
    return named


def check_names_fit(
    part: States, named: States, controls, where: str, given: bool, of=len
):
    """Refuse names that are not as many as what they name, in any state."""
    on = sorted({*part.on, *named.on})
    sizes = [len(controls[i].values) for i in on]
    for state in itertools.product(*map(range, sizes)):
        at = dict(zip(on, state, strict=True))
        value = of(state_at(part, at, controls))
        names = len(state_at(named, at, controls))
        if names < value or (given and names != value):
            said = ", ".join(
                f"{controls[i].name}={controls[i].values[k]!r}" for i, k in at.items()
            )
            raise ValueError(f"{where} ({said}): {names} names for {value}")


def state_at(part: States, at: dict[int, int], controls):
    index = 0
    for i in part.on:
        index = index * len(controls[i].values) + at[i]
    return part.states[index]
