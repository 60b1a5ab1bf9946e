"""Heads: cut, attend, join; the cache and attention seams are in test_seams.py."""

import math

import pytest
import torch
from helpers import assert_same, normal, stir
from test_attend import by_hand

from aiayn import MultiHeadAttention
from aiayn.multi_head import merge_heads, split_heads


def attention_block(d_model=8, n_heads=2, *, seed=0, **settings) -> MultiHeadAttention:
    torch.manual_seed(seed)
    module = MultiHeadAttention(d_model, n_heads, **settings).double()
    stir(module, seed=seed)
    return module


def identity_block(d_model: int, n_heads: int) -> MultiHeadAttention:
    module = MultiHeadAttention(d_model, n_heads, bias=False).double()
    for projection in module.children():
        torch.nn.init.eye_(projection.weight)
    return module


def test_heads_are_cut_from_the_width():
    """FuxiCTR#30, transformer#15: ``view`` alone cuts the sequence instead."""
    x = torch.arange(8.0).view(1, 2, 4)
    heads = split_heads(x, 2)
    assert heads.tolist() == [[[[0, 1], [4, 5]], [[2, 3], [6, 7]]]]
    assert torch.equal(merge_heads(heads), x)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 3), (2, 1), (2, 3), (2, 0)])
def test_merging_undoes_splitting(batch, length):
    x = normal(batch, length, 6)
    heads = split_heads(x, 3)
    assert heads.shape == (batch, 3, length, 2)
    for h in range(3):
        assert torch.equal(heads[:, h], x[..., 2 * h : 2 * h + 2])
    assert torch.equal(merge_heads(heads), x)


@pytest.mark.equation("eq-multi-head")
def test_each_head_attends_in_its_own_projection():
    """head_i = attention(Q W_i^Q, K W_i^K, V W_i^V), then Concat(…) W^O, head by head.

    With d_k, d_v and both lengths different, and every bias used.
    """
    module = attention_block(d_model=6, n_heads=3, d_k=4, d_v=5)
    query, key, value = (
        normal(2, 3, 6),
        normal(2, 7, 6, seed=1),
        normal(2, 7, 6, seed=2),
    )
    mask = normal(2, 1, 3, 7, seed=3) > 0
    heads = []
    for i in range(3):
        rows = {"query": slice(4 * i, 4 * i + 4), "value": slice(5 * i, 5 * i + 5)}
        rows["key"] = rows["query"]
        projected = []
        for name, x in (("query", query), ("key", key), ("value", value)):
            linear = getattr(module, f"{name}_projection")
            projected.append(x @ linear.weight[rows[name]].T + linear.bias[rows[name]])
        heads.append(by_hand(*projected, mask[:, 0]))
    out = module.output_projection
    expected = torch.cat(heads, dim=-1) @ out.weight.T + out.bias
    assert_same(module(query, key, value, mask), expected)


@pytest.mark.equation("eq-multi-head")
def test_scores_are_scaled_by_the_width_of_a_head():
    """vit-pytorch#65, dfdx#171: √d_model where √d_k was meant."""
    module = identity_block(4, 2)
    x = torch.tensor(
        [[[1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 2.0, 0.0]]], dtype=torch.float64
    )
    expected = [0.669762, 0.330238, 0.111614, 1.888386]
    assert_same(module(x, x, x)[0, 0], expected, 1e-6)


def test_sizes_follow_from_the_arguments():
    plain = MultiHeadAttention(12, 3)
    assert (plain.n_heads, plain.d_k, plain.d_v) == (3, 4, 4)
    odd = MultiHeadAttention(10, 4, d_k=3, d_v=5, bias=False)
    shapes = {name: tuple(w.shape) for name, w in odd.named_parameters()}
    assert shapes == {
        "query_projection.weight": (12, 10),
        "key_projection.weight": (12, 10),
        "value_projection.weight": (20, 10),
        "output_projection.weight": (10, 20),
    }
    x = torch.zeros(2, 3, 10)
    assert odd(x, x, x).shape == (2, 3, 10)


def test_causal_and_mask_reach_every_head():
    """Changing a hidden key moves nothing; changing a visible one moves every head."""
    module = attention_block()
    x = normal(1, 4, 8)
    before = module(x, x, x, causal=True)
    changed = x.clone()
    changed[:, 2] += 1.0
    moved = (module(changed, changed, changed, causal=True) - before).abs().amax(-1)[0]
    assert (moved[:2] == 0).all()
    assert (moved[2:] > 1e-3).all()
    mask = torch.tensor([True, True, False, True])[None, None, None]
    before = module(x, x, x, mask)
    moved = (module(x, changed, changed, mask) - before).abs()
    assert (moved == 0).all()


def test_a_mask_of_its_own_for_each_head():
    """The head axis of a mask is the head axis, also where batch = heads = length."""
    module = identity_block(4, 2)
    x = normal(2, 2, 4)
    mask = torch.ones(1, 2, 2, 2, dtype=torch.bool)
    mask[0, 1, :, 1] = False  # head 1 sees key 0 only
    mixed = module(x, x, x, mask)
    free = module(x, x, x)
    assert_same(mixed[..., :2], free[..., :2])
    assert_same(mixed[..., 2:], x[:, :1, 2:].expand(2, 2, 2))


def test_weights_are_those_that_forward_uses():
    module = attention_block(d_model=6, n_heads=3, d_k=4, d_v=5)
    query, key = normal(2, 3, 6), normal(2, 7, 6, seed=1)
    mask = normal(2, 1, 3, 7, seed=3) > -1
    weights = module.weights(query, key, mask, causal=True)
    assert weights.shape == (2, 3, 3, 7)
    _, values = module.project(key, key)
    heads = torch.einsum("bhij,bhjc->bhic", weights, values)
    joined = torch.cat([heads[:, h] for h in range(3)], dim=-1)
    expected = module.output_projection(joined)
    assert_same(module(query, key, key, mask, causal=True), expected)
    q = module.query_projection(query).view(2, 3, 3, 4)
    k = module.key_projection(key).view(2, 7, 3, 4)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(4)
    keep = mask & torch.ones(3, 7, dtype=torch.bool).tril(4)
    expected = scores.masked_fill(~keep, -math.inf).softmax(-1)
    assert_same(weights, expected)


def test_project_gives_what_a_cache_may_keep():
    module = attention_block(d_model=6, n_heads=3, d_k=4, d_v=5)
    key, value = normal(2, 7, 6), normal(2, 7, 6, seed=1)
    keys, values = module.project(key, value)
    assert keys.shape == (2, 3, 7, 4)
    assert values.shape == (2, 3, 7, 5)
    assert torch.equal(keys[:, 2], module.key_projection(key)[..., 8:])
    assert torch.equal(values[:, 1], module.value_projection(value)[..., 5:10])


def test_mix_calls_attend_with_what_it_got():
    calls = []

    def attend(query, key, value, mask=None, *, causal=False, scale=None):
        calls.append((query.shape, mask, causal, scale))
        return torch.full((*query.shape[:-1], value.shape[-1]), 2.0)

    module = MultiHeadAttention(4, 2, attend=attend)
    x = torch.zeros(1, 3, 4)
    mask = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    mixed = module(x, x, x, mask, causal=True)
    assert calls == [((1, 2, 3, 2), mask, True, None)]
    expected = module.output_projection(torch.full((1, 3, 4), 2.0))
    assert torch.equal(mixed, expected)


def test_same_shape_and_values_in_every_mode():
    """pytorch#97605, #97409: eval cut the output to the longest real length."""
    module = attention_block()
    x = normal(2, 6, 8)
    mask = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    mask[..., 0] = True  # both rows have real length 1
    training = module.train()(x, x, x, mask)
    evaluating = module.eval()(x, x, x, mask)
    with torch.no_grad():
        inferring = module(x, x, x, mask)
    assert training.shape == (2, 6, 8)
    assert torch.equal(training, evaluating)
    assert torch.equal(training, inferring)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    module = attention_block()
    x = normal(2, 5, 8)
    expected = module(x, x, x, causal=True)
    mixed = module.to(dtype)(*[x.to(dtype)] * 3, causal=True)
    assert mixed.dtype == dtype
    assert_same(mixed.double(), expected, 16 * torch.finfo(dtype).eps)


def test_length_zero():
    module = attention_block()
    x, empty = normal(2, 3, 8), normal(2, 0, 8)
    assert module(empty, x, x).shape == (2, 0, 8)
    nothing = module.output_projection.bias.expand(2, 3, 8)
    assert_same(module(x, empty, empty), nothing)


def test_weights_are_copied_by_name():
    first, second = attention_block(seed=1), attention_block(seed=2)
    x = normal(1, 3, 8)
    assert not torch.allclose(first(x, x, x), second(x, x, x))
    second.load_state_dict(first.state_dict(), strict=True)
    assert torch.equal(first(x, x, x), second(x, x, x))
