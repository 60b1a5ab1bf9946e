"""A figure made of controls and panels, as HTML and as text."""

import copy

from .controls import Control
from .numbers import check_text
from .output import Output
from .panels import Panel
from .states import compact

LARGEST_OUTPUT = 100_000
"""Bytes of one output; a page holds several, and the reader's phone loads them all."""


class Explorer(Output):
    """Controls and panels; a notebook shows it as HTML, and as text."""

    def __init__(self, title: str, *parts):
        controls = [part for part in parts if isinstance(part, Control)]
        # copies: a panel may stand in two figures, with other controls in each
        panels = [copy.copy(part) for part in parts if isinstance(part, Panel)]
        for part in parts:
            if not isinstance(part, Control | Panel):
                raise TypeError(f"{part!r} is neither a control nor a panel")
        check_text(title, "title")
        if not controls or not panels:
            raise ValueError(
                f"{len(controls)} controls and {len(panels)} panels: "
                "a figure needs one of each"
            )
        names = [control.name for control in controls]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two controls have the name {', '.join(sorted(twice))}")
        self.title, self.controls, self.panels = title, controls, panels
        for panel in panels:
            panel.prepare(controls)
        used = {
            i for panel in panels for part in panel.parts().values() for i in part.on
        }
        if idle := [name for i, name in enumerate(names) if i not in used]:
            raise ValueError(f"no panel depends on the control {', '.join(idle)}")
        if (size := len(self.html().encode())) > LARGEST_OUTPUT:
            shares = ", ".join(
                f"{panel.kind} {panel.label!r} {len(compact(panel.data())):,}"
                for panel in panels
            )
            raise ValueError(
                f"the figure takes {size:,} bytes, at most {LARGEST_OUTPUT:,}: {shares}"
            )

    def data(self) -> dict:
        """All states, as the script gets them."""
        return {
            "texts": [control.texts for control in self.controls],
            "panels": [panel.data() for panel in self.panels],
        }

    def html(self) -> str:
        """The first state and the data of all."""
        controls = "\n".join(control.html() for control in self.controls)
        panels = "\n".join(panel.html() for panel in self.panels)
        return self.framed(controls, panels, compact(self.data()))

    def text(self) -> str:
        """The first state in words and numbers."""
        state = ", ".join(
            f"{control.label}: {control.texts[control.start]}"
            for control in self.controls
        )
        lines = [line for panel in self.panels for line in panel.text()]
        return "\n".join([self.title, state, *lines])


def explorer(title: str, *parts) -> Explorer:
    """A figure whose panels follow its controls.

    Args:
        title: stands above the figure.
        parts: controls and panels, each in the order in which they are shown.

    Raises:
        TypeError, ValueError: for a function that takes no control's name, a number that
            is not finite, a wrong shape, a control that nothing depends on, or an
            output that is too large.
    """
    return Explorer(title, *parts)
