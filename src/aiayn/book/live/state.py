"""One sequence copied by the model with rounded weights: what the page shows at first."""

from dataclasses import dataclass
from string import ascii_lowercase

import torch

from aiayn.copy_task import CopyTask, to_tensors
from aiayn.decoding import greedy_decode
from aiayn.tokens import BOS, EOS, PAD
from aiayn.transformer import record_attention

from .weights import rounded_model

TASK = CopyTask()
LETTERS = ascii_lowercase[: TASK.n_symbols]
NAMES = {PAD: "pad", BOS: "start", EOS: "end"} | {
    EOS + 1 + i: letter for i, letter in enumerate(LETTERS)
}
"""What the page calls each token."""


@dataclass
class Copied:
    """A sequence, what the model wrote, and how it came about.

    Attributes:
        source, written: tokens, the end included.
        chances: a row of probabilities for each token written.
        maps: weights (n_heads, n_queries, n_keys) by the attention's name.
    """

    source: list[int]
    written: list[int]
    chances: torch.Tensor
    maps: dict[str, torch.Tensor]


def check_sequence(sequence: str) -> str:
    """Refuse what the model was not trained to copy."""
    if not isinstance(sequence, str):
        raise TypeError(f"sequence must be a text, got {sequence!r}")
    if not 1 <= len(sequence) <= TASK.max_length or not set(sequence) <= set(LETTERS):
        raise ValueError(
            f"sequence must be 1 to {TASK.max_length} letters from {LETTERS[0]} to "
            f"{LETTERS[-1]}, got {sequence!r}"
        )
    return sequence


@torch.no_grad()
def copy(sequence: str) -> Copied:
    """Let the model copy a sequence of letters."""
    symbols = [EOS + 1 + LETTERS.index(letter) for letter in sequence]
    source, _ = to_tensors(TASK, [symbols])
    model = rounded_model()
    written = greedy_decode(model, source, max_len=source.shape[1] + 1)
    begun = torch.cat([torch.tensor([[BOS]]), written[:, :-1]], dim=1)
    with record_attention(model) as recorded:
        logits = model(source, begun)
    return Copied(
        source[0].tolist(),
        written[0].tolist(),
        logits[0].softmax(dim=-1),
        {name: weights[0][0] for name, weights in recorded.items()},
    )
