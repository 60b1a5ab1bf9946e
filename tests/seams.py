"""A second, trivial implementation of every seam: what later chapters plug in.

Nothing here is fast. Each is short enough to be seen to be right, and written without
the package's own functions for the same thing.
"""

import math
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor

import aiayn


def loop_attention(query, key, value, mask=None, *, causal=False, scale=None):
    """``attend``, one query at a time and with nothing but sums of allowed keys."""
    if mask is not None and getattr(mask, "dtype", None) != torch.bool:
        raise TypeError("mask must be boolean")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    if n_queries == 0:
        return query.new_zeros(*leading, 0, value.shape[-1])
    allowed = query.new_ones(n_queries, n_keys, dtype=torch.bool)
    if mask is not None:
        allowed = allowed & mask
    rows = []
    for i in range(n_queries):
        keep = allowed[..., i, :]
        if causal:
            last = i + n_keys - n_queries  # the key at which this query stands
            keep = keep & (torch.arange(n_keys, device=key.device) <= last)
        scores = ((query[..., i : i + 1, :] * scale) * key).sum(-1)
        low = torch.where(keep, scores, torch.finfo(scores.dtype).min)
        top = low.detach().amax(-1, keepdim=True) if n_keys else 0.0
        below = torch.where(keep, scores - top, 0.0)  # never above 0
        mass = torch.where(keep, below.exp(), 0.0)
        total = mass.sum(-1, keepdim=True)
        weights = mass / torch.where(total == 0, 1.0, total)
        rows.append((weights.unsqueeze(-1) * value).sum(-2))
    return torch.stack(rows, -2)


class PairedAttention(aiayn.MultiHeadAttention):
    """An ``attention`` class of its own: keys and values shared by pairs of heads.

    Overrides ``project`` and ``mix`` only, as the contract of the seam says, and keeps
    track of how often keys and values were projected.
    """

    def __init__(self, d_model, n_heads, *, n_kv_heads=None, **settings):
        super().__init__(d_model, n_heads, **settings)
        self.n_kv_heads = n_kv_heads or n_heads
        self.projections = 0
        for name, width in (("key", self.d_k), ("value", self.d_v)):
            projection = getattr(self, f"{name}_projection")
            smaller = torch.nn.Linear(
                d_model, self.n_kv_heads * width, bias=projection.bias is not None
            )
            setattr(self, f"{name}_projection", smaller)

    def project(self, key, value):
        self.projections += 1
        return (
            self.key_projection(key)
            .unflatten(-1, (self.n_kv_heads, -1))
            .transpose(1, 2),
            self.value_projection(value)
            .unflatten(-1, (self.n_kv_heads, -1))
            .transpose(1, 2),
        )

    def mix(self, query, key, value, mask=None, *, causal=False):
        group = self.n_heads // self.n_kv_heads
        return super().mix(
            query,
            key.repeat_interleave(group, dim=1),
            value.repeat_interleave(group, dim=1),
            mask,
            causal=causal,
        )


ATTENTIONS = {
    "multi-head": aiayn.MultiHeadAttention,
    "shared key heads": partial(PairedAttention, n_kv_heads=2),
    "one key head": partial(PairedAttention, n_kv_heads=1),
    "grouped": partial(aiayn.GroupedQueryAttention, n_kv_heads=2),
    "multi-query": partial(aiayn.GroupedQueryAttention, n_kv_heads=1),
}
"""Every ``attention`` class, called with (d_model, n_heads): one line to join."""

SHARING = {"paired": PairedAttention, "grouped": aiayn.GroupedQueryAttention}
"""Those that take ``n_kv_heads``."""


class GrowingStore:
    """Self-attention's ``cache``: new keys and values join the old ones."""

    def __init__(self):
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def attend(self, mix, query, project, mask=None, *, causal=False):
        key, value = project()
        if self.keys is not None:
            key = torch.cat((self.keys, key), dim=-2)
            value = torch.cat((self.values, value), dim=-2)
        self.keys, self.values = key, value
        return mix(query, key, value, mask, causal=causal)

    def reorder(self, rows):
        if self.keys is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]


class FrozenStore(GrowingStore):
    """Cross-attention's ``cache``: one source, projected once."""

    def attend(self, mix, query, project, mask=None, *, causal=False):
        if self.keys is None:
            self.keys, self.values = project()
        return mix(query, self.keys, self.values, mask, causal=causal)


class DecoderStore:
    """A decoder's cache: stores for every layer, and which past tokens are real."""

    def __init__(self, n_layers: int):
        self.layers = [
            SimpleNamespace(
                self_attention=GrowingStore(), cross_attention=FrozenStore()
            )
            for _ in range(n_layers)
        ]
        self.is_token: Tensor | None = None

    def __len__(self):
        return 0 if self.is_token is None else self.is_token.shape[1]

    def begin(self, is_token):
        """(positions, key_mask) of the new tokens, which now belong to the past."""
        past = len(self)
        if past:
            is_token = torch.cat((self.is_token, is_token), dim=1)
        self.is_token = is_token
        positions = torch.zeros_like(is_token, dtype=torch.long)
        for row, real in enumerate(is_token.tolist()):
            for column in range(len(real)):  # real tokens before this one
                positions[row, column] = max(sum(real[: column + 1]) - 1, 0)
        return positions[:, past:], is_token[:, None, None, :]

    def reorder(self, rows):
        for layer in self.layers:
            layer.self_attention.reorder(rows)
            layer.cross_attention.reorder(rows)
        if self.is_token is not None:
            self.is_token = self.is_token[rows]
