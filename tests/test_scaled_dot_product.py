"""Masks and weights; what every ``attend`` shares is in test_attend.py."""

import itertools
import math

import pytest
import torch
from helpers import assert_same, normal, padded, seeded
from torch.autograd import gradcheck

from aiayn import (
    attention,
    attention_weights,
    causal_mask,
    fused_attention,
    padding_mask,
)

CHAPTER = "02_scaled_dot_product"


def random_weights(rows: int, keys: int, *, seed: int) -> torch.Tensor:
    """Rows of positive weights with sum 1, some of them nearly 0."""
    weights = torch.rand(rows, keys, generator=seeded(seed), dtype=torch.float64) ** 4
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.equation("eq-softmax")
@pytest.mark.parametrize("temperature", [0.3, 1.0, 7.0])
def test_softmax_by_hand(notebook_function, temperature):
    """Exponentials over their sum, along the last axis, in Python's own numbers."""
    scores = normal(3, 4)
    weights = notebook_function(CHAPTER, "softmax")(scores, temperature)
    for row, found in zip(scores.tolist(), weights, strict=True):
        mass = [math.exp(score / temperature) for score in row]
        assert_same(found, [m / sum(mass) for m in mass], 1e-12)


@pytest.mark.equation("res-gibbs", "eq-softmax")
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_no_weights_beat_the_softmax(notebook_function, temperature):
    """Mean score + T · entropy, searched on a grid over the weights of three keys."""
    softmax = notebook_function(CHAPTER, "softmax")
    scores, n = normal(3), 60
    best = softmax(scores, temperature)

    def worth(weights):
        entropy = -sum(w * math.log(w) for w in weights if w > 0)
        pairs = zip(weights, scores.tolist(), strict=True)
        return sum(w * s for w, s in pairs) + temperature * entropy

    grid = [
        (i / n, j / n, (n - i - j) / n) for i in range(n + 1) for j in range(n + 1 - i)
    ]
    winner = max(grid, key=worth)
    assert worth(winner) <= worth(best.tolist())
    assert (best - torch.tensor(winner)).abs().max() < 1 / n
    for weights in random_weights(50, 3, seed=1):
        pairs = zip(weights.tolist(), best.tolist(), strict=True)
        divergence = sum(w * math.log(w / p) for w, p in pairs)
        lost = worth(best.tolist()) - worth(weights.tolist())
        assert lost == pytest.approx(temperature * divergence, abs=1e-12)
        assert divergence > 0


@pytest.mark.equation("eq-softmax-jacobian")
def test_jacobian_of_the_softmax(notebook_function):
    """By autograd, and by moving each score a little."""
    scores = normal(5)
    weights = scores.softmax(-1)
    jacobian = notebook_function(CHAPTER, "softmax_jacobian")(weights)
    exact = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    assert_same(jacobian, exact, 1e-12)
    for j in range(5):
        step = 1e-6 * torch.eye(5, dtype=torch.float64)[j]
        slope = ((scores + step).softmax(-1) - (scores - step).softmax(-1)) / 2e-6
        assert_same(jacobian[:, j], slope, 1e-8)
    for factor in (1, 3, 10, 30):  # no entry exceeds what the largest weight lacks
        weights = (factor * scores).softmax(-1)
        found = notebook_function(CHAPTER, "softmax_jacobian")(weights)
        assert found.abs().max() <= 1 - weights.max()


@pytest.mark.equation("eq-row-gradients")
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_gradients_to_scores_and_to_the_query(notebook_function, scale):
    query, key, value = normal(4, 1, 3), normal(4, 6, 3, seed=1), normal(4, 6, seed=2)
    query.requires_grad_()
    scores = scale * query @ key.mT
    output = (scores.softmax(-1) * value.unsqueeze(-2)).sum()
    expected = torch.autograd.grad(output, (scores, query))
    with torch.no_grad():
        found = notebook_function(CHAPTER, "row_gradients")(query, key, value, scale)
    assert_same(found[0], scores.softmax(-1).squeeze(-2).detach(), 1e-12)
    for ours, theirs in zip(found[1:], expected, strict=True):
        assert_same(ours, theirs.squeeze(-2), 1e-12)


@pytest.mark.equation("eq-score-step")
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_gradient_descent_seen_from_the_scores(notebook_function, scale):
    """The same as torch's SGD on the queries."""
    score_step = notebook_function(CHAPTER, "score_step")
    query, key, value = normal(3, 1, 4), normal(3, 5, 4, seed=1), normal(3, 5, seed=2)
    target = value[:, :1]
    scores = scale * (query @ key.mT).squeeze(-2)
    query.requires_grad_()
    optimiser = torch.optim.SGD([query], lr=0.1)
    for _ in range(4):
        weights = (scale * query @ key.mT).softmax(-1)
        output = (weights @ value.unsqueeze(-1)).squeeze(-1)
        loss = (output - target).square().squeeze(-1)
        scores, ours = score_step(
            scores, key @ key.mT, value, target, scale=scale, rate=0.1
        )
        assert_same(ours, loss.detach(), 1e-12)
        optimiser.zero_grad()
        loss.sum().backward()
        optimiser.step()
        assert_same(scores, (scale * query @ key.mT).squeeze(-2).detach(), 1e-12)


@pytest.mark.equation("res-change-of-units")
@pytest.mark.parametrize("d_k", [4, 9])
def test_the_divisor_is_a_change_of_units(d_k):
    """Unscaled from q/√d_k at rate η/d_k: the same weights at every step.

    Keys learn too, at the same rate η in both.
    """
    value, upstream = normal(5, 2, seed=2), normal(3, 2, seed=3)
    runs = []
    for scale, start, slowness in ((None, 1.0, 1.0), (1.0, d_k**-0.5, d_k)):
        query = (start * normal(3, d_k)).requires_grad_()
        key = normal(5, d_k, seed=1).requires_grad_()
        rates = {"params": [query], "lr": 0.5 / slowness}, {"params": [key], "lr": 0.5}
        optimiser = torch.optim.SGD(rates)
        weights = []
        for _ in range(20):
            weights.append(attention_weights(query, key, scale=scale).detach())
            optimiser.zero_grad()
            output = attention(query, key, value, scale=scale)
            (output - upstream).square().sum().backward()
            optimiser.step()
        runs.append(torch.stack(weights))
    assert_same(runs[0], runs[1], 1e-9)
    assert (runs[0][0] - runs[0][-1]).abs().max() > 0.1  # something was learnt


def test_what_the_divisor_does_to_gradients(notebook_function):
    """The chapter's findings on other random rows, with margins for chance."""
    rows = notebook_function(CHAPTER, "random_rows")
    gradients = notebook_function(CHAPTER, "row_gradients")
    norms = {
        (d_k, scale): [
            g.norm(dim=-1) for g in gradients(*rows(d_k, 600, seed=5), scale)[1:]
        ]
        for d_k in (64, 256)
        for scale in (1.0, d_k**-0.5)
    }
    for d_k in (64, 256):
        (scores, query), (small_scores, small_query) = (
            norms[d_k, scale] for scale in (1.0, d_k**-0.5)
        )
        assert scores.median() < 0.6 * small_scores.median()
        assert query.mean() > 4 * small_query.mean()
        assert 0.2 < small_query.median() < 0.24
    assert norms[64, 1.0][1].median() > 2 * norms[64, 0.125][1].median()


def test_saturated_rows_do_not_learn(notebook_function):
    learn = notebook_function(CHAPTER, "learn")
    outcome = notebook_function(CHAPTER, "outcome")
    assert outcome(*learn(64, 0.125, 0.1))[0] < 2
    assert outcome(*learn(64, 1.0, 0.1))[0] > 12
    query, key, value = notebook_function(CHAPTER, "random_rows")(64, n_rows=500)
    answer = attention(query, key, value.unsqueeze(-1))[:, 0, 0]
    first, _ = learn(64, 0.125, 0.1, steps=1)
    assert_same(first, (answer - value[:, 0]).square(), 1e-10)


@pytest.mark.equation("eq-attention-gradients")
def test_gradients_of_attention(notebook_function):
    tensors = [normal(2, n, d, seed=n).requires_grad_() for n, d in ((3, 4), (5, 4))]
    tensors.append(normal(2, 5, 6, seed=9).requires_grad_())
    upstream = normal(2, 3, 6, seed=8)
    expected = torch.autograd.grad(attention(*tensors), tensors, upstream)
    with torch.no_grad():
        found = notebook_function(CHAPTER, "attention_gradients")(*tensors, upstream)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs, 1e-12)


@pytest.mark.equation("res-hull")
def test_answers_stay_in_the_hull_of_the_values():
    """Three values in a plane: an answer's place in their triangle is its weights."""
    query, key = 2 * normal(40, 3), normal(3, 3, seed=1)
    value = torch.tensor([[0.0, 0.0], [2.0, 1.0], [-1.0, 3.0]], dtype=torch.float64)
    answer = attention(query, key, value)
    corners = torch.cat([value.T, torch.ones(1, 3, dtype=torch.float64)])
    places = torch.cat([answer.T, torch.ones(1, 40, dtype=torch.float64)])
    inside = torch.linalg.solve(corners, places).T
    assert (inside >= 0).all()
    assert_same(inside, attention_weights(query, key), 1e-10)


@pytest.mark.equation("eq-additive-score")
def test_additive_scores_by_hand(notebook_function):
    query, key = normal(2, 3, seed=1), normal(4, 3, seed=2)
    w_query, w_key, vector = normal(5, 3), normal(5, 3, seed=3), normal(5, seed=4)
    scores = notebook_function(CHAPTER, "additive_scores")(
        query, key, w_query, w_key, vector
    )
    assert scores.shape == (2, 4)
    for i, j in itertools.product(range(2), range(4)):
        inner = w_query @ query[i] + w_key @ key[j]
        expected = sum(
            a * math.tanh(x)
            for a, x in zip(vector.tolist(), inner.tolist(), strict=True)
        )
        assert_same(scores[i, j], expected, 1e-12)


def test_mean_square_score_within_its_interval(notebook_function):
    """99.99 % of a normal error, on another seed than the chapter's."""
    mean_square_score = notebook_function(CHAPTER, "mean_square_score")
    for d_k in (4, 64):
        ratio = mean_square_score(d_k, seed=7) / d_k
        assert abs(ratio - 1) < 3.9 * math.sqrt((2 + 6 / d_k) / 20_000)


def test_the_mask_of_the_figure(notebook_function):
    example_mask = notebook_function(CHAPTER, "example_mask")
    for n, m, causal in itertools.product((1, 2, 4), (1, 3, 5), (False, True)):
        for padding, hidden in {"none": [], "last two": [m - 2, m - 1]}.items():
            expected = [
                [j not in hidden and (not causal or j <= i + m - n) for j in range(m)]
                for i in range(n)
            ]
            assert example_mask(n, m, causal, padding).tolist() == expected


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
