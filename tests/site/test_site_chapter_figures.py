"""The numbers that the chapters' figures show, computed anew.

tests/site/test_site_figures.py proves that each figure shows what it stores; here the
stored numbers are proved right, and both through what stands on the page.
"""

import figure_walk
import pytest
import torch

from aiayn import (
    PAD,
    attention_weights,
    causal_mask,
    padding_mask,
    sinusoidal_encoding,
)


@pytest.fixture
def figure(browser, site):
    """Open a chapter's figure by its title; gives it and the data that it stores."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})

    def open_figure(chapter, title):
        tab = context.new_page()
        tab.goto((site / "notebooks" / f"{chapter}.html").as_uri())
        figure = tab.locator("aiayn-figure", has=tab.locator(f"text={title}")).first
        return figure, figure_walk.stored(figure)

    yield open_figure
    context.close()


def settings(data, state):
    """The control's texts in a state."""
    return [texts[i] for texts, i in zip(data["texts"], state, strict=True)]


def near(texts, numbers):
    """Every text is its number, rounded to the decimals that the text has."""
    numbers = torch.as_tensor(numbers, dtype=torch.float64).flatten().tolist()
    for text, number in zip(texts, numbers, strict=True):
        error = 0.501 * 10 ** -len(text.partition(".")[2])
        assert abs(float(text.replace("−", "-")) - number) <= error, (text, number)


def columns(panel, first=1):
    """The numbers of a panel's table, row by row."""
    return [text for row in panel["rows"][first:] for text in row[1:]]


def test_chapter_1_shows_a_look_up_by_hue(figure):
    element, data = figure("01_recurrence", "A look-up by hue")
    keys = torch.tensor([0.0, 60.0, 120.0], dtype=torch.float64)
    colours = torch.tensor([[255.0, 0], [255, 255], [0, 255]], dtype=torch.float64)
    for state, (words, weights_panel) in figure_walk.walk(element, data):
        hue, temperature = map(float, settings(data, state))
        weights = (-(hue - keys).abs() / temperature).softmax(dim=-1)
        near(columns(weights_panel), weights)
        red, green = (weights @ colours).round().int().tolist()
        assert f"red {red}, green {green} of 255" in words["words"], state
        assert f"{weights.max():.2f}" in words["words"], state


def test_chapter_2_shows_masks_and_weights(figure):
    element, data = figure("02_scaled_dot_product", "Who sees what")
    generator = torch.Generator().manual_seed(4)
    queries = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    keys = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    padded = {"none": [], "last": [-1], "last two": [-1, -2], "first": [0]}
    seen = set()
    states = figure_walk.walk(element, data, most=40, few=40)
    for state, (words, mask_panel, weights_panel) in states:
        n_queries, n_keys, causal, padding = settings(data, state)
        n_queries, n_keys, causal = int(n_queries), int(n_keys), causal == "on"
        tokens = torch.full((1, n_keys), PAD + 1)
        for place in padded[padding]:
            if place < n_keys and -place <= n_keys:
                tokens[0, place] = PAD
        mask = padding_mask(tokens)[0, 0].expand(n_queries, n_keys)
        if causal:
            mask = mask & causal_mask(n_queries, n_keys)
        marks = ["✓" if may else "·" for may in mask.flatten().tolist()]
        assert columns(mask_panel) == marks, state
        weights = attention_weights(queries[:n_queries], keys[:n_keys], mask)
        near(columns(weights_panel), weights)
        for i, row in enumerate(mask.tolist(), start=1):
            may = ", ".join(str(j) for j, m in enumerate(row, start=1) if m)
            said = [s for s in words["words"].lower().split("; ") if f"query {i} " in s]
            assert len(said) == 1
            assert (may or "nothing") in said[0], state
        seen.add(state)
    assert len(seen) >= 20


def test_chapter_2_shows_weights_and_gradients(figure, notebook_function):
    element, data = figure("02_scaled_dot_product", "What the width and the divisor do")
    random_rows = notebook_function("02_scaled_dot_product", "random_rows")
    compared = 0
    for state, (_, weights_panel, shares, numbers) in figure_walk.walk(element, data):
        width, scaled = settings(data, state)
        if width not in ("4", "64"):
            continue
        query, key, value = random_rows(int(width))
        query.requires_grad_()
        scores = (query @ key.mT)[:, 0] * (int(width) ** -0.5 if scaled == "on" else 1)
        scores.retain_grad()
        weights = scores.softmax(-1)
        (weights * value).sum().backward()  # every row has a query of its own
        norms = [scores.grad.norm(dim=-1), query.grad[:, 0].norm(dim=-1)]
        ordered = weights.detach().sort(descending=True).values.mean(0)
        near(columns(weights_panel), ordered)
        limits = [0, 0.001, 0.01, 0.1, 1, float("inf")]
        counts = [
            ((low <= norms[1]) & (norms[1] < high)).double().mean() * 100
            for low, high in zip(limits, limits[1:], strict=False)
        ]
        near(columns(shares), counts)
        expected = [
            f(norm).item() for norm in norms for f in (torch.median, torch.mean)
        ]
        for text, number in zip(numbers["values"], expected, strict=True):
            assert float(text) == pytest.approx(number, rel=1e-3, abs=5e-5)
        compared += 1
    assert compared >= 4


def test_chapter_4_shows_the_encoding(figure):
    element, data = figure("04_positional_encoding", "A clock with eight hands")
    exact = sinusoidal_encoding(41, 16, dtype=torch.float64)
    for (position, hand), shown in figure_walk.walk(element, data, most=30):
        _, row, wave, products = shown
        near(columns(row), exact[position])
        # the wave is drawn at quarters of positions: every fourth is a row of the table
        pair = exact[:, 2 * hand : 2 * hand + 2]
        near(columns({"rows": wave["rows"][1::4]}, first=0), pair)
        near(columns(products), exact @ exact[position])
        [x, *_] = figure_walk.points(wave["paths"]["mark"])
        assert abs(x - 100 * position / 40) < 0.011
