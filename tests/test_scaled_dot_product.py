"""Masks and weights; what every ``attend`` shares is in test_attend.py."""

import itertools
import math

import pytest
import torch
from helpers import assert_same, normal, padded
from torch.autograd import gradcheck

from aiayn import (
    attention,
    attention_weights,
    causal_mask,
    fused_attention,
    padding_mask,
)


@pytest.mark.equation("eq-causal-mask")
def test_causal_mask_by_its_definition():
    """Query i of n stands at key i + m − n and sees the keys up to there."""
    for n in range(5):
        for m in range(5):
            expected = [[j <= i + m - n for j in range(m)] for i in range(n)]
            mask = causal_mask(n, m)
            assert mask.dtype == torch.bool
            assert mask.shape == (n, m)
            assert mask.tolist() == expected
    assert causal_mask(4).tolist() == causal_mask(4, 4).tolist()


@pytest.mark.equation("eq-causal-mask")
def test_causal_mask_includes_the_diagonal_and_nothing_after_it():
    """lalamo#273: j < i, or j <= i + 1."""
    assert causal_mask(1).tolist() == [[True]]
    assert causal_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_causal_mask_on_a_device():
    assert causal_mask(3, device=torch.device("meta")).device.type == "meta"


@pytest.mark.equation("eq-padding-mask")
def test_padding_mask_by_its_definition():
    rows = padded([[5, 6, 7], [8], [9, 4]])
    mask = padding_mask(rows)
    assert mask.dtype == torch.bool
    assert mask.shape == (3, 1, 1, 3)
    assert mask[:, 0, 0].int().tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    other = padding_mask(rows, pad_id=7)
    assert other[:, 0, 0].int().tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]


def test_padding_mask_of_any_integer_dtype_and_of_no_token():
    for dtype in (torch.int8, torch.int32, torch.int64):
        mask = padding_mask(torch.tensor([[3, 0]], dtype=dtype))
        assert mask.tolist() == [[[[True, False]]]]
    assert padding_mask(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 1, 1, 0)


@pytest.mark.equation("eq-attention-weights")
def test_weights_by_hand():
    """exp(q·k/√d_k) over its sum along the keys, in Python's own numbers."""
    query, key = normal(2, 3, 4), normal(2, 5, 4, seed=1)
    weights = attention_weights(query, key)
    assert weights.shape == (2, 3, 5)
    for b in range(2):
        for i in range(3):
            scores = [
                sum(x * y for x, y in zip(q, k, strict=True)) / math.sqrt(4)
                for q, k in (
                    (query[b, i].tolist(), key[b, j].tolist()) for j in range(5)
                )
            ]
            mass = [math.exp(score) for score in scores]
            assert_same(weights[b, i], [m / sum(mass) for m in mass], 1e-12)


@pytest.mark.equation("eq-attention-weights")
def test_weights_along_rows_not_columns():
    """PyTorch-NLP#2: the column softmax of 0 1 / 2 3 would give 0.119 and 0.881."""
    query = torch.eye(2, dtype=torch.float64)
    key = torch.tensor([[0.0, 2.0], [1.0, 3.0]], dtype=torch.float64)
    weights = attention_weights(query, key, scale=1.0)
    assert_same(weights, [[0.268941, 0.731059]] * 2, 1e-6)


def test_weights_of_an_empty_row_are_zero():
    """pytorch#103749: not NaN, and not one half each."""
    query, key = normal(1, 2, 4), normal(1, 2, 4, seed=1)
    mask = torch.tensor([[True, True], [False, False]])
    weights = attention_weights(query, key, mask)
    assert weights[0, 1].tolist() == [0.0, 0.0]
    assert weights[0, 0].sum().item() == pytest.approx(1.0)
    assert attention_weights(query, key[:, :0]).shape == (1, 2, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_hidden_key_has_weight_zero_in_every_dtype(dtype):
    """apex#1105: exactly 0, even against a score that towers above the others."""
    query = torch.ones(1, 4, dtype=dtype)
    key = torch.tensor([[0.0] * 4, [50.0] * 4, [0.0] * 4], dtype=dtype)
    mask = torch.tensor([[True, False, True]])
    assert attention_weights(query, key, mask).tolist() == [[0.5, 0.0, 0.5]]


def test_weights_have_right_gradients_at_an_empty_row():
    query, key = (normal(3, 2, seed=s).requires_grad_() for s in range(2))
    mask = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    assert gradcheck(lambda q, k: attention_weights(q, k, mask), (query, key))


@pytest.mark.equation("eq-attention")
def test_attention_mixes_values_by_the_weights():
    query, key, value = (normal(2, 4, 4, seed=s) for s in range(3))
    for mask, causal in ((None, False), (None, True), (normal(4, 4, seed=4) > 0, True)):
        weights = attention_weights(query, key, mask, causal=causal)
        expected = torch.einsum("bij,bjc->bic", weights, value)
        assert_same(attention(query, key, value, mask, causal=causal), expected, 1e-12)


@pytest.mark.parametrize("attend", [attention, fused_attention])
def test_additive_and_float_masks_are_refused(attend):
    """pytorch#21518, #92554: 0/1 numbers where −inf was meant, two meanings mixed.

    One meaning is allowed, booleans; the message says how to get there from the others.
    """
    query = key = value = torch.zeros(1, 3, 2)
    lower = torch.ones(3, 3).tril()
    additive = torch.zeros(3, 3).masked_fill(lower == 0, -math.inf)
    for wrong in (lower, additive, lower.long(), lower.to(torch.uint8)):
        with pytest.raises(TypeError, match="mask"):
            attend(query, key, value, wrong)
    expected = attend(query, key, value, causal=True)
    assert torch.equal(attend(query, key, value, lower.bool()), expected)
    assert torch.equal(attend(query, key, value, additive == 0), expected)


@pytest.mark.equation("res-score-variance")
@pytest.mark.parametrize("d_k", [1, 2, 3, 6])
def test_variance_of_a_score_is_the_width(d_k):
    """Exactly, over all vectors of independent components with mean 0, variance 1.

    Components are ±1 in the query and ±√2, ±√2, 0, 0 in the key: every pair of vectors
    once. Divided by √d_k, the variance is 1.
    """
    queries = list(itertools.product((-1.0, 1.0), repeat=d_k))
    keys = list(itertools.product((-math.sqrt(2), math.sqrt(2), 0.0, 0.0), repeat=d_k))
    query, key = (torch.tensor(x, dtype=torch.float64) for x in (queries, keys))
    for x in (query, key):
        assert_same(x.mean(0), torch.zeros(d_k), 1e-12)
        assert_same((x.T @ x) / len(x), torch.eye(d_k), 1e-12)
    scores = torch.cat([(row * key).sum(-1) for row in query])
    assert_same(scores.mean(), 0.0, 1e-12)
    assert_same(scores.square().mean(), float(d_k), 1e-10)
    assert_same((scores / math.sqrt(d_k)).square().mean(), 1.0, 1e-10)


@pytest.mark.parametrize("attend", [attention, fused_attention])
@pytest.mark.usefixtures("no_shape_checks")
def test_one_compiled_function_for_every_length(attend):
    """pytorch#139424, #148545: NaN, or an error, at the second length.

    ``fullgraph`` also fails on a branch that depends on what a tensor holds.
    """
    torch.compiler.reset()
    compiled = torch.compile(attend, backend="eager", fullgraph=True, dynamic=True)
    for length in (5, 1, 9):
        query, key, value = (normal(2, length, 4, seed=s) for s in range(3))
        mask = normal(length, length, seed=3) > 0
        plain = attend(query, key, value, mask, causal=True)
        assert_same(compiled(query, key, value, mask, causal=True), plain, 1e-12)
    torch.compiler.reset()
