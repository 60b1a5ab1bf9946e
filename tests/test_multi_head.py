"""Heads: cut, attend, join; the cache and attention seams are in test_seams.py."""

import itertools
import math

import pytest
import torch
from helpers import assert_same, normal, seeded, stir
from test_attend import by_hand
from torch.utils.flop_counter import FlopCounterMode

from aiayn import MultiHeadAttention, attention, fused_attention
from aiayn.multi_head import merge_heads, split_heads

CHAPTER = "03_multi_head"


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


def random_heads(d_model, d_k, d_v, n_heads):
    """Matrices for the paper's loop, every size another number."""
    heads = [
        (
            normal(d_model, d_k, seed=10 * i),
            normal(d_model, d_k, seed=10 * i + 1),
            normal(d_model, d_v, seed=10 * i + 2),
        )
        for i in range(n_heads)
    ]
    return heads, normal(n_heads * d_v, d_model, seed=99)


@pytest.mark.equation("eq-multi-head-sum")
def test_joining_is_adding(notebook_function):
    """Against the Concat, column by column, and term by term with one head alone."""
    by_sum = notebook_function(CHAPTER, "multi_head_by_sum")
    heads, w_output = random_heads(6, 2, 5, 3)
    inputs = normal(2, 3, 6), normal(2, 7, 6, seed=1), normal(2, 7, 6, seed=2)
    answers = [
        by_hand(*(x @ w for x, w in zip(inputs, head, strict=True))) for head in heads
    ]
    joined = torch.cat(answers, dim=-1)
    expected = torch.einsum("bnc,cd->bnd", joined, w_output)
    assert_same(by_sum(*inputs, heads, w_output), expected)
    for i in range(3):
        rows = torch.zeros(15, 1, dtype=torch.float64)
        rows[5 * i : 5 * i + 5] = 1
        alone = by_sum(*inputs, heads[i : i + 1], w_output[5 * i : 5 * i + 5])
        assert_same(by_sum(*inputs, heads, w_output * rows), alone)


@pytest.mark.equation("eq-multi-head-maps")
def test_a_head_is_two_maps(notebook_function):
    by_maps = notebook_function(CHAPTER, "multi_head_by_maps")
    module = attention_block(d_model=6, n_heads=3, d_k=2, d_v=5, bias=False)
    query, key = normal(2, 3, 6), normal(2, 7, 6, seed=1)
    maps = []
    for i in range(3):
        looks, carries = slice(2 * i, 2 * i + 2), slice(5 * i, 5 * i + 5)
        w_query = module.query_projection.weight[looks]
        w_key = module.key_projection.weight[looks]
        w_value = module.value_projection.weight[carries]
        w_out = module.output_projection.weight[:, carries]
        maps.append((w_query.T @ w_key, (w_out @ w_value).T))
    for number, rank in ((0, 2), (1, 5)):
        assert all(torch.linalg.matrix_rank(m[number]) == rank for m in maps)
    assert_same(by_maps(query, key, key, maps, 2), module(query, key, key))


@pytest.mark.equation("eq-head-cost")
@pytest.mark.parametrize(
    "sizes", [(3, 7, 12, 1, 12, 12), (3, 7, 12, 4, 3, 3), (5, 2, 6, 3, 4, 5)]
)
def test_cost_as_torch_counts_it(notebook_function, sizes):
    n_queries, n_keys, d_model, n_heads, d_k, d_v = sizes
    module = MultiHeadAttention(
        d_model, n_heads, d_k=d_k, d_v=d_v, bias=False, attend=attention
    )
    query, key = torch.zeros(1, n_queries, d_model), torch.zeros(1, n_keys, d_model)
    with FlopCounterMode(display=False) as counter:
        module(query, key, key)
    parameters, multiply_adds, weights = notebook_function(CHAPTER, "head_cost")(*sizes)
    assert parameters == sum(p.numel() for p in module.parameters())
    assert 2 * multiply_adds == counter.get_total_flops()
    assert weights == module.weights(query, key).numel()


@pytest.mark.equation("eq-head-cost")
def test_cost_does_not_depend_on_the_number_of_heads(notebook_function):
    """Table 3, rows (A): products stay, weights grow."""
    head_cost = notebook_function(CHAPTER, "head_cost")
    costs = {
        h: head_cost(40, 50, 512, h, 512 // h, 512 // h) for h in (1, 4, 8, 16, 32)
    }
    products = 2 * 90 * 512**2 + 2 * 40 * 50 * 512
    assert costs == {h: (4 * 512**2, products, h * 2000) for h in costs}


@pytest.mark.equation("res-permutation")
@pytest.mark.parametrize("attend", [attention, fused_attention])
@pytest.mark.parametrize("seed", range(3))
def test_order_of_keys_leaves_no_trace(attend, seed):
    """MultiHead(PQ, RK, RV; PMRᵀ) = P MultiHead(Q, K, V; M), with an empty row too."""
    module = attention_block(d_model=6, n_heads=3, d_k=2, d_v=5, attend=attend)
    p = torch.eye(5, dtype=torch.float64)[torch.randperm(5, generator=seeded(seed))]
    r = torch.eye(8, dtype=torch.float64)[torch.randperm(8, generator=seeded(seed + 9))]
    query = normal(2, 5, 6)
    key, value = normal(2, 8, 6, seed=1), normal(2, 8, 6, seed=2)
    mask = normal(5, 8, seed=seed) > 0
    mask[1] = False
    shuffled_mask = (p @ mask.double() @ r.T).bool()
    for keep, shuffled in ((None, None), (mask, shuffled_mask)):
        plain = module(query, key, value, keep)
        assert_same(module(p @ query, r @ key, r @ value, shuffled), p @ plain, 1e-12)
        assert_same(module(query, r @ key, r @ value, None if keep is None else
                           (mask.double() @ r.T).bool()), plain, 1e-12)  # fmt: skip
    x = module(query, query, query)
    assert_same(module(*[p @ query] * 3), p @ x, 1e-12)
    assert not torch.allclose(module(query, r @ key, value), module(query, key, value))


@pytest.mark.equation("res-permutation")
def test_a_causal_mask_stays_where_it_is():
    """The theorem moves the mask along; a mask tied to places breaks the symmetry."""
    module = attention_block()
    x = normal(1, 6, 8)
    order = torch.tensor([2, 0, 1, 5, 4, 3])
    plain = module(x, x, x, causal=True)[:, order]
    moved = module(*[x[:, order]] * 3, causal=True)
    assert not torch.allclose(moved, plain)
    lower = torch.ones(6, 6, dtype=torch.bool).tril()[order][:, order]
    assert_same(module(*[x[:, order]] * 3, lower), plain, 1e-12)


@pytest.mark.equation("res-head-freedom")
@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_directions_that_change_the_maps(n_heads):
    """4d² − 2d²/h: moving along the idle directions of a head changes no answer."""
    d_model, d_k = 4, 4 // n_heads
    module = attention_block(d_model=d_model, n_heads=n_heads, bias=False)
    matrices = dict(module.named_parameters())

    def maps(*weights):
        query, key, value, out = weights
        per_head = (n_heads, d_k, d_model)
        look = query.view(per_head).mT @ key.view(per_head)
        carry = value.view(per_head).mT @ out.T.view(per_head)
        return torch.cat((look.flatten(), carry.flatten()))

    parts = torch.autograd.functional.jacobian(maps, tuple(matrices.values()))
    jacobian = torch.cat([part.flatten(1) for part in parts], dim=-1)
    rank = torch.linalg.matrix_rank(jacobian).item()
    assert rank == 4 * d_model**2 - 2 * d_model**2 // n_heads

    x = normal(1, 5, d_model)
    before = module(x, x, x)
    change = normal(d_k, d_k, seed=5) + 2 * torch.eye(d_k, dtype=torch.float64)
    with torch.no_grad():  # W^Q N and W^K N^-T of the first head
        module.query_projection.weight[:d_k] = (
            change.T @ matrices["query_projection.weight"][:d_k]
        )
        module.key_projection.weight[:d_k] = (
            torch.linalg.inv(change) @ matrices["key_projection.weight"][:d_k]
        )
    assert_same(module(x, x, x), before, 1e-9)


@pytest.mark.equation("res-head-rank")
@pytest.mark.parametrize("d_k", [1, 2, 5])
def test_logs_of_weights_have_rank_d_k_plus_one(d_k):
    module = attention_block(d_model=8, n_heads=2, d_k=d_k)
    logs = module.weights(normal(1, 9, 8), normal(1, 11, 8, seed=1)).log()
    assert (torch.linalg.matrix_rank(logs) == d_k + 1).all()


@pytest.mark.equation("res-head-sets")
@pytest.mark.parametrize("d_k", [1, 2, 3])
def test_sets_that_a_head_cannot_choose(notebook_function, d_k):
    """Of d_k + 2 keys the set found is never on top; of d_k + 1 every set can be."""
    forbidden_set = notebook_function(CHAPTER, "forbidden_set")
    for seed in range(5):
        keys = normal(d_k + 2, d_k, seed=seed)
        found = forbidden_set(keys)
        assert 0 < len(found) < d_k + 2
        scores = normal(50_000, d_k, seed=seed + 50) @ keys.T
        inside = torch.tensor([j in found for j in range(d_k + 2)])
        lowest = scores[:, inside].amin(-1)
        assert (lowest < scores[:, ~inside].amax(-1)).all()
        few = keys[1:]
        for size in range(1, d_k + 1):
            for chosen in itertools.combinations(range(d_k + 1), size):
                side = torch.full((d_k + 1,), -1.0, dtype=torch.float64)
                side[list(chosen)] = 1.0
                rows = torch.cat((few, torch.ones_like(few[:, :1])), dim=-1)
                query = torch.linalg.solve(rows, side)[:-1]
                top = set((few @ query).topk(size).indices.tolist())
                assert top == set(chosen)
