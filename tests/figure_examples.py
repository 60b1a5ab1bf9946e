"""Figures of the sizes that chapters use, and one that is hard to lay out.

Unit and browser tests share them.
"""

import torch
from helpers import seeded

from aiayn import (
    attention_weights,
    causal_mask,
    padding_mask,
    sinusoidal_encoding,
)
from aiayn.book import figures

WIDTHS = (1, 4, 16, 64, 256)


def saturation_numbers():
    """(weights, norms) by (d_k, scaled): means of sorted weights, gradients' norms."""
    weights, norms = {}, {}
    for d_k in WIDTHS:
        query = torch.randn(200, 1, d_k, generator=seeded(1))
        key = torch.randn(200, 32, d_k, generator=seeded(2))
        for scaled in (False, True):
            p = attention_weights(query, key, scale=None if scaled else 1.0)[:, 0]
            jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
            weights[d_k, scaled] = p.sort(-1, descending=True).values.mean(0)
            norms[d_k, scaled] = torch.linalg.matrix_norm(jacobian)
    return weights, norms


def saturation():
    weights, norms = saturation_numbers()
    edges = [n / 10 for n in range(8)]

    def histogram(d_k, scaled):
        return torch.histc(norms[d_k, scaled], bins=8, min=0, max=0.8)

    return figures.explorer(
        "What scaling does to the softmax of 32 scores",
        figures.Slider("d_k", label="Width d_k", values=WIDTHS, start=64),
        figures.Switch("scaled", label="Divide by √d_k", start=True),
        figures.Bars(
            "Mean weight, largest first",
            lambda d_k, scaled: weights[d_k, scaled],
            names=range(1, 33),
            maximum=1,
            x_label="key, in order of its weight",
        ),
        figures.Bars(
            "Rows by the norm of their Jacobian",
            histogram,
            names=edges,
            x_label="norm, from",
            color="key",
        ),
        figures.Numbers(
            {
                "Mean largest weight": lambda d_k, scaled: weights[d_k, scaled][
                    0
                ].item(),
                "Median norm": lambda d_k, scaled: norms[d_k, scaled].median().item(),
                "Smallest norm": lambda d_k, scaled: norms[d_k, scaled].min().item(),
            }
        ),
        figures.Words(
            lambda d_k, scaled: (
                f"At d_k = {d_k} the {'scaled' if scaled else 'unscaled'} scores give "
                f"the first key {weights[d_k, scaled][0]:.2f} of the weight on average."
            )
        ),
    )


def mask_of(n_queries, n_keys, causal, padding):
    """The mask of the example below: the last `padding` keys are padding."""
    tokens = torch.ones(1, n_keys, dtype=torch.long)
    tokens[:, n_keys - min(padding, n_keys) :] = 0
    mask = padding_mask(tokens)[0, 0].expand(n_queries, n_keys)
    return mask & causal_mask(n_queries, n_keys) if causal else mask


def weights_of(n_queries, n_keys, causal, padding):
    query = torch.randn(6, 4, generator=seeded(3))[:n_queries]
    key = torch.randn(6, 4, generator=seeded(4))[:n_keys]
    return attention_weights(query, key, mask_of(n_queries, n_keys, causal, padding))


def masks():
    def words(n_queries, n_keys, causal, padding):
        empty = (~mask_of(n_queries, n_keys, causal, padding).any(-1)).sum().item()
        return f"{empty} of {n_queries} rows have nothing to attend to."

    return figures.explorer(
        "Which keys a query may attend to",
        figures.Slider("n_queries", label="Queries", values=range(1, 7), start=4),
        figures.Slider("n_keys", label="Keys", values=range(1, 7), start=6),
        figures.Switch("causal", label="Causal", start=True),
        figures.Choice("padding", label="Padding", values=(0, 1, 2), start=0),
        figures.Grid("Mask", mask_of, kind="mask"),
        figures.Grid("Weights", weights_of),
        figures.Words(words),
    )


def encoding():
    positions = list(range(64))
    table = sinusoidal_encoding(64, 16, dtype=torch.float64)
    products = table @ table.T

    return figures.explorer(
        "One position, one wave",
        figures.Slider("position", label="Position", values=positions, start=10),
        figures.Choice("pair", label="Pair of dimensions", values=range(8), start=1),
        figures.Bars(
            "Row of the table",
            lambda position: table[position],
            x_label="dimension",
            decimals=2,
        ),
        figures.Curve(
            "The pair over all positions",
            {
                "sine": lambda pair: table[:, 2 * pair],
                "cosine": lambda pair: table[:, 2 * pair + 1],
            },
            x=positions,
            x_label="position",
            y_range=(-1, 1),
            mark=lambda position: position,
            decimals=2,
        ),
        figures.Curve(
            "Dot product with every position",
            lambda position: products[position],
            x=positions,
            x_label="other position",
            mark=lambda position: position,
            decimals=2,
        ),
        figures.Grid(
            "The first rows",
            lambda pair: table[:4, 2 * pair : 2 * pair + 2],
            kind="signed",
            rows=["0", "1", "2", "3"],
            columns=["sine", "cosine"],
            axes=("position", "part"),
        ),
        figures.Words(
            lambda position: (
                f"Position {position} has the length {table[position].norm():.2f}, "
                "as all have."
            )
        ),
        figures.Words(
            lambda pair: (
                f"Pair {pair} goes from {table[0, 2 * pair]:.2f} "
                f"to {table[1, 2 * pair]:.2f} in one step."
            )
        ),
    )


def tiles():
    """A stepper, and cells in named states that hold a sign or a text of their own."""

    def cell(step, i, j):
        place = i * (i + 1) // 2 + j
        if j > i:
            return "skipped"
        if place == step:
            return "now", f"{i},{j}"
        return "done" if place < step else "to come"

    return figures.explorer(
        "The lower triangle, tile by tile",
        figures.Stepper("step", label="Step", values=range(10), start=4),
        figures.Switch("columns", label="Column by column", start=False),
        figures.Words(lambda step: f"{step} of 10 tiles are done."),
        figures.Tiles(
            "Tiles of queries and keys",
            lambda step, columns: [
                [cell(step, *((j, i) if columns else (i, j))) for j in range(4)]
                for i in range(4)
            ],
            states={
                "done": ("✓", "query"),
                "now": ("●", "accent"),
                "skipped": ("–", "muted"),
                "to come": ("·", None),
            },
            axes=("queries", "keys"),
            say="queries {row}, keys {column}: {value} ({text})",
        ),
    )


def memory():
    """A calculator: entries, an option, presets, two results."""

    def cache(layers, heads, width, tokens, number):
        return 2 * layers * heads * width * tokens * number

    def weights(layers, heads, width, number, tokens=0):
        return 4 * layers * (heads * width) ** 2 * number

    formula = "2 * layers * heads * width * tokens * number"
    return figures.calculator(
        "What a cache takes",
        figures.Entry("layers", "Layers", start=6, low=1, high=200),
        figures.Entry("heads", "Heads", start=8, low=1, high=256),
        figures.Entry("width", "Width of a head", start=64, low=1, high=1024),
        figures.Entry("tokens", "Tokens", start=4096, low=0, high=1_000_000),
        figures.Option(
            "number",
            "A number is",
            {"float32": 4, "float16": 2, "4 bits": 0.5},
            "float32",
        ),
        results={
            "cache": (formula, cache),
            "projections": (
                "4 * layers * heads * width * heads * width * number",
                weights,
            ),
        },
        presets={
            "base": {"layers": 6, "heads": 8, "width": 64},
            "big": {"layers": 6, "heads": 16, "width": 64},
        },
        say="{tokens} tokens in {number} take {cache}.",
    )


LONG = "a label of many words that a careful author gave to one part of the figure"
WORD = "Pneumonoultramicroscopicsilicovolcanoconiosis"


def difficult():
    """Long texts, words that no phone is wide enough for, holes, nothing above zero."""
    entries = [f"{LONG}, entry {i}" for i in range(6)]
    values = (f"{WORD} or {LONG}", f"another value: {LONG}", "c")

    def holes(n):
        return [
            [
                None if (i, j) in ((1, 1), (0, 3)) else 1.2 * (j - i) * n
                for j in range(4)
            ]
            for i in range(3)
        ]

    return figures.explorer(
        f"{LONG} {WORD}",
        figures.Slider("long", label=LONG, values=values, start="c"),
        figures.Choice("menu", label=LONG, values=entries, start=entries[0]),
        figures.Choice("one", label=WORD, values=(LONG, WORD, "c"), start=WORD),
        figures.Switch("on", label=f"{WORD} {LONG}"),
        figures.Slider("n", label="n", values=(1, 2), start=1),
        figures.Bars(
            f"Bars {WORD}",
            lambda long: [len(long), 2, 3, 4, 5],
            names=[f"the {name} of these bars" for name in entries[:5]],
            x_label=LONG,
        ),
        figures.Curve(
            f"{WORD} {WORD}",
            {LONG: lambda n: [-20 - n, -15, -12], WORD: lambda n: [-11, -19, -30]},
            x=[1_000_000, 2_000_000, 3_000_000],
            x_label=WORD,
            y_label=f"{LONG} {WORD}",
            mark=lambda n: n * 1_000_000,
        ),
        figures.Grid("A grid with holes", holes, kind="signed", decimals=0),
        figures.Grid(
            f"{LONG} {WORD}",
            lambda on: [[on, True], [True, on]],
            rows=[WORD, LONG],
            columns=[LONG, WORD],
            kind="mask",
        ),
        figures.Numbers({LONG: lambda menu: menu, WORD: lambda one: one}, label=WORD),
        figures.Words(lambda one: f"{WORD}{WORD} {one} {LONG}"),
    )


EXAMPLES = {
    "saturation": saturation,
    "masks": masks,
    "encoding": encoding,
    "tiles": tiles,
    "memory": memory,
    "difficult": difficult,
}
