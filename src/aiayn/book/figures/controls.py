"""What a reader can set: sliders, steppers, switches and choices."""

import keyword
from collections.abc import Iterable
from html import escape

from .numbers import as_lists, check_text, value_text

MOST_BUTTONS = 4  # alternatives that stand side by side; more go into a menu
MOST_ROOM = 12  # characters that a slider keeps free for its value


def plain(value):
    """A number of a tensor or an array as a number."""
    return as_lists(value) if hasattr(value, "tolist") else value


def check_name(name: str) -> str:
    if not check_text(name, "name").isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"name={name!r} cannot be the name of a parameter")
    return name


class Control:
    """What a reader can set: one of a list of values."""

    def __init__(self, name: str, label: str, values: Iterable, start):
        check_name(name)
        check_text(label, f"{name}, label")
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(f"{name}: expected a list of values, got {values!r}")
        values, start = [plain(value) for value in values], plain(start)
        if len(values) < 2:
            raise ValueError(f"{name}: {len(values)} values, expected two or more")
        self.name, self.label, self.values = name, label, values
        texts = [self.text(value) for value in values]
        if any(values.index(value) != i for i, value in enumerate(values)):
            raise ValueError(f"{name}: values={values} has a value twice")
        if start not in values:
            raise ValueError(f"{name}: start={start!r} is not one of {values}")
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise ValueError(f"{name}: values={values}: two read {twice[0]!r}")
        self.start, self.texts = values.index(start), texts

    def text(self, value) -> str:
        return value_text(value, f"{self.name}, values")


class Slider(Control):
    """An ordered list of values."""

    def html(self) -> str:
        longest = min(MOST_ROOM, max(map(len, self.texts)))
        return (
            f'<label class="slider"><span>{escape(self.label)}</span>'
            f'<input type="range" min="0" max="{len(self.values) - 1}" step="1" '
            f'value="{self.start}" aria-valuetext="{escape(self.texts[self.start])}" '
            f'data-control autocomplete="off"><b aria-hidden="true" '
            f'style="min-width:{longest}ch">{escape(self.texts[self.start])}</b></label>'
        )


class Stepper(Slider):
    """A slider over the steps of a process, with buttons to go through them."""

    def __init__(self, name: str, label: str, values: Iterable, start):
        super().__init__(name, label, values, start)
        self.texts = [f"{text} of {self.texts[-1]}" for text in self.texts]

    def html(self) -> str:
        buttons = "".join(
            f'<button type="button" data-go="{by}">{word}</button>'
            for by, word in ((-1, "Back"), (0, "Play"), (1, "Next"))
        )
        return (
            f'<div class="stepper" role="group" aria-label="{escape(self.label)}">'
            f"{super().html()}<div>{buttons}</div></div>"
        )


class Switch(Control):
    """False or True."""

    def __init__(self, name: str, label: str, start: bool = False):
        if not isinstance(start, bool):
            raise TypeError(f"{name}: start={start!r} is neither True nor False")
        super().__init__(name, label, (False, True), start)

    def text(self, value) -> str:
        return "on" if value else "off"

    def html(self) -> str:
        checked = " checked" if self.start else ""
        return (
            '<label class="switch"><input type="checkbox" role="switch" data-control '
            f'autocomplete="off"{checked}><span>{escape(self.label)}</span></label>'
        )


class Choice(Control):
    """A few alternatives."""

    def html(self) -> str:
        if len(self.values) > MOST_BUTTONS:
            options = "".join(
                f"<option{' selected' if i == self.start else ''}>{escape(t)}</option>"
                for i, t in enumerate(self.texts)
            )
            return (
                f'<label class="menu"><span>{escape(self.label)}</span>'
                f'<select data-control autocomplete="off">{options}</select></label>'
            )
        buttons = "".join(
            f'<label><input type="radio" name="{self.name}" value="{i}" '
            f'autocomplete="off"{" checked" if i == self.start else ""}>'
            f"<span>{escape(text)}</span></label>"
            for i, text in enumerate(self.texts)
        )
        return (
            f'<fieldset class="choice" data-control><legend>{escape(self.label)}</legend>'
            f"<div>{buttons}</div></fieldset>"
        )
