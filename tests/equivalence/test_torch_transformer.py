"""Against ``nn.Transformer`` with copied weights: results and all gradients."""

import math

import pytest
import torch
from helpers import assert_same, padded, small_model, stir
from torch import nn
from torch_names import assert_same_gradients, backward, copy_weights, stack_names

import aiayn
from aiayn import load_torch_transformer

# torch says that its fast path is off for such layers: true, and of no interest here
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def torch_model(*, norm_first: bool, layers: int = 2, seed: int = 3, **changes):
    """Torch's model of our size; without its own final norms if post-norm."""
    settings = {"d_model": 16, "nhead": 4, "dim_feedforward": 24, "dropout": 0.0}
    torch.manual_seed(seed)
    theirs = nn.Transformer(
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        norm_first=norm_first,
        batch_first=True,
        dtype=torch.float64,
        **{**settings, **changes},
    )
    if not norm_first:
        theirs.encoder.norm = theirs.decoder.norm = None
    stir(theirs, seed=seed)
    return theirs


def embed(weight, tokens):
    """Embedding and sinusoids, written out, as input of torch's stacks."""
    table = torch.tensor(
        [
            [
                (math.cos if c % 2 else math.sin)(p / 10000 ** ((c - c % 2) / 16))
                for c in range(16)
            ]
            for p in range(tokens.shape[1])
        ],
        dtype=torch.float64,
    )
    return weight[tokens] * 4.0 + table


@pytest.mark.equation("eq-transformer")
@pytest.mark.parametrize("attend", [aiayn.attention, aiayn.fused_attention])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_the_whole_model(norm_first, attend):
    """Logits at the real tokens, and the gradient of every weight, embeddings too."""
    theirs = torch_model(norm_first=norm_first)
    ours = small_model(norm_first=norm_first, dropout=0.0, attend=attend)
    load_torch_transformer(ours, theirs)
    weight = ours.source_embedding.weight.detach().clone().requires_grad_()
    source = padded([[3, 4, 5, 6, 2], [7, 2], [8, 9, 2]])
    target = padded([[1, 9], [1, 3, 5, 6], [1, 7, 7]])
    real = target != 0
    states = theirs(
        embed(weight, source),
        embed(weight, target),
        tgt_mask=torch.ones(4, 4, dtype=torch.bool).triu(1),
        src_key_padding_mask=source == 0,
        tgt_key_padding_mask=target == 0,
        memory_key_padding_mask=source == 0,
    )
    expected = states @ weight.T
    logits = ours(source, target)
    assert_same(logits[real].detach(), expected[real].detach())
    backward(logits, real)
    backward(expected, real)
    assert_same_gradients(stack_names(ours), theirs)
    assert_same(ours.source_embedding.weight.grad, weight.grad, 1e-9)


@pytest.mark.parametrize("norm_first", [False, True])
def test_every_weight_is_copied(norm_first):
    """Each of torch's, to its own place; embeddings and output stay as they are."""
    theirs = torch_model(norm_first=norm_first, layers=3)
    ours = small_model(norm_first=norm_first, n_layers=3, tie_embeddings=False)
    kept = {
        name: weight.clone()
        for name, weight in ours.state_dict().items()
        if name.startswith(
            ("source_embedding", "target_embedding", "output_projection")
        )
    }
    load_torch_transformer(ours, theirs)
    other = small_model(norm_first=norm_first, n_layers=3, tie_embeddings=False, seed=8)
    copy_weights(stack_names(other), theirs)
    for name, weight in other.state_dict().items():
        expected = kept.get(name, weight)
        assert torch.equal(ours.state_dict()[name], expected), name
    assert len(kept) == 3


def test_dtype_may_differ():
    theirs = torch_model(norm_first=False).float()
    ours = small_model()
    load_torch_transformer(ours, theirs)
    weight = ours.encoder_layers[0].feed_forward.inner.weight
    assert weight.dtype == torch.float64
    assert torch.equal(weight, theirs.encoder.layers[0].linear1.weight.double())
    weight.data.add_(1.0)  # a copy, not the same storage
    assert not torch.equal(weight, theirs.encoder.layers[0].linear1.weight.double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layers": 3},
            "encoder: expected .*layers.*2.* got 3|expected 2 layers, got 3",
        ),
        ({"d_model": 32}, "expected shape .* got .*32"),
        ({"dim_feedforward": 20}, r"expected shape \(24, 16\), got \(20, 16\)"),
        ({"norm_first": True}, "norm_first=False.* got True"),
        ({"bias": False}, "must both have biases"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_copied(changes, message):
    ours = small_model()
    before = {name: weight.clone() for name, weight in ours.state_dict().items()}
    theirs = torch_model(**{"norm_first": False, **changes})
    with pytest.raises(ValueError, match=message):
        load_torch_transformer(ours, theirs)
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, before[name])


def test_a_final_norm_where_the_paper_has_none_is_refused():
    theirs = torch_model(norm_first=False)
    theirs.decoder.norm = nn.LayerNorm(16)
    with pytest.raises(ValueError, match=r"theirs\.decoder\.norm = None"):
        load_torch_transformer(small_model(), theirs)
