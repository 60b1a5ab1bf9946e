"""The book's plotting style: colours that can be told apart, plots that repeat."""

import importlib
import io
import re

import pytest

from aiayn.book import style

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def own_settings():
    with matplotlib.rc_context():
        matplotlib.use("svg")
        yield


def luminance(color):
    """Relative luminance as WCAG 2 defines it."""
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in matplotlib.colors.to_rgb(color)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("role", style.COLORS)
def test_each_colour_stands_out_from_white(role):
    assert 1.05 / (luminance(style.COLORS[role]) + 0.05) >= 3.5


def draw():
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    axes.plot([1, 3, 2], label="line")
    axes.legend()
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return file.getvalue()


def test_two_runs_give_the_same_plot():
    style.use()
    assert draw() == draw()


def test_text_stays_text_and_the_ground_stays_open():
    style.use()
    svg = draw()
    assert ">line</text>" in svg
    assert not re.search(r"fill: #ffffff", svg)
    assert style.COLORS["query"] in svg


def test_importing_the_style_changes_no_setting():
    before = dict(matplotlib.rcParams)
    importlib.reload(style)
    assert dict(matplotlib.rcParams) == before


def test_a_map_of_weights_has_a_row_for_each_query():
    import torch
    from matplotlib import pyplot as plt

    style.use()
    figure, axes = plt.subplots()
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25]], requires_grad=True)
    image = style.weights_map(axes, weights, queries=["a", "b"], keys=["x", "y", "z"])
    assert image.get_array().shape == (2, 3)
    assert [t.get_text() for t in axes.get_yticklabels()] == ["a", "b"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["x", "y", "z"]
    # row 0 is the top row, as in a printed matrix
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    plt.close(figure)
