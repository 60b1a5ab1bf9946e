"""Attention and recurrent layers of one width against the number of tokens (chapter 8).

    python benchmarks/layers.py            measure and store
    python benchmarks/layers.py --quick    a few lengths, nothing stored

One call is a training step of one layer: forward, and backward to inputs and weights.
"""

import argparse
from collections.abc import Callable, Iterator

from measure import record, store  # sets the environment, so before torch

# isort: split
import torch
from torch import Tensor, nn

from aiayn import MultiHeadAttention, attention, lstm_step

D_MODEL, N_HEADS = 128, 4
SIZES = {1: (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
         8: (16, 32, 64, 128, 256, 512, 1024)}  # batch: lengths  # fmt: skip


class StepLoop(nn.Module):
    """An LSTM as chapter 1 writes it: a loop of ``lstm_step`` over the tokens."""

    def __init__(self, d_model: int):
        super().__init__()
        lstm = nn.LSTM(d_model, d_model)
        self.weights = nn.ParameterList(
            (lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0)
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(len(x), x.shape[-1])
        outputs = []
        for token in x.unbind(dim=1):  # x[:, t] would make its backward quadratic
            hidden, cell = lstm_step(token, hidden, cell, *self.weights)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)


def layers(d_model: int = D_MODEL) -> dict[str, Callable[[Tensor], Tensor]]:
    """The contenders: from (batch, n, d_model) to the same shape."""
    fused = MultiHeadAttention(d_model, N_HEADS)
    equation = MultiHeadAttention(d_model, N_HEADS, attend=attention)
    lstm = nn.LSTM(d_model, d_model, batch_first=True)
    gru = nn.GRU(d_model, d_model, batch_first=True)
    return {
        "attention": lambda x: fused(x, x, x),
        "attention, the equation": lambda x: equation(x, x, x),
        "nn.LSTM": lambda x: lstm(x)[0],
        "nn.GRU": lambda x: gru(x)[0],
        "LSTM, step by step": StepLoop(d_model),
    }


def training_step(layer: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    """Forward and backward; gradients go into ``x`` and the layer's weights."""

    def step() -> None:
        layer(x).sum().backward()

    return step


def cases(sizes=SIZES) -> Iterator[tuple[dict, dict]]:
    """Every batch and length with its contenders."""
    torch.manual_seed(0)
    found = layers()
    for batch, lengths in sizes.items():
        for n in lengths:
            x = torch.randn(batch, n, D_MODEL, requires_grad=True)
            steps = {name: training_step(layer, x) for name, layer in found.items()}
            yield {"batch": batch, "n": n}, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="try it; store nothing")
    quick = parser.parse_args().quick
    settings = {
        "title": f"A training step of one layer of width {D_MODEL}.",
        "base": "attention",
        "d_model": D_MODEL,
        "n_heads": N_HEADS,
    }
    if quick:
        record(settings, cases({1: (16, 128, 1024)}), turns=3)
    else:
        store("layer_times", record(settings, cases(), turns=9))


if __name__ == "__main__":
    main()
