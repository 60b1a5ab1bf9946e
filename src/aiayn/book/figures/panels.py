"""What every panel has, and the panels without a drawing: numbers and sentences."""

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape

from .controls import Control
from .numbers import check_number, check_text, scalar_text
from .states import States


class Panel:
    kind = ""
    label = ""

    def prepare(self, controls: list[Control]) -> None:
        """Call the functions for every state and check what they give."""
        raise NotImplementedError

    def settings(self) -> dict:
        """What the script needs beside the states."""
        return {}

    def parts(self) -> dict[str, States]:
        raise NotImplementedError

    def body(self) -> str:
        """The first state as HTML."""
        raise NotImplementedError

    def text(self) -> list[str]:
        """The first state as lines of text."""
        raise NotImplementedError

    def data(self) -> dict:
        parts = {name: part.data() for name, part in self.parts().items()}
        return {"kind": self.kind, **self.settings(), "parts": parts}

    def html(self) -> str:
        label = f'<p class="label">{escape(self.label)}</p>\n' if self.label else ""
        body = (
            f"<div>\n{self.body()}\n</div>"  # labels of a row have a row of their own
        )
        return f'<div class="panel {self.kind}">\n{label}{body}\n</div>'


def cells_html(tag: str, texts: Sequence[str], attributes: str = "") -> str:
    return "".join(f"<{tag}{attributes}>{escape(text)}</{tag}>" for text in texts)


class Numbers(Panel):
    """A list of named numbers."""

    kind = "numbers"

    def __init__(self, functions: Mapping[str, Callable], label: str = ""):
        if not isinstance(functions, Mapping) or not functions:
            raise TypeError("Numbers: expected a dictionary of functions")
        check_text(label, "Numbers, label", empty=True)
        for name in functions:
            check_text(name, "Numbers, name")
        self.label, self.functions = label, functions

    def prepare(self, controls):
        self.values = {}
        for name, function in self.functions.items():
            part = States(function, controls, f"Numbers {name!r}")
            part.each(
                lambda v, at: (
                    v if isinstance(v, str) else scalar_text(check_number(v, at))
                )
            )
            self.values[name] = part

    def parts(self):
        return {str(i): part for i, part in enumerate(self.values.values())}

    def body(self):
        rows = "\n".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(part.now)}</dd></div>"
            for name, part in self.values.items()
        )
        return f"<dl>\n{rows}\n</dl>"

    def text(self):
        return [f"{name}: {part.now}" for name, part in self.values.items()]


class Words(Panel):
    """The sentence that says what the state means."""

    kind = "words"

    def __init__(self, function: Callable):
        self.function = function

    def prepare(self, controls):
        def sentence(value, at):
            if not isinstance(value, str) or not value.strip():
                raise TypeError(f"{at}: expected a sentence, got {value!r}")
            return re.sub(r"(?<![\w−-])-(?=\d)", "−", value)

        self.values = States(self.function, controls, "Words")
        self.values.each(sentence)

    def parts(self):
        return {"words": self.values}

    def body(self):
        return f'<output aria-live="polite">{escape(self.values.now)}</output>'

    def text(self):
        return [self.values.now]
