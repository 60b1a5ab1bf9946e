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
        elif panel["cells"] != "mask":
            for row in first["cells"]:
                for value in row:
                    assert numbers.fixed(value, panel["decimals"]) in shown


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
    assert len(figures.asset("figures.js").encode()) <= 8_000
    assert len(figures.asset("figures.css").encode()) <= 5_000


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


def test_text_cannot_become_markup():
    figure = figures.explorer(
        "<b>&</b>",
        figures.Choice("n", label="<i>", values=("<u>", "</script>"), start="<u>"),
        figures.Words(lambda n: f"<em>{n}</em>"),
    )
    html = figure.html()
    for markup in ("<b>&<", "<i>", "<u>", "<em>"):
        assert markup not in html
    assert html.count("</script>") == 1


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
        (lambda: figures.Words(lambda n: n), TypeError, "sentence"),
        (lambda: figures.Words(lambda n: " "), TypeError, "sentence"),
        (lambda: "panel", TypeError, "neither a control nor a panel"),
        (lambda: figures.Words(lambda: "still"), ValueError, "no panel depends on the control n"),
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
    ],
)
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
