"""What several test files use: comparison element by element, small models, tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

import aiayn

VOCAB = 11
"""Tokens of the small models: 0 padding, 1 BOS, 2 EOS, 3 … 10 the rest."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What attention has to get right: halves, single, double."""


def assert_same(actual: Tensor, expected: Tensor | Sequence, tolerance=1e-10) -> None:
    """Same shape, finite, and every element within ``tolerance`` of its counterpart.

    Sums and means would not notice a permutation, and a NaN agrees with nothing.
    """
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    assert actual.shape == expected.shape, (tuple(actual.shape), tuple(expected.shape))
    assert expected.isfinite().all(), "the reference itself is not finite"
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def assert_same_rows(actual: Tensor, expected: Sequence[Tensor], tolerance=1e-10):
    """The same for a batch and the list of what its rows should be."""
    assert_same(actual, torch.stack(tuple(expected)), tolerance)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype=torch.float64) -> Tensor:
    """Random numbers that depend on the seed alone."""
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def tokens(
    batch: int, length: int, *, seed: int = 0, vocab_size: int = VOCAB
) -> Tensor:
    """Random token ids without padding, BOS and EOS."""
    return torch.randint(3, vocab_size, (batch, length), generator=seeded(seed))


def padded(rows: Sequence[Sequence[int]], *, left: bool = False, pad_id: int = 0):
    """Token ids of unequal rows as one tensor, filled up on one side."""
    width = max(map(len, rows))
    fill = [[pad_id] * (width - len(row)) for row in rows]
    both = zip(fill, rows, strict=True)
    return torch.tensor([[*f, *r] if left else [*r, *f] for f, r in both])


def small_config(**changes) -> aiayn.TransformerConfig:
    """Two layers, four heads, nothing symmetric: V=11, d_model=16, d_ff=24."""
    settings = {"d_model": 16, "n_layers": 2, "n_heads": 4, "d_ff": 24, "max_len": 32}
    sizes = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
    return aiayn.TransformerConfig(**{**sizes, **settings, **changes})


def small_model(
    *, seed: int = 0, dtype=torch.float64, attention=None, attend=None, **changes
) -> aiayn.Transformer:
    """A small model in evaluation mode, with biases and norms away from 0 and 1.

    Freshly drawn, every bias is 0 and every norm the identity: a test on such a model
    could not tell whether they are used.
    """
    seams = {"attention": attention, "attend": attend}
    seams = {name: seam for name, seam in seams.items() if seam is not None}
    model = aiayn.Transformer(
        small_config(**changes), generator=seeded(seed), **seams
    ).to(dtype)
    stir(model, seed=seed + 1)
    return model.eval()


@torch.no_grad()
def stir(module: torch.nn.Module, *, seed: int) -> None:
    """Move every bias and norm away from the value it starts with."""
    generator = seeded(seed)
    for parameter in module.parameters():
        if parameter.dim() == 1:
            noise = torch.randn(parameter.shape, generator=generator) / 4
            parameter.add_(noise.to(parameter))


def plain_logits(model: aiayn.Transformer, source: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        return model(source, target)
