"""The figure on the first page: where a trained Transformer looks to copy a word.

Its numbers are computed here, at build, by the copy model that comes with the package.
What its sentences claim of them is checked here too: a model of which it is not true
stops the build.
"""

import dataclasses
from collections import Counter

import torch
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from aiayn import Transformer, greedy_decode, record_attention
from aiayn.book import figures
from aiayn.copy_task import CopyTask, load_copy_model, to_tensors
from aiayn.tokens import BOS, EOS, PAD

WORDS = "cabbage", "decade", "facade"  # letters from a to j, one of them twice
FIRST = min(set(range(5)) - {PAD, BOS, EOS})  # the token that stands for "a"
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def tokens_of(word):
    return tuple(ord(letter) - ord("a") + FIRST for letter in word)


def names(word):
    """The letters with their places, and the end."""
    places = (str(i).translate(SUBSCRIPTS) for i in range(1, len(word) + 1))
    return [f"{letter}{i}" for letter, i in zip(word, places, strict=True)] + ["end"]


def without_positions(model):
    """The same weights, in a model that adds no positions to the embeddings."""
    config = dataclasses.replace(model.config, positions="none")
    blind = Transformer(config)
    blind.load_state_dict(model.state_dict())
    return blind.eval()


@torch.no_grad()
def look(model, word):
    """Attention from written to read letters, and what the model writes by itself."""
    source, target = to_tensors(CopyTask(), [tokens_of(word)])
    with record_attention(model) as recorded:
        model(source, target[:, :-1])
    last = f"decoder_layers.{model.config.n_layers - 1}.cross_attention"
    weights = recorded[last][0][0].mean(dim=0)  # over the heads
    [written] = greedy_decode(model, source, max_len=2 * len(word)).tolist()
    letters = written[: written.index(EOS)] if EOS in written else written
    return weights, "".join(chr(ord("a") + token - FIRST) for token in letters)


def listed(things):
    return " and ".join(filter(None, [", ".join(things[:-1]), things[-1]]))


def sentence(word, weights, written, positions):
    """What the map of one state shows."""
    right = weights.diagonal().mean()
    if positions:
        if written != word or (weights.argmax(-1) != torch.arange(len(weights))).any():
            raise ValueError(f"the model does not look along {word}: wrote {written}")
        return (
            "Row by row, the model looks most at the letter that it has to write: "
            f"{100 * right:.0f} % of its attention is on the diagonal. "
            f"It writes “{written}”."
        )
    twice = [letter for letter, count in Counter(word).items() if count == 2]
    for letter in twice:
        one, other = (i for i, same in enumerate(word) if same == letter)
        if written == word or not torch.allclose(weights[:, one], weights[:, other]):
            raise ValueError(f"the model tells the {letter}s of {word} apart")
    pairs = listed([f"the two {letter}’s" for letter in twice])
    return (
        f"Without positions it cannot tell {pairs} apart: their columns are the same. "
        f"Only {100 * right:.0f} % is on the diagonal, and it writes “{written}”."
    )


def figure():
    model = load_copy_model()
    models = {True: model, False: without_positions(model)}
    seen = {(w, p): look(models[p], w) for w in WORDS for p in models}
    return figures.explorer(
        "Where a Transformer looks to copy",
        figures.Choice("word", label="Word", values=WORDS, start=WORDS[0]),
        figures.Switch("positions", label="With positions", start=True),
        figures.Words(
            lambda word, positions: sentence(word, *seen[word, positions], positions)
        ),
        figures.Grid(
            "Attention in %",
            lambda word, positions: 100 * seen[word, positions][0],
            rows=names,
            columns=names,
            axes=("write", "read"),
            say="To write {row}, the model gives {column} {value} % of its attention",
            decimals=0,
            maximum=100,
        ),
    )


class LandingFigure(SphinxDirective):
    def run(self):
        html = figure().html()
        return [nodes.raw("", html, format="html")]


def setup(app):
    app.add_directive("landing-figure", LandingFigure)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
