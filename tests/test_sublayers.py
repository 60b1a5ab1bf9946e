"""Feed-forward, residual and norm, embedding."""

import math

import pytest
import torch
from helpers import assert_same, normal, seeded, stir

from aiayn import (
    PositionalEncoding,
    PositionwiseFeedForward,
    Sublayer,
    TokenEmbedding,
    sinusoidal_encoding,
)


def layer_norm(x, gain, shift, eps=1e-5):
    """Mean and biased variance of each vector, in plain arithmetic."""
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / (variance + eps).sqrt() * gain + shift


@pytest.mark.equation("eq-feed-forward")
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_by_hand(bias):
    """max(0, x W₁ + b₁) W₂ + b₂, one hidden unit after the other."""
    torch.manual_seed(0)
    module = PositionwiseFeedForward(4, 7, bias=bias).double()
    stir(module, seed=1)
    x = normal(2, 3, 4)
    expected = torch.zeros(2, 3, 4, dtype=torch.float64)
    if bias:
        expected += module.outer.bias
    for unit in range(7):
        hidden = (x * module.inner.weight[unit]).sum(-1)
        hidden = hidden + (module.inner.bias[unit] if bias else 0.0)
        hidden = torch.where(hidden > 0, hidden, 0.0)
        expected = expected + hidden.unsqueeze(-1) * module.outer.weight[:, unit]
    assert_same(module(x), expected.detach())
    assert len(list(module.parameters())) == (4 if bias else 2)


def test_feed_forward_is_the_same_at_every_position():
    torch.manual_seed(0)
    module = PositionwiseFeedForward(4, 7).double()
    x = normal(2, 3, 4)
    for b in range(2):
        for t in range(3):
            assert_same(module(x)[b, t], module(x[b, t]).detach(), 1e-12)
    moved = x.clone()
    moved[:, 1] += 1.0
    assert torch.equal(module(moved)[:, [0, 2]], module(x)[:, [0, 2]])


@pytest.mark.equation("eq-post-norm")
def test_post_norm_by_hand():
    """norm(x + f(x)): the residual goes through the norm."""
    sublayer = Sublayer(6, 0.0).double()
    stir(sublayer, seed=1)
    x = normal(2, 3, 6)
    expected = layer_norm(
        x + x.roll(1, -1) ** 2, sublayer.norm.weight, sublayer.norm.bias
    )
    assert_same(sublayer(x, lambda y: y.roll(1, -1) ** 2), expected.detach())


@pytest.mark.equation("eq-pre-norm")
def test_pre_norm_by_hand():
    """x + f(norm(x)): the residual is left alone."""
    sublayer = Sublayer(6, 0.0, norm_first=True).double()
    stir(sublayer, seed=1)
    x = normal(2, 3, 6)
    normed = layer_norm(x, sublayer.norm.weight, sublayer.norm.bias)
    expected = x + normed.roll(1, -1) ** 2
    assert_same(sublayer(x, lambda y: y.roll(1, -1) ** 2), expected.detach())


def test_norm_divides_by_the_biased_standard_deviation():
    """annotated-transformer#119, allennlp#953: n − 1, and eps outside the root."""
    norm = Sublayer(4, 0.0).double().norm
    assert norm.eps == 1e-5
    norm.eps = 1e-6
    x = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert_same(norm(x), [1.732046, -0.577349, -0.577349, -0.577349], 1e-6)


def test_a_constant_vector_has_norm_zero_and_finite_gradient():
    sublayer = Sublayer(4, 0.0).double()
    x = torch.full((1, 4), 3.0, dtype=torch.float64, requires_grad=True)
    out = sublayer(x, torch.zeros_like)
    assert torch.equal(out, torch.zeros(1, 4, dtype=torch.float64))
    out.backward(normal(1, 4))
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropout_acts_on_the_sublayer_and_only_in_training(norm_first):
    """pytorch#124464, timm#1978, wenet#2699: dropping went on in eval."""
    sublayer = Sublayer(6, 0.9, norm_first=norm_first).double()
    plain = Sublayer(6, 0.0, norm_first=norm_first).double()
    x = normal(2, 3, 6)
    f = torch.sin
    torch.manual_seed(0)
    sublayer.eval()
    assert torch.equal(sublayer(x, f), sublayer(x, f))
    assert torch.equal(sublayer(x, f), plain(x, f))
    sublayer.train()
    assert not torch.equal(sublayer(x, f), sublayer(x, f))


def test_dropout_scales_what_it_keeps_and_never_drops_the_residual():
    sublayer = Sublayer(6, 0.5, norm_first=True).double().train()
    torch.manual_seed(0)
    x = normal(50, 6)
    change = sublayer(x, torch.ones_like) - x
    kept = change != 0
    assert_same(change[kept], torch.full((int(kept.sum()),), 2.0), 1e-9)
    assert 0.35 < kept.double().mean() < 0.65


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropping_everything_leaves_the_residual(norm_first):
    sublayer = Sublayer(6, 1.0, norm_first=norm_first).double().train()
    x = normal(2, 6)
    expected = x if norm_first else layer_norm(x, 1.0, 0.0)
    assert_same(sublayer(x, torch.exp), expected, 1e-12)


@pytest.mark.equation("eq-embedding")
def test_embedding_is_scaled_on_the_way_in():
    """tutorials#2849, OpenNMT-py#1722: √d_model forgotten, inverted, after PE."""
    embedding = TokenEmbedding(5, 16).double()
    torch.nn.init.ones_(embedding.weight)
    tokens = torch.tensor([[4, 0], [1, 1]])
    looked_up = embedding(tokens)
    assert torch.equal(looked_up, torch.full((2, 2, 16), 4.0, dtype=torch.float64))
    table = sinusoidal_encoding(2, 16, dtype=torch.float64)
    expected = (4.0 + table).expand(2, 2, 16)
    assert torch.equal(PositionalEncoding(16)(looked_up), expected)


@pytest.mark.equation("eq-embedding")
def test_embedding_looks_up_its_own_row_for_each_token():
    torch.manual_seed(0)
    embedding = TokenEmbedding(5, 6).double()
    tokens = torch.tensor([[4, 0, 2], [1, 1, 3]])
    one_hot = torch.nn.functional.one_hot(tokens, 5).double()
    expected = (one_hot @ embedding.weight) * math.sqrt(6)
    assert_same(embedding(tokens), expected.detach(), 1e-12)
    assert torch.equal(embedding(tokens.to(torch.int32)), embedding(tokens))


def test_the_embedding_of_padding_is_trained_like_any_other_until_masked():
    """No row is special: masks hide padding, not a row of zeros."""
    embedding = TokenEmbedding(3, 4)
    embedding(torch.tensor([0, 0, 2])).sum().backward()
    assert_same(embedding.weight.grad[:, 0], [4.0, 0.0, 2.0], 1e-6)


@pytest.mark.parametrize(("std", "expected"), [(None, 1 / 8), (0.05, 0.05), (2, 2.0)])
def test_spread_of_a_new_embedding(std, expected):
    embedding = TokenEmbedding(3000, 64, std=std)
    embedding.reset_parameters(seeded(0))
    assert embedding.weight.std().item() == pytest.approx(expected, rel=0.02)
    output = embedding(torch.arange(3000))
    assert output.std().item() == pytest.approx(8 * expected, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    torch.manual_seed(0)
    parts = TokenEmbedding(5, 8), PositionwiseFeedForward(8, 16), Sublayer(8, 0.0)
    embedding, feed_forward, sublayer = (part.double() for part in parts)
    tokens = torch.tensor([[1, 4, 3]])
    expected = sublayer(embedding(tokens), feed_forward).detach()
    for part in parts:
        part.to(dtype)
    out = sublayer(embedding(tokens), feed_forward)
    assert out.dtype == dtype
    assert_same(out.double().detach(), expected, 16 * torch.finfo(dtype).eps)
