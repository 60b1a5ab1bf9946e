"""Against torch's own functions and layers: float64, results and all gradients."""

import pytest
import torch
import torch.nn.functional as F
from helpers import DTYPES, assert_same, normal, small_config, stir
from torch import nn
from torch_names import (
    assert_same_gradients,
    attention_names,
    backward,
    copy_weights,
    layer_names,
)

from aiayn import (
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    Sublayer,
    attention,
    fused_attention,
)

ATTENDS = pytest.mark.parametrize("attend", [attention, fused_attention])
LENGTHS = pytest.mark.parametrize(
    ("n_queries", "n_keys"), [(1, 1), (4, 4), (3, 6), (6, 3)]
)


def leaves(*shapes: tuple[int, ...], seed: int = 0):
    """Two equal sets of inputs, one for us and one for torch."""
    ours = [normal(*shape, seed=seed + i) for i, shape in enumerate(shapes)]
    theirs = [x.clone().requires_grad_() for x in ours]
    return [x.requires_grad_() for x in ours], theirs


def assert_same_input_gradients(ours, theirs):
    for x, y in zip(ours, theirs, strict=True):
        assert_same(x.grad, y.grad, 1e-9)


@pytest.mark.equation("eq-attention")
@ATTENDS
@LENGTHS
@pytest.mark.parametrize("scale", [None, 0.3])
def test_scaled_dot_product_attention(attend, n_queries, n_keys, scale):
    """With rows that see something: on an empty one torch's kernels disagree."""
    lower = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)
    free = normal(2, 3, n_queries, n_keys, seed=8) > -0.5
    free[..., 0] = True
    cases = [(None, False), (free, False)]
    if n_queries <= n_keys:
        cases += [(None, True), (free, True)]
    for mask, causal in cases:
        ours, theirs = leaves(
            (2, 3, n_queries, 4), (2, 3, n_keys, 4), (2, 3, n_keys, 5)
        )
        both = mask
        if causal:
            both = lower if mask is None else mask & lower
        expected = F.scaled_dot_product_attention(*theirs, attn_mask=both, scale=scale)
        mixed = attend(*ours, mask, causal=causal, scale=scale)
        assert_same(mixed.detach(), expected.detach(), 1e-12)
        backward(mixed)
        backward(expected)
        assert_same_input_gradients(ours, theirs)


@pytest.mark.equation("eq-multi-head")
@ATTENDS
@LENGTHS
def test_multihead_attention(attend, n_queries, n_keys):
    """Torch's masks mean the opposite: True = may not attend."""
    real = torch.ones(3, n_keys, dtype=torch.bool)
    real[1, n_keys // 2 + 1 :] = False
    lower = torch.ones(n_queries, n_keys, dtype=torch.bool).tril()
    cases = [(None, False), (real, False)]
    if n_queries == n_keys:
        cases += [(real, True), (None, True)]
    for keep, causal in cases:
        torch.manual_seed(0)
        packed = nn.MultiheadAttention(8, 2, batch_first=True).double()
        stir(packed, seed=1)
        module = MultiHeadAttention(8, 2, attend=attend).double()
        copy_weights(attention_names(module), packed)
        ours, theirs = leaves((3, n_queries, 8), (3, n_keys, 8), (3, n_keys, 8))
        expected, weights = packed(
            *theirs,
            key_padding_mask=None if keep is None else ~keep,
            attn_mask=~lower if causal else None,
            average_attn_weights=False,
        )
        mask = None if keep is None else keep[:, None, None, :]
        out = module(*ours, mask, causal=causal)
        assert_same(out.detach(), expected.detach())
        mine = module.weights(*ours[:2], mask, causal=causal)
        assert_same(mine.detach(), weights.detach())
        backward(out)
        backward(expected)
        assert_same_input_gradients(ours, theirs)
        assert_same_gradients(attention_names(module), packed)


@pytest.mark.equation("eq-layer-norm")
@pytest.mark.parametrize("shape", [(6,), (1, 3), (3, 4, 6), (2, 1, 3, 65)])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1e-2, 1.0])
def test_layer_norm_of_the_chapter(notebook_function, shape, eps):
    """BERT-pytorch#30, allennlp#953, annotated-transformer#122: n − 1, eps outside."""
    layer_norm = notebook_function("05_sublayers", "layer_norm")
    ours, theirs = leaves(shape, shape[-1:], shape[-1:])
    out = layer_norm(*ours, eps)
    expected = F.layer_norm(theirs[0], shape[-1:], *theirs[1:], eps)
    assert_same(out.detach(), expected.detach())
    backward(out)
    backward(expected)
    assert_same_input_gradients(ours, theirs)


@pytest.mark.equation("eq-layer-norm")
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_of_the_chapter_in_every_dtype(notebook_function, dtype):
    """The equation computes in the dtype it gets, torch in float32: rounding apart."""
    layer_norm = notebook_function("05_sublayers", "layer_norm")
    x = normal(3, 4, 16).to(dtype)
    expected = F.layer_norm(x.double(), (16,))
    out = layer_norm(x)
    assert out.dtype == dtype
    assert_same(out.double(), expected, max(8 * torch.finfo(dtype).eps, 1e-10))


@pytest.mark.equation("eq-layer-norm")
def test_layer_norm_of_the_chapter_at_its_edges(notebook_function):
    layer_norm = notebook_function("05_sublayers", "layer_norm")
    example = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    expected = [1.732046, -0.577349, -0.577349, -0.577349]
    assert_same(layer_norm(example, eps=1e-6), expected, 1e-6)
    constant = torch.full((4,), 3.0, dtype=torch.float64, requires_grad=True)
    out = layer_norm(constant)
    assert torch.equal(out, torch.zeros(4, dtype=torch.float64))
    backward(out)
    assert constant.grad.isfinite().all()


@pytest.mark.equation("eq-post-norm", "eq-pre-norm")
@pytest.mark.parametrize("norm_first", [False, True])
def test_sublayer_around_torchs_layer_norm(norm_first):
    sublayer = Sublayer(6, 0.0, norm_first=norm_first).double()
    stir(sublayer, seed=1)
    norm = nn.LayerNorm(6).double()
    norm.load_state_dict(sublayer.norm.state_dict())
    ours, theirs = leaves((2, 3, 6))
    f = lambda y: y.roll(1, -1).square()
    (x,) = theirs
    expected = x + f(norm(x)) if norm_first else norm(x + f(x))
    out = sublayer(ours[0], f)
    assert_same(out.detach(), expected.detach())
    backward(out)
    backward(expected)
    assert_same_input_gradients(ours, theirs)
    for name, weight in norm.named_parameters():
        assert_same(sublayer.norm.get_parameter(name).grad, weight.grad)


@pytest.mark.equation("eq-pre-norm")
def test_pre_norm_leaves_the_residual_untouched():
    """A sub-layer that gives nothing: x and its gradient exactly, in training too."""
    sublayer = Sublayer(6, 0.5, norm_first=True).double().train()
    x = normal(2, 3, 6).requires_grad_()
    out = sublayer(x, torch.zeros_like)
    assert torch.equal(out, x)
    backward(out)
    assert torch.equal(x.grad, normal(2, 3, 6, seed=7))


TORCH_LAYER = {
    "d_model": 16,
    "nhead": 4,
    "dim_feedforward": 24,
    "dropout": 0.0,
    "batch_first": True,
    "dtype": torch.float64,
}
PADDED = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])


@pytest.mark.equation("eq-encoder-layer")
@ATTENDS
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(attend, norm_first):
    torch.manual_seed(0)
    other = nn.TransformerEncoderLayer(**TORCH_LAYER, norm_first=norm_first)
    stir(other, seed=1)
    layer = EncoderLayer(
        small_config(norm_first=norm_first, dropout=0.0), attend=attend
    ).double()
    copy_weights(layer_names(layer), other)
    ours, theirs = leaves((3, 5, 16))
    out = layer(*ours, PADDED[:, None, None, :])
    expected = other(*theirs, src_key_padding_mask=~PADDED)
    assert_same(out.detach(), expected.detach())
    backward(out)
    backward(expected)
    assert_same_input_gradients(ours, theirs)
    assert_same_gradients(layer_names(layer), other)


@pytest.mark.equation("eq-decoder-layer")
@ATTENDS
@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer(attend, norm_first):
    torch.manual_seed(0)
    other = nn.TransformerDecoderLayer(**TORCH_LAYER, norm_first=norm_first)
    stir(other, seed=1)
    layer = DecoderLayer(
        small_config(norm_first=norm_first, dropout=0.0), attend=attend
    ).double()
    copy_weights(layer_names(layer), other)
    ours, theirs = leaves((3, 4, 16), (3, 5, 16))
    real = torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] * 3 + [False]])
    out = layer(*ours, real[:, None, None, :], PADDED[:, None, None, :])
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)
    expected = other(
        *theirs,
        tgt_mask=later,
        tgt_key_padding_mask=~real,
        memory_key_padding_mask=~PADDED,
    )
    assert_same(out.detach(), expected.detach())
    backward(out)
    backward(expected)
    assert_same_input_gradients(ours, theirs)
    assert_same_gradients(layer_names(layer), other)
