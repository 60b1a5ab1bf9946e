"""Interactive figures: their numbers are the functions', and mistakes are told."""

import ast
import itertools
import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from figure_examples import (
    EXAMPLES,
    WIDTHS,
    mask_of,
    masks,
    saturation,
    saturation_numbers,
    weights_of,
)

from aiayn.book import figures
from aiayn.book.figures import numbers
from aiayn.book.figures import states as states_of_figures
from aiayn.book.figures.memory import readable

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def external(monkeypatch):
    monkeypatch.setenv("AIAYN_FIGURES", "external")


def slider(name="n", values=(1, 2, 3), start=2):
    return figures.Slider(name, label=f"The {name}", values=values, start=start)


def small(*panels, controls=None):
    return figures.explorer("Title", *(controls or [slider()]), *panels)


class Page(HTMLParser):
    """The text of every element with one of the tags, in order."""

    def __init__(self, html, *tags):
        super().__init__()
        self.tags, self.open, self.found = tags, [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag in self.tags:
            self.open.append(tag)
            self.found.append("")

    def handle_endtag(self, tag):
        if tag in self.tags:
            self.open.pop()

    def handle_data(self, data):
        if self.open:
            self.found[-1] += data


def states(part):
    """Every state of a stored part, as often as it has settings."""
    return [part["states"][i] for i in part["at"]] if "at" in part else part["states"]


def stored(html):
    [text] = re.findall(r'<script type="application/json">(.*?)</script>', html)
    return json.loads(text)


# ---- the numbers -------------------------------------------------------------------
def test_bars_hold_the_tensor_of_every_state():
    weights, norms = saturation_numbers()
    bars, histogram, numbers, _ = stored(saturation().html())["panels"]
    settings = list(itertools.product(WIDTHS, (False, True)))
    for setting, values in zip(settings, states(bars["parts"]["values"]), strict=True):
        expected = [round(x, 4) + 0.0 for x in weights[setting].tolist()]
        assert values == expected, setting
    for setting, counts in zip(
        settings, states(histogram["parts"]["values"]), strict=True
    ):
        edges = [n / 10 for n in range(9)]
        in_bins = [
            sum(low <= x < high for x in norms[setting].tolist())
            for low, high in itertools.pairwise(edges)
        ]
        assert sum(counts) == sum(in_bins) == 200
        assert all(abs(a - b) <= 1 for a, b in zip(counts, in_bins, strict=True))
    for setting, text in zip(settings, states(numbers["parts"]["0"]), strict=True):
        assert float(text) == pytest.approx(weights[setting][0].item(), abs=5e-5)


def test_grids_hold_the_tensor_of_every_state():
    mask, weights, words = stored(masks().html())["panels"]
    settings = list(
        itertools.product(range(1, 7), range(1, 7), (False, True), range(3))
    )
    of_masks = states(mask["parts"]["cells"])
    of_weights = states(weights["parts"]["cells"])
    for setting, cells, shares in zip(settings, of_masks, of_weights, strict=True):
        assert cells == mask_of(*setting).long().tolist(), setting
        exact = weights_of(*setting)
        assert torch.tensor(shares).shape == exact.shape
        assert (torch.tensor(shares) - exact).abs().max() <= 0.005 + 1e-6, setting
    assert len(states(words["parts"]["words"])) == len(settings)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_without_script_shows_the_first_state(name):
    figure = EXAMPLES[name]()
    if name == "memory":  # test_a_calculator_says_its_first_state
        return
    html, data = figure.html(), stored(figure.html())
    shown = Page(html, "td", "th", "dd", "output").found
    for panel, made in zip(data["panels"], figure.panels, strict=True):
        first = {key: part.now for key, part in made.parts().items()}
        if panel["kind"] == "words":
            assert first["words"] in shown
        elif panel["kind"] == "numbers":
            assert all(value in shown for value in first.values())
        elif panel["kind"] == "bars":
            for value in first["values"]:
                assert numbers.fixed(value, panel["decimals"]) in shown
        elif panel["kind"] == "curve":
            for key in map(str, range(len(panel["names"]))):
                for value in first[key]:
                    assert numbers.fixed(value, panel["decimals"]) in shown
        elif panel["cells"] == "states":
            for cell in itertools.chain(*first["cells"]):
                text = cell[1] if isinstance(cell, list) else panel["signs"][cell]
                assert text in shown
        elif panel["cells"] != "mask":
            for value in itertools.chain(*first["cells"]):
                text = "" if value is None else numbers.fixed(value, panel["decimals"])
                assert text in shown


def test_what_is_stored_is_what_is_checked_at_the_first_state():
    figure = small(figures.Numbers({"twice": lambda n: 2 * n}))
    assert Page(figure.html(), "dd").found == ["4"]
    [panel] = stored(figure.html())["panels"]
    assert panel["parts"]["0"] == {"on": [0], "states": ["2", "4", "6"]}


def test_a_panel_depends_on_the_controls_it_names_in_their_order():
    controls = [slider("a", (1, 2), 2), slider("b", (3, 4, 5), 5), slider("c")]
    figure = small(
        figures.Numbers(
            {"x": lambda c, a: 10 * a + c, "y": lambda b, power=2: b**power}
        ),
        controls=controls,
    )
    x, y = figure.panels[0].values.values()
    assert (x.on, x.states) == ([0, 2], ["11", "12", "13", "21", "22", "23"])
    assert (x.now, y.on, y.states, y.now) == ("22", [1], ["9", "16", "25"], "25")


def test_equal_states_are_stored_once():
    controls = [slider("a", range(50), 1), slider("b", range(20), 1)]
    figure = small(
        figures.Bars("x", lambda a, b: [min(b, 2), 2, 3, 4, 5]), controls=controls
    )
    part = figure.data()["panels"][0]["parts"]["values"]
    assert len(part["states"]) == 3
    assert states(part) == [
        [min(b, 2), 2, 3, 4, 5] for _, b in itertools.product(range(50), range(20))
    ]


@pytest.mark.parametrize(
    ("values", "decimals", "texts"),
    [
        ([0.12344, 0.5], None, ["0.1234", "0.5000"]),
        ([12.3456, -0.5], None, ["12.35", "−0.50"]),
        ([12345.6, 1.0], None, ["12346", "1"]),
        ([3, 4], None, ["3", "4"]),
        ([0.5, -0.001], 2, ["0.50", "0.00"]),  # no negative zero
    ],
)
def test_arrays_are_rounded_alike(values, decimals, texts):
    figure = small(
        figures.Bars("x", lambda n: [n * v / n for v in values], decimals=decimals)
    )
    assert Page(figure.html(), "td").found == texts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.28, "1.280"),
        (0.0821, "0.0821"),
        (3.21e-9, "3.21 × 10⁻⁹"),
        (-0.5, "−0.5000"),
        (9.99999, "10.000"),
        (1234567, "1,234,567"),
        (4096.0, "4,096"),
        ("as it is", "as it is"),
    ],
)
def test_single_numbers_have_four_digits(value, text):
    figure = small(figures.Numbers({"x": lambda n: value, "n": lambda n: n}))
    assert Page(figure.html(), "dd").found == [text, "2"]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-1, 1), (0, 8), (0, 37), (-0.003, 0.01), (5, 5000)]
)
def test_ticks_are_few_round_and_inside(low, high):
    ticks, decimals = numbers.ticks_within(low, high)
    assert 2 <= len(ticks) <= 6
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ticks)}
    assert len(steps) == 1
    assert all(float(f"{tick:.{decimals}f}") == tick for tick in ticks)


def test_no_column_of_numbers_is_without_a_name():
    figure = small(
        figures.Bars("x", lambda n: [n]), figures.Curve("y", lambda n: [n, 1], x=[0, 1])
    )
    assert all(Page(figure.html(), "th").found)


def test_bars_go_up_and_down_from_zero():
    figure = small(figures.Bars("x", lambda n: [n / 4, -n / 4]))
    [path] = re.findall(r'class="area query" d="([^"]*)"', figure.html())
    # the range is −1 to 1: 0 is in the middle, 0.5 at a quarter
    assert path == "M5.00 50V25H45.00V50ZM55.00 50V75H95.00V50Z"


def test_a_curve_runs_from_edge_to_edge():
    figure = small(
        figures.Curve(
            "x", lambda n: [0, n, 4], x=[0, 1, 2], y_range=(0, 4), mark=lambda n: n / 2
        )
    )
    assert 'class="line query" d="M0 100L50 50L100 0"' in figure.html()
    assert 'class="mark" d="M50 0V100"' in figure.html()


def test_a_grid_names_its_rows_and_columns():
    figure = small(
        figures.Grid(
            "g",
            lambda n: [
                [None if key > query else 1 / n for key in range(n)]
                for query in range(n)
            ],
            rows=lambda n: ["the", "cat", "<sat>"][:n],
            columns=lambda n: ["a", "b", "c"][:n],
        )
    )
    html = figure.html()
    assert Page(html, "th").found == ["query ╲ key", "a", "b", "the", "cat"]
    assert Page(html, "td").found == ["0.50", "", "0.50", "0.50"]
    assert '<th scope="col">a</th>' in html
    assert '<th scope="row">the</th>' in html
    assert '<td class="none"></td>' in html
    assert "<sat>" not in html


def test_a_mask_has_words_for_screen_readers():
    html = small(
        figures.Grid("g", lambda n: torch.ones(n, n).tril().bool(), kind="mask")
    ).html()
    assert Page(html, "td").found == ["✓", "·", "✓", "✓"]
    assert 'aria-label="query 0 may not attend to key 1"' in html
    assert 'aria-label="query 1 may attend to key 0"' in html


def test_signed_cells_below_zero_have_a_colour_of_their_own():
    html = small(figures.Grid("g", lambda n: [[-n, n, 0]], kind="signed")).html()
    assert '<td class="minus" style="--w:66.7%">−2</td>' in html
    assert '<td style="--w:66.7%">2</td>' in html


def test_real_labels_and_native_controls_that_wait_for_the_script():
    controls = [
        slider(),
        figures.Switch("on", label="Is on", start=True),
        figures.Choice("few", label="One of few", values=("x", "y"), start="y"),
        figures.Choice("many", label="One of many", values=range(9), start=4),
    ]
    html = small(
        figures.Numbers({"x": lambda n, on, few, many: f"{n} {on} {few} {many}"}),
        controls=controls,
    ).html()
    assert Page(html, "dd").found == ["2 True y 4"]
    assert '<fieldset class="controls" disabled>' in html
    for label in ("The n", "Is on", "One of few", "One of many"):
        assert html.count(label) == 1
    assert html.count("<label") == 3 + 2
    assert 'type="range" min="0" max="2" step="1" value="1" aria-valuetext="2"' in html
    assert 'role="switch"' in html
    assert 'value="1" autocomplete="off" checked>' in html
    assert "<option selected>4</option>" in html


# ---- scales ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "height"),
    [([-20.0, -15.0, -12.0], 100), ([20.0, 15.0, 12.0], 100), ([-1.0, 0.0, 3.0], 75)],
)
def test_the_line_at_zero_stays_in_the_frame(values, height):
    html = small(figures.Curve("c", lambda n: values, x=[0, 1, 2])).html()
    assert f'class="zero" d="M0 {height}H100"' in html


@pytest.mark.parametrize(
    ("x", "texts", "path"),
    [
        ([1e-5, 3e-5, 1e-4], ["0.000010", "0.000030", "0.000100"], "0 100L22.22 0L100"),
        ([1000.1, 1000.2, 1000.3], ["1000.10", "1000.20", "1000.30"], "0 100L50 0L100"),
        ([0.5, 1.0, 1.5], ["0.500", "1.000", "1.500"], "0 100L50 0L100"),
        ([1, 2, 5], ["1", "2", "5"], "0 100L25 0L100"),
    ],
)
def test_the_places_of_a_curve_are_told_apart(x, texts, path):
    figure = small(figures.Curve("c", lambda n: [0, 1, 0], x=x, mark=lambda n: x[1]))
    html = figure.html()
    assert [text for text in Page(html, "th").found if text[0].isdigit()] == texts
    assert f'd="M{path}' in html
    assert f'class="mark" d="M{path.split("L")[1].split()[0]} 0V100"' in html


@pytest.mark.parametrize(
    "values", [[5, 5], [0.0, 0.0], [1e14, 1e14], [1, 1 + 1e-15], [-7e9, -7e9 - 1e-6]]
)
def test_a_flat_curve_has_room_above_and_below(values):
    figure = small(figures.Curve("c", lambda n: values, x=[0, 1]))
    [panel] = figure.data()["panels"]
    assert panel["low"] < min(values) <= max(values) < panel["high"]
    assert figure.html().count('<span style="top:') >= 2


def test_small_numbers_with_many_decimals_have_a_scale():
    panel = figures.Curve("c", lambda n: [1e-10, 2e-10], x=[0, 1], decimals=10)
    [data] = small(panel).data()["panels"]
    assert (data["low"], data["high"]) == (1e-10, 2e-10)


@pytest.mark.parametrize("largest", [7e-5, 1e-5, 1.4e-6, 0.25])
def test_the_largest_cell_is_full_and_no_cell_is_fuller(largest):
    values = [[-largest, largest / 2, 0.0]]
    html = small(figures.Grid("g", lambda n: values, kind="signed", decimals=7)).html()
    shares = [float(share) for share in re.findall(r"--w:([^%]*)%", html)]
    assert shares == [100, 50, 0]
    assert html.count('class="minus"') == 1


def test_what_equals_the_maximum_is_not_above_it():
    third = torch.tensor([1 / 3, 2 / 3])
    bars = small(figures.Bars("b", lambda n: third, maximum=2 / 3, decimals=2))
    grid = small(figures.Grid("g", lambda n: [third], maximum=2 / 3))
    assert "0.67" in Page(bars.html(), "td").found
    assert "--w:100%" in grid.html()
    with pytest.raises(ValueError, match=r"0\.6666667 is above maximum=0\.6666"):
        small(figures.Bars("b", lambda n: third, maximum=0.6666, decimals=2))
    with pytest.raises(ValueError, match=r"0\.6666667 is above maximum=0\.6666"):
        small(figures.Grid("g", lambda n: [third], maximum=0.6666))


# ---- texts -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.3"),
        (1 / 3, "0.3333"),
        (-2.0, "−2"),
        (-3, "−3"),
        (12345.0, "12345"),
        (12345.6, "12346"),
        (1e-5, "1 × 10⁻⁵"),
        (-2.5e-7, "−2.5 × 10⁻⁷"),
        (torch.tensor(0.1), "0.1"),
        (torch.tensor(-4), "−4"),
        ("pre-norm", "pre-norm"),
        (True, "True"),
        (None, "None"),
    ],
)
def test_values_and_names_are_written_alike(value, text):
    html = small(
        figures.Words(lambda v: f"{v}"),
        figures.Bars("b", lambda v: [1], names=[value]),
        controls=[figures.Choice("v", label="v", values=(value, 77), start=value)],
    ).html()
    assert f"<span>{text}</span>" in html
    assert text in Page(html, "th").found


def test_values_may_come_from_a_tensor():
    values = torch.tensor([0.5, 1.0, 2.0])
    control = figures.Slider("x", label="x", values=values, start=values[1])
    assert control.texts == ["0.5", "1", "2"]
    figure = small(figures.Numbers({"x": lambda x: 2 * x}), controls=[control])
    assert Page(figure.html(), "dd").found == ["2"]


def test_a_panel_may_stand_in_two_figures():
    panel = figures.Bars("b", lambda n: [n])
    first = small(panel)
    before = first.html()
    small(panel, controls=[slider(values=(7, 8), start=8)])
    assert first.html() == before
    grid = figures.Grid("g", lambda n: [[n]])
    assert small(grid).html() == small(grid).html()


def test_a_name_with_braces_stands_as_it_is():
    html = small(
        figures.Grid(
            "g", lambda n: [[True]], rows=["{column}"], columns=["{value}"], kind="mask"
        )
    ).html()
    assert 'aria-label="“{column}” may attend to “{value}”"' in html


def test_a_table_that_scrolls_has_a_name():
    html = small(
        figures.Bars("one <b>", lambda n: [n]),
        figures.Curve("two", lambda n: [n, 1], x=[0, 1]),
    ).html()
    region = 'tabindex="0" role="region" aria-label="The numbers of {}"'
    assert html.count(region.format("one &lt;b&gt;")) == 1
    assert html.count(region.format("two")) == 1


def test_a_long_number_at_the_edge_of_an_axis_stays_inside():
    html = small(figures.Curve("c", lambda n: [n, 1], x=[0, 4_000_000])).html()
    assert '<span style="left:100%;transform:translateX(-100%)">4000000</span>' in html
    assert '<span style="left:0%">0</span>' in html
    html = small(figures.Curve("c", lambda n: [n, 1], x=[0, 100])).html()
    assert '<span style="left:100%">100</span>' in html


def test_a_long_value_keeps_a_slider_s_track():
    html = slider(values=("x" * 50, "y"), start="y").html()
    assert "min-width:12ch" in html


# ---- the output --------------------------------------------------------------------
def test_plain_text_says_the_first_state():
    figure = small(
        figures.Bars("Bars", lambda n: [n / 10] * 20),
        figures.Curve(
            "Curve", {"up": lambda n: [0, n], "flat": lambda n: [1, 1]}, x=[0, 1]
        ),
        figures.Grid("Mask", lambda n: [[True, False]] * n, kind="mask"),
        figures.Numbers({"Count": lambda n: n}),
        figures.Words(lambda n: f"There are {n}, or -{n}."),
    )
    text = figure._repr_mimebundle_()["text/plain"]
    assert text == repr(figure)
    assert text.splitlines() == [
        "Title",
        "The n: 2",
        "Bars: " + 12 * "0.2000 " + "…",
        "Curve, up: 0 2",
        "Curve, flat: 1 1",
        "Mask:",
        "    0 1",
        "  0 ✓ ·",
        "  1 ✓ ·",
        "Count: 2",
        "There are 2, or −2.",
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_light_and_repeat(name):
    html = EXAMPLES[name]().html()
    assert len(html.encode()) < 60_000
    assert html == EXAMPLES[name]().html()


def test_style_and_script_ride_along_unless_the_pages_bring_them(monkeypatch):
    figure = masks()
    bare = figure._repr_mimebundle_()["text/html"]
    assert "data-aiayn" not in bare
    monkeypatch.delenv("AIAYN_FIGURES")
    whole = figure._repr_mimebundle_()["text/html"]
    assert whole.startswith(bare)
    assert "<style data-aiayn>" in whole
    assert "<script data-aiayn>" in whole


def test_stored_outputs_compare_with_and_without_the_runtime(monkeypatch):
    figure = masks()
    bare = figure._repr_mimebundle_()["text/html"]
    monkeypatch.delenv("AIAYN_FIGURES")
    whole = figure._repr_mimebundle_()["text/html"]
    settings = (ROOT / "tools" / "nbval.cfg").read_text("utf8")
    [(pattern, new)] = re.findall(
        r"\[figure runtime\]\nregex: (.*)\nreplace: (.*)", settings
    )
    assert re.sub(pattern, new, bare) == re.sub(pattern, new, whole)


def test_the_tools_store_outputs_without_the_runtime(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import environment

    for fixed in (False, True):
        assert environment.variables(ROOT, fixed)["AIAYN_FIGURES"] == "external"


def test_the_runtime_is_small():
    assert len(figures.asset("figures.js").encode()) <= 12_000
    assert len(figures.asset("figures.css").encode()) <= 8_000


def test_nothing_but_the_standard_library_is_needed():
    for path in Path(figures.__file__).parent.glob("*.py"):
        imported = {
            (node.module if isinstance(node, ast.ImportFrom) else alias.name)
            for node in ast.walk(ast.parse(path.read_text("utf8")))
            if isinstance(node, ast.Import)
            or (isinstance(node, ast.ImportFrom) and node.level == 0)
            for alias in node.names
        }
        assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


class Elements(HTMLParser):
    """The elements of a page, each with the names of its attributes."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, [name for name, _ in attributes]))


def everything(text):
    """Every kind of control and of panel, with one text in every place for a text."""
    values = [f"{text}{i}" for i in range(5)]
    return figures.explorer(
        text,
        figures.Slider("a", label=text, values=values, start=values[0]),
        figures.Switch("b", label=text),
        figures.Choice("c", label=text, values=values[:2], start=values[0]),
        figures.Choice("d", label=text, values=values, start=values[0]),
        figures.Bars(text, lambda a: [1, 2], names=[text, text], x_label=text),
        figures.Curve(
            text,
            {text: lambda b: [1, 2], f"{text}2": lambda c: [2, 1]},
            x=[0, 1],
            x_label=text,
            y_label=text,
        ),
        *(
            figures.Grid(
                text,
                lambda d, cell=cell: [[cell]],
                rows=[text],
                columns=[text],
                kind=kind,
                axes=(text, text),
                say=(text, text) if kind == "mask" else text,
            )
            for kind, cell in (("weights", 1), ("signed", -1), ("mask", True))
        ),
        figures.Grid(text, lambda d: [[False]], kind="mask", axes=(text, text)),
        figures.Stepper("e", label=text, values=values, start=values[0]),
        figures.Tiles(
            text,
            lambda e: [[(text, text), f"{text}2"]],
            states={text: (text, "key"), f"{text}2": (text, None)},
            rows=[text],
            columns=[text, text],
            axes=(text, text),
            say=text,
        ),
        figures.Numbers({text: lambda d: d}, label=text),
        figures.Words(lambda d: text),
    )


def every_entry(text):
    """A calculator with one text in every place for a text."""
    return figures.calculator(
        text,
        figures.Entry("a", text, start=1, low=0, high=9),
        figures.Option("b", text, {text: 1, f"{text}2": 2}, start=text),
        results={text: ("a * b", lambda a, b: a * b)},
        presets={text: {"a": 1}},
        say=text,
    )


def test_text_cannot_become_markup():
    harmful = '"><u>&</script>'
    html = everything(harmful).html()
    assert Elements(html).found == Elements(everything("x").html()).found
    assert html.count("</script>") == 1
    text = everything(harmful).text()
    assert text.startswith(harmful)
    stored_texts = json.dumps(stored(html), ensure_ascii=False)
    assert stored_texts.count("</script>") > 10
    html = every_entry(harmful).html()
    assert Elements(html).found == Elements(every_entry("x").html()).found
    assert html.count("</script>") == 1
    assert every_entry(harmful).text().startswith(harmful)


# ---- tiles and calculators ---------------------------------------------------------
LOOK = {"done": ("✓", "query"), "now": ("●", "accent"), "to come": ("·", None)}


def tiles_of(function, states=LOOK, **more):
    return figures.Tiles("t", function, states=states, **more)


def one_by_one(n):
    states = ["done"] * (n - 1) + [("now", "here")] + ["to come"] * (3 - n)
    return [[states[0], states[1]], [states[2], None]]


def test_tiles_hold_the_state_and_the_text_of_every_cell():
    figure = small(tiles_of(one_by_one, say="{row}{column} {value} {text} {x}"))
    [panel] = stored(figure.html())["panels"]
    assert states(panel["parts"]["cells"]) == [
        [[[1, "here"], 2], [2, None]],
        [[0, [1, "here"]], [2, None]],
        [[0, 0], [[1, "here"], None]],
    ]
    assert panel["signs"] == ["✓", "●", "·"]
    assert panel["roles"] == ["query", "accent", ""]
    assert Page(figure.html(), "td").found == ["✓", "here", "·", ""]
    labels = re.findall(r'<td class="state (.*?)" aria-label="(.*?)"', figure.html())
    assert labels == [
        ("query", "00 done ✓ {x}"),
        ("accent", "01 now here {x}"),
        ("", "10 to come · {x}"),
    ]
    assert figure.text().splitlines()[-1] == "  (✓ done, ● now, · to come)"


def test_a_stepper_says_how_far_it_is():
    step = figures.Stepper("s", "Step", range(1, 4), start=2)
    assert step.texts == ["1 of 3", "2 of 3", "3 of 3"]
    assert Page(step.html(), "button").found == ["Back", "Play", "Next"]
    assert 'aria-valuetext="2 of 3"' in step.html()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1, "1 bytes"), (999, "999 bytes"), (1000, "1 kB"),
     (999_500, "1,000 kB"), (34_359_738_368, "34.4 GB"), (5e15, "5 PB"),
     (4e18, "4,000 PB")],
)  # fmt: skip
def test_bytes_have_three_digits_and_a_unit(size, text):
    assert readable(size) == text


def test_a_calculator_says_its_first_state():
    assert EXAMPLES["memory"]().text().splitlines() == [
        "What a cache takes",
        "Layers: 6, Heads: 8, Width of a head: 64, Tokens: 4,096, A number is: float32",
        "4,096 tokens in float32 take 101 MB.",
        "cache: 101 MB (100,663,296 bytes)",
        "projections: 25.2 MB (25,165,824 bytes)",
    ]


def calculate(formula="a * b", function=lambda a, b: a * b, say="{size}", **more):
    return figures.calculator(
        "t",
        figures.Entry("a", "A", start=2, low=0, high=9),
        figures.Option("b", "B", {"one": 1, "half": 0.5}, start="one"),
        results={"size": (formula, function)},
        say=say,
        **more,
    )


@pytest.mark.parametrize(
    ("formula", "function"),
    [
        ("2 * (a + 1) - b / 4", lambda a, b: 2 * (a + 1) - b / 4),
        ("a - b + 1", lambda a, b: a - b + 1),
        ("7", lambda a, b: 7),
    ],
)
def test_a_formula_is_worked_out_in_python_s_order(formula, function):
    assert calculate(formula, function).sizes() == {"size": math.ceil(function(2, 1))}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: calculate("a + b"), ValueError, "size: .* by the formula"),
        (lambda: calculate("a * c"), ValueError, "c is neither one of a, b"),
        (lambda: calculate("a ** b"), ValueError, r"a \*\* b is neither"),
        (lambda: calculate("max(a, b)"), ValueError, r"max\(a, b\) is neither"),
        (lambda: calculate("a * 1e16", lambda a, b: a * 1e16), ValueError, "bytes for"),
        (lambda: calculate("0 - a", lambda a, b: -a), ValueError, "bytes for"),
        (lambda: calculate(presets={"p": {"a": 10}}), ValueError, "p: a=10 is no entry"),
        (lambda: calculate(presets={"p": {"c": 1}}), ValueError, "p: c=1 is no entry"),
        (lambda: calculate(say=""), ValueError, "say: an empty text"),
        (lambda: figures.Entry("a", "A", 1.5, 0, 9), TypeError, "a: .*got 1.5"),
        (lambda: figures.Entry("a", "A", 10, 0, 9), ValueError, "start=10"),
        (lambda: figures.Entry("a b", "A", 1, 0, 9), ValueError, "'a b'"),
        (lambda: figures.Option("a", "A", {"x": 1}, "x"), TypeError, "a: .*dictionary"),
        (lambda: figures.Option("a", "A", {"x": 1, "y": 1}, "x"), ValueError, "twice"),
        (lambda: figures.Option("a", "A", {"x": 1, "y": 2}, "z"), ValueError, "'z'"),
        (lambda: figures.calculator("t", results={}, say="s"), ValueError, "entries"),
    ],
)  # fmt: skip
def test_a_calculator_says_what_is_wrong(make, error, message, no_shape_checks):
    with pytest.raises(error, match=message):
        make()


# ---- mistakes ----------------------------------------------------------------------
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("panel", "error", "message"),
    [
        (lambda: figures.Bars("b", lambda m: [1]), ValueError, r"Bars 'b'.*'m'.*are n"),
        (lambda: figures.Bars("b", lambda *n: [1]), TypeError, r"parameter \*n"),
        (lambda: figures.Bars("b", lambda n: [1, NAN]), ValueError, r"\(n=1\).*finite"),
        (lambda: figures.Bars("b", lambda n: [1 / (3 - n) if n < 3 else INF]), ValueError, r"n=3.*inf"),
        (lambda: figures.Bars("b", lambda n: ["x"]), TypeError, "number, got 'x'"),
        (lambda: figures.Bars("b", lambda n: [True]), TypeError, "number, got True"),
        (lambda: figures.Bars("b", lambda n: []), ValueError, "empty"),
        (lambda: figures.Bars("b", lambda n: 1.0), TypeError, "list of numbers"),
        (lambda: figures.Bars("b", lambda n: [[1.0]]), ValueError, "one dimension"),
        (lambda: figures.Bars("b", lambda n: [n], names=["x", "y"]), ValueError, "2 names for 1"),
        (lambda: figures.Bars("b", lambda n: [1] * n, names="abc"), TypeError, "names"),
        (lambda: figures.Bars("b", lambda n: [n], maximum=2), ValueError, "above maximum"),
        (lambda: figures.Bars("b", lambda n: [n], color="red"), ValueError, "red"),
        (lambda: figures.Grid("g", lambda n: [n]), TypeError, "rows of numbers"),
        (lambda: figures.Grid("g", lambda n: [[1, 2], [1]]), ValueError, r"\[2, 1\] cells"),
        (lambda: figures.Grid("g", lambda n: [[]]), ValueError, "no grid"),
        (lambda: figures.Grid("g", lambda n: [[None]]), ValueError, "no state has a cell"),
        (lambda: figures.Grid("g", lambda n: [[-1]]), ValueError, "signed"),
        (lambda: figures.Grid("g", lambda n: [[1]], kind="mask"), TypeError, "boolean"),
        (lambda: figures.Grid("g", lambda n: [[n]], kind="x"), ValueError, "kind='x'"),
        (lambda: figures.Grid("g", lambda n: [[1] * n] * 2, columns=["a", "b"]), ValueError, "n=1.*2 names for 1"),
        (lambda: figures.Grid("g", lambda n: [[1]] * n, rows=["a"]), ValueError, "n=2.*1 names for 2"),
        (lambda: figures.Grid("g", lambda n: [[NAN]]), ValueError, "finite"),
        (lambda: figures.Curve("c", lambda n: [1, 2], x=[0, 1, 2]), ValueError, "2 numbers for 3"),
        (lambda: figures.Curve("c", lambda n: [1, 2], x=[1, 0]), ValueError, "rising"),
        (lambda: figures.Curve("c", lambda n: [0, n], x=[0, 1], y_range=(0, 1)), ValueError, "leave y_range"),
        (lambda: figures.Curve("c", lambda n: [0, n], x=[0, 1], mark=lambda n: n), ValueError, "outside"),
        (lambda: figures.Curve("c", {}, x=[0, 1]), ValueError, "0 lines"),
        (lambda: figures.Numbers({"x": lambda n: None}), TypeError, "number, got None"),
        (lambda: figures.Numbers([1]), TypeError, "dictionary"),
        (lambda: tiles_of(lambda n: [["gone"]]), ValueError, r"'t' \(n=1\): 'gone' is not one of done, now"),
        (lambda: tiles_of(lambda n: [["done", "done"]]), ValueError, "no cell is ever now, to come"),
        (lambda: tiles_of(lambda n: [["done", ("now", 3)]]), TypeError, "expected a text, got 3"),
        (lambda: tiles_of(one_by_one, states=["done"]), TypeError, "dictionary of states"),
        (lambda: tiles_of(one_by_one, states={"done": "x"}), TypeError, r"'done': 'x' is not \(sign"),
        (lambda: tiles_of(one_by_one, states={"done": ("", None)}), ValueError, "sign: an empty text"),
        (lambda: tiles_of(one_by_one, states={"done": ("x", "red")}), ValueError, "red"),
        (lambda: tiles_of(one_by_one, states={**LOOK, "x": ("·", None)}), ValueError, "two states look the same"),
        (lambda: figures.Words(lambda n: n), TypeError, "sentence"),
        (lambda: figures.Words(lambda n: " "), TypeError, "sentence"),
        (lambda: "panel", TypeError, "neither a control nor a panel"),
        (lambda: figures.Words(lambda: "still"), ValueError, "no panel depends on the control n"),
        *(
            (lambda make=make, bad=bad: make(bad), error, message)
            for make in (
                lambda bad: figures.Bars("p", lambda n: [n], maximum=bad),
                lambda bad: figures.Grid("p", lambda n: [[n]], maximum=bad),
            )
            for bad, error, message in (
                (NAN, ValueError, "'p', maximum: nan is not finite"),
                (INF, ValueError, "'p', maximum: inf is not finite"),
                (0, ValueError, "'p', maximum: 0 is not above zero"),
                (-1, ValueError, "'p', maximum: -1 is not above zero"),
                ("1", TypeError, "'p', maximum: expected a number, got '1'"),
                (True, TypeError, "'p', maximum: expected a number, got True"),
            )
        ),
        *(
            (lambda make=make, bad=bad: make(bad), error, message)
            for make in (
                lambda bad: figures.Bars("p", lambda n: [n], decimals=bad),
                lambda bad: figures.Grid("p", lambda n: [[n]], decimals=bad),
                lambda bad: figures.Curve("p", lambda n: [n, 1], [0, 1], decimals=bad),
            )
            for bad, error, message in (
                (-1, ValueError, "'p', decimals: -1 is not from 0 to 10"),
                (11, ValueError, "'p', decimals: 11 is not from 0 to 10"),
                (2.0, TypeError, "'p', decimals: expected a whole number, got 2.0"),
                (True, TypeError, "'p', decimals: expected a whole number"),
            )
        ),
        *(
            (lambda make=make, bad=bad: make(bad), error, "label: " + message)
            for make in (
                lambda bad: figures.Bars(bad, lambda n: [n]),
                lambda bad: figures.Grid(bad, lambda n: [[n]]),
                lambda bad: figures.Curve(bad, lambda n: [n, 1], [0, 1]),
                lambda bad: figures.Bars("p", lambda n: [n], x_label=bad),
                lambda bad: figures.Curve("p", lambda n: [n, 1], [0, 1], x_label=bad),
                lambda bad: figures.Curve("p", lambda n: [n, 1], [0, 1], y_label=bad),
            )
            for bad, error, message in (
                (3, TypeError, "expected a text, got 3"),
                (" ", ValueError, "an empty text"),
            )
        ),
        (lambda: figures.Numbers({"x": lambda n: n}, label=3), TypeError, "label: expected a text"),
        (lambda: figures.Numbers({3: lambda n: n}), TypeError, "name: expected a text, got 3"),
        (lambda: figures.Curve("c", {3: lambda n: [n, 1]}, [0, 1]), TypeError, "name: expected a text, got 3"),
        (lambda: figures.Bars("b", lambda n: [n], names=[" "]), ValueError, "names: an empty text"),
        (lambda: figures.Bars("b", lambda n: [n], names=[[1]]), TypeError, "names: .*neither a number nor a text"),
        (lambda: figures.Bars("b", lambda n: [n], names=[NAN]), ValueError, "names: nan is not finite"),
        (lambda: figures.Grid("g", lambda n: [[n]], axes="ab"), TypeError, "axes: expected two texts"),
        (lambda: figures.Grid("g", lambda n: [[n]], axes=("a", 1)), TypeError, "axes: expected a text, got 1"),
        (lambda: figures.Grid("g", lambda n: [[n]], say=3), TypeError, "say: expected a text, got 3"),
        (lambda: figures.Grid("g", lambda n: [[n]], say=("a", "b")), ValueError, "not one sentence"),
        (lambda: figures.Curve("c", lambda n: [0, n], [0, 1], y_range=3), TypeError, "y_range: expected two numbers"),
        (lambda: figures.Curve("c", lambda n: [0, n], [0, 1], y_range=("0", 9)), TypeError, "y_range: expected a number"),
        (lambda: figures.Curve("c", lambda n: [0, n], [0, 1], y_range=(0, NAN)), ValueError, "y_range: nan"),
        (lambda: figures.Curve("c", lambda n: [0, n], [0, 1], y_range=(1, 0)), ValueError, "is no range"),
        (lambda: figures.Curve("c", lambda n: [0, 0], [0, 1], y_range=(0, 1e-300)), ValueError, "is no range"),
        (lambda: figures.Curve("c", lambda n: [0, n], [0, 1e-12]), ValueError, "x: steps of 1e-12 are too small; rescale"),
        (lambda: figures.Curve("c", lambda n: [0, n], [1, 1e16]), ValueError, "x: 1e.16 is too large"),
        (lambda: figures.Bars("b", lambda n: [n * 1e15]), ValueError, r"\(n=1\): 1e.15 is too large to show; rescale"),
        (lambda: figures.Numbers({"x": lambda n: n * 1e300}), ValueError, "too large to show; rescale"),
        (lambda: figures.Bars("b", lambda n: [n * 1e-6]), ValueError, "'b': all numbers round to zero.*3e-06.*decimals=4; rescale"),
        (lambda: figures.Curve("c", lambda n: [n * 1e-6, 0], [0, 1]), ValueError, "'c': all numbers round to zero.*rescale"),
        (lambda: figures.Grid("g", lambda n: [[n * 1e-3]]), ValueError, "'g': all numbers round to zero.*decimals=2; rescale"),
    ],
)  # fmt: skip
def test_a_panel_says_what_is_wrong(panel, error, message, no_shape_checks):
    with pytest.raises(error, match=message):
        small(panel())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: slider(start=7), ValueError, "start=7 is not one of"),
        (lambda: slider(values=(1,), start=1), ValueError, "1 values"),
        (lambda: slider(values=(1, 1, 2), start=1), ValueError, "twice"),
        (lambda: slider(name="d k"), ValueError, "'d k'"),
        (lambda: figures.Switch("s", label="s", start=1), TypeError, "True nor False"),
        (lambda: figures.Choice("c", "c", ("a", "b"), "d"), ValueError, "start='d'"),
        (lambda: slider(name=3), TypeError, "name: expected a text, got 3"),
        (lambda: slider(name="lambda"), ValueError, "'lambda'"),
        (lambda: slider(values=3), TypeError, "n: expected a list of values, got 3"),
        (lambda: slider(values="abc", start="a"), TypeError, "list of values"),
        (lambda: figures.Switch("s", label=""), ValueError, "s, label: an empty text"),
        (lambda: figures.Switch("s", label=3), TypeError, "s, label: expected a text"),
        (lambda: slider(values=("", "b"), start="b"), ValueError, "an empty text"),
        (lambda: slider(values=(1.00001, 1.00002), start=1.00001), ValueError, "two read '1'"),
        (lambda: slider(values=(1, "1"), start=1), ValueError, "two read '1'"),
        (lambda: slider(values=(1, NAN), start=1), ValueError, "nan is not finite"),
        (lambda: slider(values=[torch.ones(2), 1], start=1), TypeError, "neither a number nor a text"),
    ],
)  # fmt: skip
def test_a_control_says_what_is_wrong(make, error, message, no_shape_checks):
    with pytest.raises(error, match=message):
        make()


def test_a_figure_has_a_title_a_control_and_a_panel():
    words = figures.Words(lambda n: f"{n}")
    with pytest.raises(ValueError, match="title"):
        figures.explorer(" ", slider(), words)
    with pytest.raises(ValueError, match="1 controls and 0 panels"):
        figures.explorer("t", slider())
    with pytest.raises(ValueError, match="0 controls and 1 panels"):
        figures.explorer("t", words)
    with pytest.raises(ValueError, match="two controls have the name n"):
        figures.explorer("t", slider(), slider(), words)


def test_stored_data_has_no_number_that_a_browser_cannot_read():
    with pytest.raises(ValueError, match="JSON"):
        states_of_figures.compact([math.nan])


def test_a_large_output_says_which_panel_is_large():
    with pytest.raises(ValueError, match=r"takes [\d,]+ bytes.*bars 'big' [\d,]{6}"):
        small(
            figures.Bars("big", lambda n: [n + i / 7 for i in range(4000)]),
            figures.Words(lambda n: f"{n}"),
        )


def test_too_many_states_are_refused_before_they_are_computed():
    controls = [slider(name, range(200), 0) for name in ("a", "b")]
    with pytest.raises(ValueError, match="40,000 states of a, b"):
        small(figures.Words(lambda a, b: 1 / 0), controls=controls)
