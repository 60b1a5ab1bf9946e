"""What a figure should show in a state, and how a reader gets there by keyboard.

The expectation is worked out here from the numbers that the page stores, without the
page's script; which numbers are right is the business of tests/test_book_figures.py
and of the tests that name a chapter.
"""

import itertools
import json
import math
import re

READ = """figure => [...figure.querySelectorAll('.panel')].map(panel => ({
  kind: panel.classList[1],
  rows: [...panel.querySelectorAll('tr')].map(
    row => [...row.cells].map(cell => cell.textContent)),
  says: [...panel.querySelectorAll('td')].map(cell => cell.getAttribute('aria-label')),
  marks: [...panel.querySelectorAll('td')].map(cell => cell.className),
  widths: [...panel.querySelectorAll('td')].map(
    cell => cell.style.getPropertyValue('--w')),
  values: [...panel.querySelectorAll('dd')].map(cell => cell.textContent),
  words: panel.querySelector('output')?.textContent,
  labels: [...panel.querySelectorAll('.xs span')].map(label => label.textContent),
  paths: Object.fromEntries([...panel.querySelectorAll('path')].map(
    path => [path.className.baseVal, path.getAttribute('d')])),
}))"""


def stored(figure):
    """The data that the figure holds."""
    return json.loads(figure.locator("script").text_content())


def value(part, sizes, state):
    """A part's value in a state, which is a tuple of one index for each control."""
    index = 0
    for control in part["on"]:
        index = index * sizes[control] + state[control]
    return part["states"][part["at"][index] if "at" in part else index]


def fixed(number, decimals):
    return f"{number:.{decimals}f}".replace("-", "−")


def check(data, state, shown):
    """Compare everything that the panels show with the stored numbers of a state."""
    sizes = [len(texts) for texts in data["texts"]]
    assert len(shown) == len(data["panels"])
    for panel, seen in zip(data["panels"], shown, strict=True):
        assert seen["kind"] == panel["kind"]
        parts = {
            name: value(part, sizes, state) for name, part in panel["parts"].items()
        }
        CHECKS[panel["kind"]](panel, parts, seen)


def points(path):
    """Numbers of a path, in order."""
    return [float(number) for number in re.findall(r"-?[\d.]+", path)]


def close(numbers, expected):
    numbers, expected = list(numbers), list(expected)
    assert len(numbers) == len(expected)
    assert all(abs(a - b) < 0.011 for a, b in zip(numbers, expected, strict=True))


def height(panel, number):
    return 100 * (panel["high"] - number) / (panel["high"] - panel["low"])


def path_of(seen, kind, index=0):
    return [d for name, d in seen["paths"].items() if name.split()[0] == kind][index]


def check_bars(panel, parts, seen):
    values = parts["values"]
    names = parts["names"][: len(values)]
    texts = [fixed(number, panel["decimals"]) for number in values]
    assert seen["rows"][1:] == [list(row) for row in zip(names, texts, strict=True)]
    drawn = points(path_of(seen, "area"))  # x, foot, top, x, foot for each bar
    close(drawn[2::5], [height(panel, number) for number in values])
    close(drawn[1::5], [height(panel, 0)] * len(values))
    assert drawn[0::5] == sorted(drawn[0::5])
    assert seen["labels"] == names[:: math.ceil(len(names) / 8)]


def check_curve(panel, parts, seen):
    lines = [parts[str(i)] for i in range(len(panel["names"]))]
    numbers = [
        [fixed(x, panel["xDecimals"]), *(fixed(y, panel["decimals"]) for y in ys)]
        for x, *ys in zip(panel["x"], *lines, strict=True)
    ]
    assert seen["rows"][1:] == numbers
    first, last = panel["x"][0], panel["x"][-1]
    along = [100 * (x - first) / (last - first) for x in panel["x"]]
    for i, line in enumerate(lines):
        drawn = points(path_of(seen, "line", i))
        close(drawn[0::2], along)
        close(drawn[1::2], [height(panel, number) for number in line])
    if "mark" in parts:
        place = 100 * (parts["mark"] - first) / (last - first)
        close(points(path_of(seen, "mark"))[:1], [place])


def check_grid(panel, parts, seen):
    if panel["cells"] == "states":
        return check_tiles(panel, parts, seen)
    cells, mask = parts["cells"], panel["cells"] == "mask"
    columns = parts["columns"][: len(cells[0])]
    rows = parts["rows"][: len(cells)]

    def text(cell):
        if cell is None:
            return ""
        return "·✓"[cell] if mask else fixed(cell, panel["decimals"])

    assert seen["rows"] == [
        [panel["corner"], *columns],
        *([name, *map(text, row)] for name, row in zip(rows, cells, strict=True)),
    ]
    flat = [cell for row in cells for cell in row]
    for cell, says, mark, width in zip(
        flat, seen["says"], seen["marks"], seen["widths"], strict=True
    ):
        if cell is None:
            assert (mark, width) == ("none", "")
        elif mask:
            assert mark == ("yes" if cell else "no")
        else:
            assert mark == ("minus" if cell < 0 else "")
            share = min(100, 100 * abs(cell) / panel["high"])
            assert abs(float(width[:-1]) - share) < 0.051
            assert float(width[:-1]) <= 100
        assert bool(says) == (mask and cell is not None)
    if mask:
        words = [
            panel["say"][not cell].replace("{row}", row).replace("{column}", column)
            for row, line in zip(rows, cells, strict=True)
            for column, cell in zip(columns, line, strict=True)
            if cell is not None
        ]
        assert [says for says in seen["says"] if says] == words


def check_tiles(panel, parts, seen):
    """Signs or texts, the colour of each state, and the sentence of each cell."""
    cells, rows = parts["cells"], parts["rows"]
    columns = parts["columns"][: len(cells[0])]
    pair = lambda c: c if isinstance(c, list) else [c, panel["signs"][c]]
    flat = [pair(cell) for row in cells for cell in row if cell is not None]
    texts = [["" if c is None else pair(c)[1] for c in row] for row in cells]
    assert seen["rows"] == [
        [panel["corner"], *columns],
        *([name, *row] for name, row in zip(rows, texts, strict=False)),
    ]
    marks = [mark for mark in seen["marks"] if mark != "none"]
    assert marks == [f"state {panel['roles'][state]}" for state, _ in flat]
    places = [
        (row, column)
        for row, line in zip(rows, cells, strict=False)
        for column, cell in zip(columns, line, strict=True)
        if cell is not None
    ]
    says = [says for says in seen["says"] if says]
    for sentence, (row, column), (state, text) in zip(says, places, flat, strict=True):
        words = {"row": row, "column": column, "value": panel["names"][state]}
        for name, word in {**words, "text": text}.items():
            if f"{{{name}}}" in panel["say"][0]:
                assert word in sentence


def check_numbers(panel, parts, seen):
    assert seen["values"] == [parts[str(i)] for i in range(len(parts))]


def check_words(panel, parts, seen):
    assert seen["words"] == parts["words"]


CHECKS = {
    "bars": check_bars,
    "curve": check_curve,
    "grid": check_grid,
    "numbers": check_numbers,
    "words": check_words,
}

STATE = """figure => [...figure.querySelectorAll('[data-control]')].map(control =>
  control.type === 'checkbox' ? +control.checked
  : control.tagName === 'SELECT' ? control.selectedIndex
  : control.type === 'range' ? +control.value
  : [...control.querySelectorAll('input')].findIndex(button => button.checked))"""


KINDS = """figure => [...figure.querySelectorAll('[data-control]')].map(
  control => control.type)"""
LOOK = f"figure => [({STATE})(figure), ({READ})(figure)]"


def walk(figure, data, most=60, few=200):
    """Bring the figure into all of its states if they are few, or into a spread.

    Yields each state with what the figure shows in it. Only keys are pressed: the
    arrows for a list of values, Space for a switch.
    """
    keyboard = figure.page.keyboard
    sizes = [len(texts) for texts in data["texts"]]
    kinds, focused = figure.evaluate(KINDS), None
    now, shown = figure.evaluate(LOOK)
    yield tuple(now), shown
    for state in path(sizes, most, few):
        for i, wanted in enumerate(state):
            if wanted == now[i]:
                continue
            if focused != i:
                control = figure.locator("[data-control]").nth(i)
                if kinds[i] == "fieldset":
                    control = control.locator("input:checked")
                control.focus()
                focused = i
            if kinds[i] == "checkbox":
                keyboard.press("Space")
            else:
                key = "ArrowRight" if wanted > now[i] else "ArrowLeft"
                for _ in range(abs(wanted - now[i])):
                    keyboard.press(key)
            now[i] = wanted
        reached, shown = figure.evaluate(LOOK)
        assert reached == now, "the keys did not reach the state"
        yield tuple(now), shown


def path(sizes, most, few):
    """All states, neighbours one step apart; or every n-th, and the last."""
    states = [()]
    for size in sizes:
        states = [
            (*state, value)
            for i, state in enumerate(states)
            for value in (range(size) if i % 2 == 0 else reversed(range(size)))
        ]
    assert len(set(states)) == math.prod(sizes)
    step = 1 if len(states) <= few else math.ceil(len(states) / most)
    # coprime to the sizes, so that a spread meets every value of every control
    while step > 1 and any(math.gcd(step, size) > 1 for size in sizes):
        step += 1
    return [*itertools.islice(states, 0, None, step), states[-1]]
