"""Our weights by torch's names: which of ours make up each of torch's.

Torch packs the projections of query, key and value into one matrix, one below another.
"""

from collections.abc import Iterator

import torch
from helpers import assert_same, normal
from torch import Tensor, nn

from aiayn import DecoderLayer, EncoderLayer, MultiHeadAttention, Transformer

Pairs = Iterator[tuple[str, list[Tensor]]]


def attention_names(ours: MultiHeadAttention, prefix: str = "") -> Pairs:
    roles = [getattr(ours, f"{role}_projection") for role in ("query", "key", "value")]
    yield f"{prefix}in_proj_weight", [role.weight for role in roles]
    yield f"{prefix}in_proj_bias", [role.bias for role in roles]
    yield f"{prefix}out_proj.weight", [ours.output_projection.weight]
    yield f"{prefix}out_proj.bias", [ours.output_projection.bias]


def layer_names(ours: EncoderLayer | DecoderLayer, prefix: str = "") -> Pairs:
    yield from attention_names(ours.self_attention, f"{prefix}self_attn.")
    arounds = [ours.around_self_attention, ours.around_feed_forward]
    if isinstance(ours, DecoderLayer):
        yield from attention_names(ours.cross_attention, f"{prefix}multihead_attn.")
        arounds.insert(1, ours.around_cross_attention)
    modules = {"linear1": ours.feed_forward.inner, "linear2": ours.feed_forward.outer}
    modules |= {f"norm{i}": around.norm for i, around in enumerate(arounds, start=1)}
    for name, module in modules.items():
        yield f"{prefix}{name}.weight", [module.weight]
        yield f"{prefix}{name}.bias", [module.bias]


def stack_names(ours: Transformer) -> Pairs:
    """Layers and final norms; torch's model has no embeddings."""
    for side in ("encoder", "decoder"):
        for i, layer in enumerate(getattr(ours, f"{side}_layers")):
            yield from layer_names(layer, f"{side}.layers.{i}.")
        if ours.config.norm_first:
            norm = getattr(ours, f"{side}_norm")
            yield f"{side}.norm.weight", [norm.weight]
            yield f"{side}.norm.bias", [norm.bias]


@torch.no_grad()
def copy_weights(names: Pairs, theirs: nn.Module) -> None:
    for name, parts in names:
        pieces = theirs.get_parameter(name).chunk(len(parts))
        for part, piece in zip(parts, pieces, strict=True):
            part.copy_(piece)


def assert_same_gradients(names: Pairs, theirs: nn.Module) -> None:
    """Of every weight of torch's module, after a backward pass of both."""
    expected = {name: weight.grad for name, weight in theirs.named_parameters()}
    for name, parts in names:
        assert_same(torch.cat([p.grad for p in parts]), expected.pop(name), 1e-9)
    assert not expected, f"not compared: {list(expected)}"


def backward(output: Tensor, real: Tensor | None = None) -> None:
    """From a fixed random combination of all outputs, so that none can hide."""
    direction = normal(*output.shape, seed=7)
    if real is not None:
        direction = direction * real.unsqueeze(-1)
    output.backward(direction)
