"""The whole model: what it computes, what it hides, how it is built and stored."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    VOCAB,
    assert_same,
    normal,
    padded,
    plain_logits,
    seeded,
    small_config,
    small_model,
    stir,
    tokens,
)
from seams import PairedAttention
from test_attend import OneDevice
from torch import Tensor, nn

import aiayn
from aiayn import (
    DecoderLayer,
    EncoderLayer,
    Transformer,
    TransformerConfig,
    assert_causal,
    assert_padding_invariant,
    parameter_count,
    record_attention,
    transformer,
)
from aiayn.training import teacher_forcing
from aiayn.transformer import count_positions

VARIANTS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "one layer": {"n_layers": 1},
    "three layers": {"n_layers": 3},
    "odd widths": {"d_model": 10, "d_k": 3, "d_v": 5},
    "no bias": {"bias": False},
    "untied": {"tie_embeddings": False},
    "learned positions": {"positions": "learned"},
    "no positions": {"positions": "none"},
    "another pad": {"pad_id": 5},
}


def variant(function):
    """Run a test on every kind of model."""
    return pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)(function)


# --- what it computes -----------------------------------------------------------------


def norm_by_hand(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centred / spread * norm.weight + norm.bias


def attend_by_hand(attention, x: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    """Multi-head attention of x over y, with einsum and none of the package's code."""

    def heads(z, linear, width):
        projected = z @ linear.weight.T
        if linear.bias is not None:
            projected = projected + linear.bias
        return projected.view(*z.shape[:2], attention.n_heads, width)

    q = heads(x, attention.query_projection, attention.d_k)
    k = heads(y, attention.key_projection, attention.d_k)
    v = heads(y, attention.value_projection, attention.d_v)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(attention.d_k)
    weights = scores.masked_fill(~keep, -math.inf).softmax(-1)
    mixed = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(-2)
    return attention.output_projection(mixed)


def layer_by_hand(layer, x, memory, own: Tensor, other: Tensor | None, pre: bool):
    """One layer of either stack, written out."""
    steps = [(layer.around_self_attention, "self"), (layer.around_feed_forward, "ff")]
    if memory is not None:
        steps.insert(1, (layer.around_cross_attention, "cross"))
    for around, kind in steps:
        y = norm_by_hand(x, around.norm) if pre else x
        if kind == "self":
            y = attend_by_hand(layer.self_attention, y, y, own)
        elif kind == "cross":
            y = attend_by_hand(layer.cross_attention, y, memory, other)
        else:
            y = layer.feed_forward.outer(layer.feed_forward.inner(y).clamp(min=0))
        x = x + y if pre else norm_by_hand(x + y, around.norm)
    return x


def model_by_hand(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Tokens to logits, written out; positions for padding on the right."""
    config = model.config
    real = source != config.pad_id
    seen = real[:, None, None, :]
    n = target.shape[1]
    lower = torch.ones(n, n, dtype=torch.bool).tril()
    own = lower & (target != config.pad_id)[:, None, None, :]
    stacks = []
    for side, ids in (("source", source), ("target", target)):
        weight = getattr(model, f"{side}_embedding").weight
        x = weight[ids] * math.sqrt(config.d_model)
        for p in range(ids.shape[1] if config.positions == "sinusoidal" else 0):
            for c in range(config.d_model):
                angle = p / 10000 ** ((c - c % 2) / config.d_model)
                x[:, p, c] += math.cos(angle) if c % 2 else math.sin(angle)
        stacks.append(x)
    memory, x = stacks
    for layer in model.encoder_layers:
        memory = layer_by_hand(layer, memory, None, seen, None, config.norm_first)
    if config.norm_first:
        memory = norm_by_hand(memory, model.encoder_norm)
    for layer in model.decoder_layers:
        x = layer_by_hand(layer, x, memory, own, seen, config.norm_first)
    if config.norm_first:
        x = norm_by_hand(x, model.decoder_norm)
    if config.tie_embeddings:
        return x @ model.target_embedding.weight.T
    return x @ model.output_projection.weight.T


@pytest.mark.equation("eq-encoder-layer")
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_by_hand(norm_first):
    config = small_config(norm_first=norm_first)
    torch.manual_seed(0)
    layer = EncoderLayer(config).double().eval()
    stir(layer, seed=1)
    x = normal(2, 5, 16)
    keep = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    keep[1, ..., 3:] = False
    expected = layer_by_hand(layer, x, None, keep, None, norm_first)
    assert_same(layer(x, keep), expected.detach())
    free = layer_by_hand(layer, x, None, keep | True, None, norm_first)
    assert_same(layer(x), free.detach())


@pytest.mark.equation("eq-decoder-layer")
@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer_by_hand(norm_first):
    """SeekDeeper#3, keras-io#1046: cross-attention got the mask of the target."""
    torch.manual_seed(0)
    layer = DecoderLayer(small_config(norm_first=norm_first)).double().eval()
    stir(layer, seed=1)
    x, memory = normal(2, 4, 16), normal(2, 5, 16, seed=1)
    real = torch.ones(2, 1, 1, 4, dtype=torch.bool)
    real[0, ..., 3] = False
    seen = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    seen[1, ..., 3:] = False
    own = real & torch.ones(4, 4, dtype=torch.bool).tril()
    expected = layer_by_hand(layer, x, memory, own, seen, norm_first)
    assert_same(layer(x, memory, real, seen), expected.detach())


@pytest.mark.equation("eq-decoder-layer")
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_layer_looks_back_only_whatever_masks_it_gets(norm_first):
    """pytorch#96941, torchtune#959: causal only when a mask or a cache was set up."""
    torch.manual_seed(0)
    layer = DecoderLayer(small_config(norm_first=norm_first)).double().eval()
    stir(layer, seed=1)
    x, memory = normal(2, 4, 16), normal(2, 5, 16, seed=1)
    own, seen = (torch.ones(2, 1, 1, n, dtype=torch.bool) for n in (4, 5))
    lower = own & torch.ones(4, 4, dtype=torch.bool).tril()
    expected = layer_by_hand(layer, x, memory, lower, seen, norm_first).detach()
    for masks in ((), (own,), (None, seen), (own, seen)):
        assert_same(layer(x, memory, *masks).detach(), expected)


@pytest.mark.equation("eq-transformer")
@pytest.mark.parametrize("kind", ["post-norm", "pre-norm", "odd widths", "untied"])
def test_model_by_hand(kind):
    model = small_model(**VARIANTS[kind])
    source = padded([[3, 4, 5, 2], [6, 7, 2], [8, 2]])
    target = padded([[1, 9], [1, 3, 4], [1, 5, 6]])
    real = target != 0
    expected = model_by_hand(model, source, target).detach()
    assert_same(plain_logits(model, source, target)[real], expected[real], 1e-9)


def test_logits_are_logits():
    """annotated-transformer#105: what ``forward`` returns has to be one thing.

    Raw scores over the target vocabulary, not hidden states nor probabilities.
    """
    model = small_model(target_vocab_size=7, tie_embeddings=False)
    logits = plain_logits(model, tokens(2, 4), tokens(2, 3, vocab_size=7))
    assert logits.shape == (2, 3, 7)
    assert (logits < 0).any()
    assert (logits > 0).any()
    assert (logits.exp().sum(-1) - 1).abs().max() > 0.1


def test_forward_is_encode_and_decode():
    model = small_model()
    source, target = tokens(2, 4), tokens(2, 3, seed=1)
    memory = model.encode(source)
    assert memory.shape == (2, 4, 16)
    assert torch.equal(model(source, target), model.decode(target, memory, source))


def test_logits_of_a_tied_model_are_not_scaled():
    """OpenNMT-py#1722: √d_model belongs to the way in only."""
    model = small_model(n_layers=1)
    states = []
    model.decoder_norm.register_forward_hook(lambda *call: states.append(call[2]))
    logits = plain_logits(model, tokens(1, 3), tokens(1, 2))
    assert_same(logits, states[0] @ model.target_embedding.weight.T.detach())


def test_embeddings_are_scaled_before_positions_are_added():
    """pytorch/tutorials#2849, attention-is-all-you-need-pytorch#138, Kyubyong#132.

    √16 = 4 times a row of ones, plus the encoding; not 4·(1 + PE), not 1/4, not 1.
    """
    model = small_model()
    torch.nn.init.ones_(model.source_embedding.weight)
    table = aiayn.sinusoidal_encoding(3, 16, dtype=torch.float64)
    seen = []
    for layer in (model.encoder_layers[0], model.decoder_layers[0]):
        layer.register_forward_pre_hook(lambda _layer, args: seen.append(args[0]))
    plain_logits(model, tokens(1, 3), tokens(1, 3))
    assert len(seen) == 2
    for x in seen:
        assert_same(x, 4.0 + table[None], 1e-12)


@pytest.mark.parametrize("pad_id", [0, 5])
def test_the_first_token_has_position_zero(pad_id):
    """fairseq#1177, #123: positions began at the padding id + 1."""
    model = small_model(pad_id=pad_id)
    seen = []
    for positions in (model.source_positions, model.target_positions):
        positions.register_forward_hook(
            lambda _m, args, out: seen.append(out - args[0])
        )
    plain_logits(model, torch.tensor([[3, 4]]), torch.tensor([[1, 4]]))
    for added in seen:
        assert_same(added[0, 0], [0.0, 1.0] * 8, 1e-12)
    assert len(seen) == 2


def test_positions_count_real_tokens():
    rows = torch.tensor([[0, 0, 3, 4, 5], [3, 4, 0, 0, 0], [3, 0, 4, 0, 5], [0] * 5])
    positions = count_positions(rows != 0)
    assert positions[0, 2:].tolist() == [0, 1, 2]
    assert positions[1, :2].tolist() == [0, 1]
    assert positions[2, [0, 2, 4]].tolist() == [0, 1, 2]
    assert (positions >= 0).all()
    assert (positions < 5).all()


# --- what it hides --------------------------------------------------------------------


@variant
def test_no_logit_depends_on_a_later_target(changes):
    """attention-is-all-you-need-pytorch#19, nanoGPT#331: the decoder saw the answer.

    Each target token is changed in turn: earlier logits do not move at all, the logits
    at its own place do.
    """
    model = small_model(**changes)
    source, target = tokens(2, 5), tokens(2, 6, seed=1)
    pad = model.config.pad_id
    source[source == pad], target[target == pad] = 4, 4
    before = plain_logits(model, source, target)
    for place in range(6):
        changed = target.clone()
        changed[:, place] = torch.where(target[:, place] == 8, 9, 8)
        moved = (plain_logits(model, source, changed) - before).abs().amax(-1)
        assert (moved[:, :place] <= 1e-12).all()
        assert (moved[:, place:] > 1e-6).all()


@pytest.mark.parametrize("attend", [aiayn.attention, aiayn.fused_attention])
def test_no_answer_depends_on_what_comes_after_it_in_training(attend):
    """nanoGPT#331: with the batch as the training loop cuts it, in training mode."""
    model = small_model(dropout=0.0, attend=attend).train()
    source, target = tokens(3, 5), padded([[1, 5, 6, 7, 8, 2], [1, 9, 2], [1, 4, 4, 2]])
    read, say = teacher_forcing(target)
    before = plain_logits(model, source, read)
    assert before.shape[:2] == say.shape
    for place in range(1, 6):
        changed = target.clone()
        changed[:, place] = torch.where(target[:, place] == 8, 9, 8)
        after = plain_logits(model, source, teacher_forcing(changed)[0])
        moved = (after - before).abs().amax(-1)
        assert (
            moved[:, :place] <= 1e-12
        ).all()  # say[:, place - 1] is the changed token
        assert place == 5 or (moved[:, place] > 1e-6).all()


@variant
def test_every_source_token_reaches_every_logit(changes):
    """SeekDeeper#3: a changed source token moves every target position, 0 included."""
    model = small_model(**changes)
    source, target = tokens(2, 5), tokens(2, 3, seed=1)
    pad = model.config.pad_id
    source[source == pad], target[target == pad] = 4, 4
    before = plain_logits(model, source, target)
    for place in range(5):
        changed = source.clone()
        changed[:, place] = torch.where(source[:, place] == 8, 9, 8)
        moved = (plain_logits(model, changed, target) - before).abs().amax(-1)
        assert (moved > 1e-6).all()


@variant
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_padding_and_neighbours_change_nothing(changes, left):
    """Alone, padded, and as any row of a batch, a sequence gives the same logits.

    Padding on the left too: positions count real tokens.
    """
    model = small_model(**changes)
    pad = model.config.pad_id
    sources = [[3, 4, 6, 7, 2], [6, 2], [7, 8, 2]]
    targets = [[1, 9], [1, 3, 4, 6], [1, 6, 6]]
    source = padded(sources, left=left, pad_id=pad)
    target = padded(targets, left=left, pad_id=pad)
    batch = plain_logits(model, source, target)
    for row in range(3):
        alone = plain_logits(
            model, torch.tensor([sources[row]]), torch.tensor([targets[row]])
        )
        real = target[row] != pad
        assert_same(batch[row][real], alone[0])
        single = plain_logits(model, source[row : row + 1], target[row : row + 1])
        assert_same(single[0][real], alone[0])
        last = plain_logits(model, source[[0, 1, row]], target[[0, 1, row]])
        assert_same(last[2][real], alone[0])


@variant
def test_what_stands_under_the_padding_does_not_matter(changes):
    """DI-engine#333: a mask that was computed and not used.

    The embedding of padding and everything computed at its places may be anything.
    """
    model = small_model(**changes)
    pad = model.config.pad_id
    source = padded([[3, 4, 6, 2], [6, 2]], pad_id=pad)
    target = padded([[1, 9], [1, 3, 4]], pad_id=pad)
    real = target != pad
    before = plain_logits(model, source, target)
    columns = torch.arange(VOCAB) != pad  # a tied output scores padding too
    with torch.no_grad():
        model.source_embedding.weight[pad] += 1.0
        model.target_embedding.weight[pad] -= 3.0
    after = plain_logits(model, source, target)
    assert_same(after[real][:, columns], before[real][:, columns], 1e-12)


def test_the_mask_acts_in_training_too():
    """A mask that is applied in one mode only."""
    model = small_model(dropout=0.0)
    source, target = padded([[3, 4, 2], [6, 2]]), padded([[1, 9], [1, 3]])
    evaluating = plain_logits(model.eval(), source, target)
    training = plain_logits(model.train(), source, target)
    assert_same(training, evaluating, 1e-12)
    longer = F.pad(source, (0, 2))
    assert_same(plain_logits(model.train(), longer, target), evaluating)
    assert_same(plain_logits(model.eval(), longer, target), evaluating)


def test_a_row_of_padding_alone_disturbs_nobody():
    model = small_model()
    source, target = padded([[3, 4, 2], []]), padded([[1, 9], []])
    logits = model(source, target)
    assert logits.isfinite().all()
    assert_same(logits[:1].detach(), plain_logits(model, source[:1], target[:1]))
    logits[0].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_dropout_stops_in_eval():
    model = small_model(dropout=0.9)
    source, target = tokens(2, 4), tokens(2, 3)
    still = plain_logits(model, source, target)
    assert torch.equal(still, plain_logits(model, source, target))
    assert torch.equal(still, plain_logits(small_model(dropout=0.0), source, target))
    model.train()
    torch.manual_seed(0)
    first = plain_logits(model, source, target)
    assert not torch.equal(first, plain_logits(model, source, target))
    torch.manual_seed(0)
    assert torch.equal(first, plain_logits(model, source, target))


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropping_everything_is_no_nan(norm_first):
    """pytorch#124464, #99293: 1 / (1 − p) of p = 1."""
    model = small_model(dropout=1.0, norm_first=norm_first).train()
    logits = model(tokens(2, 4), tokens(2, 3))
    assert logits.isfinite().all()
    assert_same(logits, logits[:1, :1].expand(2, 3, VOCAB).detach())  # nothing is left
    logits.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_dropout_is_on_embeddings_and_every_sublayer():
    """Seven places in a model of one layer, each with the configured probability."""
    model = small_model(dropout=0.25, n_layers=1)
    dropped = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            assert module.p == 0.25
            module.register_forward_hook(lambda *call, name=name: dropped.append(name))
    plain_logits(model, tokens(1, 2), tokens(1, 2))
    assert sorted(dropped) == [
        *["decoder_layers.0.around_cross_attention.dropout"],
        *["decoder_layers.0.around_feed_forward.dropout"],
        *["decoder_layers.0.around_self_attention.dropout"],
        *["dropout"] * 2,
        *["encoder_layers.0.around_feed_forward.dropout"],
        *["encoder_layers.0.around_self_attention.dropout"],
    ]


@variant
def test_the_assertions_hold_for_our_models(changes):
    model = small_model(**changes)
    assert_causal(model)
    assert_padding_invariant(model)
    assert_causal(model, tokens(2, 3) % 4 + 6, tokens(2, 4) % 4 + 6)


# --- planted leaks --------------------------------------------------------------------


def attend_with(rule):
    """``attend`` under a mask that ``rule`` makes of mask, causal flag and lengths."""

    def attend(query, key, value, mask=None, *, causal=False, scale=None):
        n, m = query.shape[-2], key.shape[-2]
        lower = torch.ones(n, m, dtype=torch.bool).tril(m - n) | (not causal)
        keep = rule(torch.ones(n, m, dtype=torch.bool) if mask is None else mask, lower)
        return aiayn.attention(query, key, value, keep, scale=scale)

    return attend


def further(lower: Tensor) -> Tensor:
    """One place more in every row."""
    return F.pad(lower[:, :-1], (1, 0), value=True)


def over_queries(query, key, value, mask=None, *, causal=False, scale=None):
    """PyTorch-NLP#2: a softmax along the queries."""
    keep = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    keep = keep.tril() if causal else keep
    scores = (query @ key.mT).masked_fill(~(keep & mask), -math.inf)
    return scores.softmax(-2).nan_to_num() @ value


def over_rows(query, key, value, mask=None, *, causal=False, scale=None):
    """The decoder's self-attention along the batch."""
    if not causal:
        return aiayn.attention(query, key, value, mask, scale=scale)
    turned = (x.transpose(0, -2) for x in (query, key, value))
    return aiayn.attention(*turned, scale=scale).transpose(0, -2)


class NormOver(nn.LayerNorm):
    def __init__(self, axis):
        super().__init__(16)
        self.axis = axis

    def forward(self, x):
        return x - x.mean(self.axis, keepdim=True)


class RawPlaces(nn.Module):
    def forward(self, x, positions=None):
        return x + torch.arange(x.shape[1])[:, None] / 8


class TargetMaskAcross(DecoderLayer):
    """SeekDeeper#3: the target's mask in cross-attention wherever it fits."""

    def forward(self, x, memory, target_mask=None, source_mask=None, *, cache=None):
        same = target_mask.shape == source_mask.shape
        return super().forward(x, memory, target_mask, target_mask if same else None)


def replaced(path: str, part: nn.Module) -> Transformer:
    """A small model with one part replaced."""
    model = small_model()
    parent, _, name = path.rpartition(".")
    if isinstance(part, DecoderLayer):
        part.load_state_dict(model.get_submodule(path).state_dict())
    setattr(model.get_submodule(parent), name, part)
    return model.double().eval()


ASSERTIONS = (assert_causal, assert_padding_invariant)
DECODER_NORM = "decoder_layers.1.around_cross_attention.norm"
LEAKS = {  # a broken model; which assertion rings (causal, padding), what it says
    "causal flag dropped": (
        lambda: small_model(attend=attend_with(lambda mask, lower: mask)),
        "position 0 .*enters in decoder_layers.0.self_attention$", None,
    ),
    "causal mask off by one": (
        lambda: small_model(attend=attend_with(lambda mask, lo: mask & further(lo))),
        "target position 1 .*position 0 .*decoder_layers.0.self_attention$", None,
    ),
    "causal flag where there is no mask": (
        lambda: small_model(attend=attend_with(
            lambda mask, lower: lower if mask.all() else mask)),
        None, "neighbours|padding",
    ),
    "softmax over the queries": (
        lambda: small_model(attend=over_queries),
        "decoder_layers.0.self_attention$", "source .*encoder_layers.0.self_attention$",
    ),
    "norm over time": (
        lambda: replaced(DECODER_NORM, NormOver(1)),
        f"{DECODER_NORM}$", f"right of the target .*{DECODER_NORM}$",
    ),
    "mask dropped": (
        lambda: small_model(attend=attend_with(lambda mask, lower: lower)),
        None, "right of the source .*encoder_layers.0.self_attention$",
    ),
    "the target's mask on the source": (
        lambda: replaced("decoder_layers.1", TargetMaskAcross(small_config())),
        None, "source .*decoder_layers.1.cross_attention$",
    ),
    "padding counted as positions": (
        lambda: replaced("target_positions", RawPlaces()),
        None, "left of the target .*target_positions$",
    ),
    "the first row's mask for all": (
        lambda: small_model(attend=attend_with(lambda m, lower: m[:1] & lower)),
        None, "neighbours .*row 1 .*encoder_layers.0.self_attention$",
    ),
    "attention over the batch": (
        lambda: small_model(attend=over_rows),
        None, "neighbours .*row 0 .*decoder_layers.0.self_attention$",
    ),
    "norm over the batch": (
        lambda: replaced("encoder_layers.1.around_feed_forward.norm", NormOver(0)),
        None, "neighbours .*encoder_layers.1.around_feed_forward.norm$",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(("broken", "future", "padding"), LEAKS.values(), ids=LEAKS)
def test_a_planted_leak_is_found_and_its_module_named(broken, future, padding):
    """attention-is-all-you-need-pytorch#19, DI-engine#333, onnxruntime-genai#1639, …

    Which of the two rings, what it names, and that the other stays silent; the hooks
    that find the module are gone afterwards.
    """
    model = broken()
    for check, message in zip(ASSERTIONS, (future, padding), strict=True):
        if message is None:
            check(model)
        else:
            with pytest.raises(AssertionError, match=message):
                check(model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_assert_causal_names_the_place_that_saw_the_future():
    model = small_model()
    source, target = tokens(2, 4), tokens(2, 5, seed=1)

    def leaking(source, target):
        logits = model(source, target).clone()
        logits[:, 1] += 1e-3 * target[:, 3:4]
        return logits

    with pytest.raises(AssertionError, match=r"position 3 .* position 1 by \S+$"):
        assert_causal(leaking, source, target, vocab_size=VOCAB)
    blind = lambda source, target: model(source, torch.ones_like(target))
    with pytest.raises(ValueError, match="nothing is tested: .*target position 0"):
        assert_causal(blind, source, target, vocab_size=VOCAB)
    assert_causal(model, source, target)


def test_every_place_before_the_change_is_looked_at():
    """A leak from each place to each earlier one, in one row of the batch."""
    model = small_model()
    source, target = tokens(3, 4), tokens(3, 4, seed=1)
    for j in range(4):
        for i in range(4):
            for row in range(3):

                def leaking(source, target, i=i, j=j, row=row):
                    logits = model(source, target).clone()
                    logits[row, i, 7] += 1e-3 * target[row, j]
                    return logits

                if i >= j:
                    assert_causal(leaking, source, target, vocab_size=VOCAB)
                    continue
                message = f"target position {j} .*position {i} by 0.00"
                with pytest.raises(AssertionError, match=message):
                    assert_causal(leaking, source, target, vocab_size=VOCAB)


def test_assert_padding_invariant_names_the_side():
    model = small_model()
    source, target = tokens(2, 4), tokens(2, 5, seed=1)

    def counts_source(source, target):
        return model(source, target) + 1e-3 * source.shape[1]

    def counts_target(source, target):
        return model(source, target) + 1e-3 * target.shape[1]

    for leaking, side in ((counts_source, "source"), (counts_target, "target")):
        with pytest.raises(AssertionError, match=f"right of the {side} move .*\\d$"):
            assert_padding_invariant(leaking, source, target, vocab_size=VOCAB)


def test_assert_padding_invariant_names_the_row_that_saw_its_neighbours():
    """Whatever the row: what it gets may not depend on who stands beside it."""
    model = small_model()
    source, target = tokens(3, 4), tokens(3, 5, seed=1)
    for row in range(3):

        def looks_aside(source, target, row=row):
            logits = model(source, target).clone()
            if len(source) == 3:
                logits[row, 2] += 1e-3 * source[row - 1, 0]
            return logits

        with pytest.raises(AssertionError, match=f"others from row {row} moves the"):
            assert_padding_invariant(looks_aside, source, target, vocab_size=VOCAB)


def test_assert_padding_invariant_pads_a_transformer_on_the_left_too(monkeypatch):
    """Padding on the right of a target hides behind causality; on the left it shows."""
    model = small_model()
    assert_padding_invariant(model)
    place = lambda real: torch.arange(real.shape[1]).expand(real.shape)
    monkeypatch.setattr(transformer, "count_positions", place)
    with pytest.raises(AssertionError, match="on the left of the source move"):
        assert_padding_invariant(model)


class OneSequence(nn.Module):
    """A decoder alone, or an encoder: tokens in, logits out."""

    def __init__(self, *, causal):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.causal = aiayn.TokenEmbedding(VOCAB, 16), causal
        self.layer = EncoderLayer(small_config(dropout=0.0))

    def forward(self, tokens):
        mask, x = aiayn.padding_mask(tokens), self.embedding(tokens)
        look = lambda x: self.layer.self_attention(x, x, x, mask, causal=self.causal)
        x = self.layer.around_self_attention(x, look)
        x = self.layer.around_feed_forward(x, self.layer.feed_forward)
        return x @ self.embedding.weight.T


def test_models_of_one_sequence_are_tested_through_a_function():
    given = (tokens(2, 4), tokens(2, 4, seed=1))
    for causal in (True, False):
        model = OneSequence(causal=causal).eval()
        alone = lambda source, target, model=model: model(target)
        assert_padding_invariant(alone, *given, vocab_size=VOCAB)
        if causal:
            assert_causal(alone, *given, vocab_size=VOCAB)
        else:
            with pytest.raises(AssertionError, match="not causal: .*position 0 "):
                assert_causal(alone, *given, vocab_size=VOCAB)
    deaf = lambda source, target: torch.ones(*target.shape, VOCAB)
    with pytest.raises(ValueError, match="nothing is tested: no token of the target"):
        assert_padding_invariant(deaf, *given, vocab_size=VOCAB)
    with pytest.raises(ValueError, match="nothing is tested: no token of the target"):
        assert_padding_invariant(alone, given[0], given[1] * 0, vocab_size=VOCAB)


def test_no_false_alarm():
    """Forbidden tokens as -inf, NaN under the padding, logits of any size."""
    model = small_model()
    source, target = padded([[3, 4, 2], [6, 2]]), padded([[1, 9, 4], [1, 3]])

    def odd(source, target, size=1.0):
        logits = size * model(source, target)
        logits[..., 0] = -math.inf
        logits[target == 0] = math.nan
        return logits

    for size in (1e-3, 1.0, 1e6):
        sized = lambda s, t, size=size: odd(s, t, size)
        assert_causal(sized, source, target, vocab_size=VOCAB)
        assert_padding_invariant(sized, source, target, vocab_size=VOCAB)
    left = padded([[1, 9, 4], [1, 3]], left=True)

    def busy(source, target):
        logits = model(source, target).clone()
        logits[target == 0] = target.sum().double()  # nobody reads it
        return logits

    assert_causal(busy, source, left, vocab_size=VOCAB)
    single = small_model(dtype=torch.float32)
    for check in ASSERTIONS:
        check(single)
        check(single.double())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_leak_into_nan_or_infinity_is_a_leak(value):
    model = small_model()
    source, target = tokens(2, 4), tokens(2, 5, seed=1)

    def leaking(source, other):
        logits = model(source, other).clone()
        if not torch.equal(other[:, 3], target[:, 3]):
            logits[0, 1, 2] = value
        return logits

    with pytest.raises(AssertionError, match="position 3 .*position 1 by inf"):
        assert_causal(leaking, source, target, vocab_size=VOCAB)


@pytest.mark.parametrize("check", [assert_causal, assert_padding_invariant])
def test_what_is_not_a_function_of_its_tokens_is_refused(check):
    """pytorch#124464: dropout that a function hides would look like a leak."""
    model = small_model(dropout=0.5).train()
    call = lambda source, target: model(source, target)
    with pytest.raises(ValueError, match="other logits for the same tokens.*eval"):
        check(call, tokens(2, 4), tokens(2, 5), vocab_size=VOCAB)


@pytest.mark.parametrize("check", [assert_causal, assert_padding_invariant])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_assertions_refuse_half_precision(check, dtype):
    with pytest.raises(ValueError, match="float32 or float64.*hides leaks"):
        check(small_model().to(dtype))


# --- attention weights ----------------------------------------------------------------


def test_recorded_weights_are_those_that_were_used():
    model = small_model()
    source, target = padded([[3, 4, 5, 2], [6, 2]]), padded([[1, 9, 4], [1, 3]])
    plain = plain_logits(model, source, target)
    inputs = {}
    for name, module in model.named_modules():
        if isinstance(module, aiayn.MultiHeadAttention):
            module.register_forward_pre_hook(
                lambda _m, args, kwargs, name=name: inputs.update(
                    {name: (args, kwargs)}
                ),
                with_kwargs=True,
            )
    with record_attention(model) as recorded:
        assert torch.equal(plain_logits(model, source, target), plain)
        plain_logits(model, source, target)
    layers = [f"encoder_layers.{i}.self_attention" for i in range(2)]
    for i in range(2):
        for kind in ("self", "cross"):
            layers.append(f"decoder_layers.{i}.{kind}_attention")
    assert sorted(recorded) == sorted(layers)
    for name, weights in recorded.items():
        assert len(weights) == 2
        (query, key, _, mask), settings = inputs[name]
        settings.pop("cache", None)
        expected = model.get_submodule(name).weights(query, key, mask, **settings)
        assert_same(weights[0], expected.detach(), 1e-12)
        assert not weights[0].requires_grad
    cross = recorded["decoder_layers.1.cross_attention"][0]
    assert cross.shape == (2, 4, 3, 4)
    assert torch.equal(cross[1, ..., 2:], torch.zeros(4, 3, 2, dtype=torch.float64))
    own = recorded["decoder_layers.0.self_attention"][0]
    assert torch.equal(own, own.tril())


def test_recording_ends_with_the_block_whatever_happens_in_it():
    """Blocks may be nested, and may be left by an error."""
    model = small_model()
    inner = outer = None

    def two_blocks():
        nonlocal inner, outer
        with record_attention(model) as outer:
            with record_attention(model) as inner:
                plain_logits(model, tokens(1, 2), tokens(1, 2))
            plain_logits(model, tokens(1, 2), tokens(1, 2))
            raise KeyError("in the block")

    with pytest.raises(KeyError, match="in the block"):
        two_blocks()
    assert {len(w) for w in inner.values()} == {1}
    assert {len(w) for w in outer.values()} == {2}
    plain_logits(model, tokens(1, 2), tokens(1, 2))
    assert {len(w) for w in outer.values()} == {2}
    assert not any("mix" in vars(m) for m in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Kernel(nn.Module):
    """A module of somebody else's that calls torch's kernel."""

    def __init__(self, **settings):
        super().__init__()
        self.settings = settings

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.settings)


FREE = normal(3, 5, seed=4) > -0.5
KERNEL_CALLS = {
    "plain": ({}, {}),
    "boolean mask": ({"attn_mask": FREE}, {"mask": FREE}),
    "mask of numbers": (
        {"attn_mask": torch.zeros(3, 5).double().masked_fill(~FREE, -math.inf)},
        {"mask": FREE},
    ),
    "scale": ({"scale": 0.1}, {"scale": 0.1}),
    "causal": (
        {"is_causal": True},
        {"mask": torch.ones(3, 5, dtype=torch.bool).tril()},  # torch's: upper left
    ),
}


@pytest.mark.parametrize(
    ("settings", "ours"), KERNEL_CALLS.values(), ids=[*KERNEL_CALLS]
)
def test_calls_of_the_kernel_are_recorded_wherever_they_are(settings, ours):
    module = nn.ModuleDict({"body": nn.ModuleDict({"attend": Kernel(**settings)})})
    query = normal(2, 3, 4)
    key, value = normal(2, 5, 4, seed=1), normal(2, 5, 7, seed=2)
    attend = module["body"]["attend"]
    with record_attention(module) as recorded:
        F.scaled_dot_product_attention(query, key, value)  # none of the model's
        mixed = attend(query, key, value)
    assert list(recorded) == ["body.attend"]
    (weights,) = recorded["body.attend"]
    assert_same(weights, aiayn.attention_weights(query, key, **ours))
    assert_same(weights @ value, mixed)
    assert torch.equal(mixed, attend(query, key, value))


def test_shared_key_heads_of_the_kernel_are_recorded():
    module = Kernel(enable_gqa=True)
    query, key = normal(2, 4, 3, 8), normal(2, 2, 5, 8, seed=1)
    with record_attention(module) as recorded:
        module(query, key, key)
    expected = aiayn.attention_weights(query, key.repeat_interleave(2, 1))
    assert_same(recorded[""][0], expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("asked", [True, False], ids=["asked for weights", "not asked"])
@pytest.mark.parametrize("training", [True, False])
def test_torchs_multihead_attention_is_recorded(asked, training):
    """With dropout: the same random numbers, and the weights before it."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).double()
    stir(module, seed=1)
    module.train(training)
    x, key = normal(2, 3, 8), normal(2, 5, 8, seed=1)
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[1, 2:] = True
    call = lambda: module(x, key, key, key_padding_mask=hidden, need_weights=asked)
    torch.manual_seed(5)
    plain = call()[0]
    torch.manual_seed(5)
    with record_attention(module) as outer, record_attention(module) as inner:
        mixed = call()[0]
    assert_same(mixed, plain.detach(), 1e-12)
    expected = module.eval()(
        x, key, key, key_padding_mask=hidden, average_attn_weights=False
    )[1]
    for recorded in (outer, inner):
        assert list(recorded) == [""]
        (weights,) = recorded[""]
        assert_same(weights, expected.detach())
        assert not weights.requires_grad


def test_a_query_of_torchs_module_that_sees_nothing_has_no_weights():
    """pytorch#103749: its kernel gives zeros, its other road NaN."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    x, hidden = normal(1, 3, 8), torch.ones(1, 3, dtype=torch.bool)
    with record_attention(module) as recorded:
        out, _ = module(x, x, x, key_padding_mask=hidden, need_weights=False)
        module(x, x, x, key_padding_mask=hidden)
    assert out.isfinite().all()
    assert not recorded[""][0].any()
    assert recorded[""][1].isnan().all()


def test_our_attentions_are_recorded_once_beside_others():
    """Ours use the kernel too, on every road that mixes."""
    model = nn.ModuleDict({"ours": small_model(), "kernel": Kernel()})
    x = normal(2, 3, 4)
    with record_attention(model) as recorded:
        plain_logits(model["ours"], tokens(1, 3), tokens(1, 2))
        model["kernel"](x, x, x)
    assert len(recorded) == 7
    assert {len(weights) for weights in recorded.values()} == {1}
    assert [name for name in recorded if "kernel" in name] == ["kernel"]


def test_a_model_without_attention_says_so_when_it_has_run():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with record_attention(model) as recorded:
        pass
    with record_attention(model):
        model[0](normal(2, 8).float())  # a part of it
    with (
        pytest.raises(ValueError, match="Sequential calls neither MultiHeadAttention"),
        record_attention(model) as recorded,
    ):
        model(normal(2, 8).float())
    assert recorded == {}

    def fails():
        with record_attention(model):
            model(normal(2, 8).float())
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails()
    with pytest.raises(RuntimeError), record_attention(model):
        model(normal(2, 9).float())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


# --- how it is built ------------------------------------------------------------------


@pytest.mark.equation("eq-parameter-count")
@pytest.mark.parametrize(
    "changes",
    [
        *VARIANTS.values(),
        {"source_vocab_size": 7, "tie_embeddings": False},
        {"norm_first": True, "positions": "learned", "bias": False, "n_layers": 3},
    ],
)
def test_parameter_count_counts_a_model(changes):
    model = small_model(**changes)
    counted = sum(p.numel() for p in model.parameters())
    assert parameter_count(model.config) == counted


@pytest.mark.equation("eq-parameter-count")
def test_parameter_count_with_shared_key_heads():
    config = small_config(n_kv_heads=2)
    model = Transformer(config, attention=PairedAttention)
    assert parameter_count(config) == sum(p.numel() for p in model.parameters())


TABLE_3 = {  # the paper's rows: what differs from base, count in millions if printed
    "base": ({}, 65, 65_110_016),
    "A 1": ({"n_heads": 1, "d_k": 512, "d_v": 512}, None, 65_110_016),
    "A 4": ({"n_heads": 4, "d_k": 128, "d_v": 128}, None, 65_110_016),
    "A 16": ({"n_heads": 16, "d_k": 32, "d_v": 32}, None, 65_110_016),
    "A 32": ({"n_heads": 32, "d_k": 16, "d_v": 16}, None, 65_110_016),
    "B 16": ({"d_k": 16, "d_v": 64}, 58, 58_018_304),
    "B 32": ({"d_k": 32, "d_v": 64}, 60, 60_382_208),
    "C 2": ({"n_layers": 2}, 36, 35_684_352),
    "C 4": ({"n_layers": 4}, 50, 50_397_184),
    "C 8": ({"n_layers": 8}, 80, 79_822_848),
    "C 256": ({"d_model": 256, "d_k": 32, "d_v": 32}, 28, 27_848_704),
    "C 1024": ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168, 167_944_192),
    "C ff 1024": ({"d_ff": 1024}, 53, 52_514_816),
    "C ff 4096": ({"d_ff": 4096}, 90, 90_300_416),
    "D 0.0": ({"dropout": 0.0}, None, 65_110_016),
    "D 0.2": ({"dropout": 0.2}, None, 65_110_016),
    "E": ({"positions": "learned"}, None, 65_110_016 + 2 * 5000 * 512),
    "big": ({"d_model": 1024, "n_heads": 16, "d_ff": 4096}, None, 218_300_416),
}


@pytest.mark.equation("eq-parameter-count")
@pytest.mark.parametrize(("changes", "paper", "count"), TABLE_3.values(), ids=TABLE_3)
def test_table_3_of_the_paper(changes, paper, count):
    """Formula, constructed model, paper; with the vocabulary of the authors' code."""
    config = TransformerConfig.base(40_960, **changes)
    with torch.device("meta"):
        model = Transformer(config)
    assert parameter_count(config) == count
    assert sum(p.numel() for p in model.parameters()) == count
    assert paper is None or round(count / 1e6) == paper


@pytest.mark.equation("eq-parameter-count")
def test_table_3_leaves_big_open():
    """Ten printed counts hold from 40,932 to 41,160 tokens; big's 213 elsewhere.

    It is not explained here: no vocabulary gives both, and 37,000 gives neither.
    """

    def holds(vocab_size):
        for changes, paper, _ in TABLE_3.values():
            config = TransformerConfig.base(vocab_size, **changes)
            if paper is not None and round(parameter_count(config) / 1e6) != paper:
                return False
        return True

    def big(vocab_size):
        return round(parameter_count(TransformerConfig.big(vocab_size)) / 1e6)

    assert [holds(v) for v in (40_931, 40_932, 41_160, 41_161)] == [0, 1, 1, 0]
    assert [big(v) for v in (35_295, 35_296, 36_272, 36_273)] == [212, 213, 213, 214]
    assert big(40_960) == 218
    assert parameter_count(TransformerConfig.base(37_000)) == 63_082_496
    assert big(37_000) == 214


def test_configurations_of_the_paper():
    base = TransformerConfig.base(100)
    assert (base.d_model, base.n_layers, base.n_heads, base.d_ff) == (512, 6, 8, 2048)
    assert (base.dropout, base.norm_first, base.tie_embeddings) == (0.1, False, True)
    big = TransformerConfig.big(100, n_layers=3)
    assert (big.d_model, big.n_layers, big.n_heads, big.d_ff) == (1024, 3, 16, 4096)
    assert big.dropout == 0.3
    toy = TransformerConfig.toy(13, dropout=0.2)
    assert (toy.d_model, toy.n_layers, toy.n_heads, toy.dropout) == (64, 2, 4, 0.2)
    assert not toy.tie_embeddings
    assert toy.embedding_std == 0.05


@variant
def test_configuration_survives_json(changes):
    config = small_config(**changes)
    assert TransformerConfig.from_json(config.to_json()) == config
    assert isinstance(TransformerConfig.from_json(config.to_json()).dropout, float)


def test_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        small_config().d_model = 8
    wider = dataclasses.replace(small_config(), d_model=32)
    assert (wider.d_model, wider.n_heads) == (32, 4)


def test_layers_are_their_own():
    """espnet#1278, pytorch#72253, #86274: one layer N times, or N equal layers."""
    counts = [parameter_count(small_config(n_layers=n)) for n in (1, 2, 3)]
    assert counts[2] - counts[1] == counts[1] - counts[0]
    for n, count in zip((1, 2, 3), counts, strict=True):
        model = Transformer(small_config(n_layers=n))
        assert sum(p.numel() for p in model.parameters()) == count
    for stack in (model.encoder_layers, model.decoder_layers):
        first, second = (dict(layer.named_parameters()) for layer in stack[:2])
        for name, weight in first.items():
            assert weight is not second[name]
            assert weight.data_ptr() != second[name].data_ptr()
            if weight.dim() == 2:
                assert not torch.equal(weight, second[name])
    layer = model.decoder_layers[0]
    assert layer.self_attention is not layer.cross_attention
    assert not torch.equal(
        layer.self_attention.query_projection.weight,
        layer.cross_attention.query_projection.weight,
    )


@variant
def test_a_seed_is_a_model_and_the_global_generator_is_left_alone(changes):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Transformer(small_config(**changes), generator=seeded(3)).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = Transformer(small_config(**changes), generator=seeded(3)).state_dict()
    other = Transformer(small_config(**changes), generator=seeded(4)).state_dict()
    assert list(first) == list(again)
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        assert weight.dim() < 2 or not torch.equal(weight, other[name])


def test_without_a_generator_the_global_seed_decides():
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(Transformer(small_config()).state_dict())
    name = "encoder_layers.0.self_attention.query_projection.weight"
    assert torch.equal(models[0][name], models[1][name])
    assert not torch.equal(models[0][name], models[2][name])


def test_initial_weights_are_as_the_conventions_say():
    """Xavier-uniform matrices, zero biases, unit norms, small embeddings."""
    config = small_config(
        d_model=64, d_ff=128, n_layers=1, tie_embeddings=False, target_vocab_size=2000
    )
    model = Transformer(config, generator=seeded(0))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            limit = math.sqrt(6 / sum(module.weight.shape))
            assert module.weight.abs().max() <= limit
            assert module.weight.abs().max() > 0.98 * limit
            spread = module.weight.std().item()
            assert spread == pytest.approx(limit / math.sqrt(3), rel=0.05)
            assert module.bias is None or not module.bias.any()
        elif isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert not module.bias.any()
    assert model.target_embedding.weight.std().item() == pytest.approx(1 / 8, rel=0.02)
    model = Transformer(dataclasses.replace(config, embedding_std=0.05))
    assert model.target_embedding.weight.std().item() == pytest.approx(0.05, rel=0.02)


def test_reset_parameters_draws_everything_anew():
    """From NaN everywhere to the model of a seed: nothing is forgotten."""
    for changes in VARIANTS.values():
        model = Transformer(small_config(**changes))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(math.nan)
        model.reset_parameters(seeded(3))
        fresh = Transformer(small_config(**changes), generator=seeded(3)).state_dict()
        for name, weight in model.state_dict().items():
            assert torch.equal(weight, fresh[name]), name


# --- tying ----------------------------------------------------------------------------


def test_tied_is_one_matrix():
    """annotated-transformer#93, sockeye#137: a flag that tied nothing."""
    tied, untied = (small_model(tie_embeddings=flag) for flag in (True, False))
    assert tied.source_embedding.weight is tied.target_embedding.weight
    untied_count = parameter_count(untied.config)
    assert untied_count - parameter_count(tied.config) == 2 * VOCAB * 16
    assert untied.source_embedding.weight is not untied.target_embedding.weight
    optimizer = torch.optim.SGD(tied.parameters(), lr=0.1)
    before = tied.source_embedding.weight.detach().clone()
    tied(tokens(1, 3), tokens(1, 2)).square().sum().backward()
    optimizer.step()
    assert tied.source_embedding.weight is tied.target_embedding.weight
    assert (tied.source_embedding.weight != before).any()


def test_tied_gradient_is_the_sum_of_three():
    """Source, target and output each add their part to the one matrix."""
    tied = small_model()
    untied = small_model(tie_embeddings=False)
    state = tied.state_dict()
    state["output_projection.weight"] = state["source_embedding.weight"]
    untied.load_state_dict(state, strict=True)
    source, target = tokens(2, 4), tokens(2, 3, seed=1)
    direction = normal(2, 3, VOCAB)
    for model in (tied, untied):
        (model(source, target) * direction).sum().backward()
    parts = ("source_embedding", "target_embedding", "output_projection")
    total = sum(untied.get_submodule(name).weight.grad for name in parts)
    assert_same(tied.source_embedding.weight.grad, total)


@variant
def test_a_copy_and_a_reloaded_model_are_the_same_model(changes, tmp_path):
    """Tying survives deepcopy, state_dict and a move to another dtype."""
    model = small_model(**changes)
    source, target = tokens(2, 4), tokens(2, 3, seed=1)
    expected = plain_logits(model, source, target)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = small_model(seed=9, **changes)
    assert not torch.equal(plain_logits(other, source, target), expected)
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    for twin in (other, copy.deepcopy(model), copy.deepcopy(model).half().double()):
        tied = twin.source_embedding.weight is twin.target_embedding.weight
        assert tied == model.config.tie_embeddings
        assert twin.config == model.config
    assert torch.equal(plain_logits(other, source, target), expected)
    assert torch.equal(plain_logits(copy.deepcopy(model), source, target), expected)


def test_sinusoids_are_not_weights():
    """transformers#29807, espnet#1060: drawn anew, trained, saved, or of one length.

    A step of the optimiser leaves them as they are, and a model of another max_len
    loads the same weights, strictly.
    """
    model = small_model(max_len=8)
    assert not any("positions" in name for name in model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(tokens(1, 3), tokens(1, 2)).square().sum().backward()
    optimizer.step()
    x = torch.zeros(1, 5, 16, dtype=torch.float64)
    table = aiayn.sinusoidal_encoding(5, 16, dtype=torch.float64)
    assert torch.equal(model.source_positions(x)[0], table)
    longer = small_model(seed=5, max_len=64)
    longer.load_state_dict(model.state_dict(), strict=True)
    source, target = tokens(2, 4), tokens(2, 3)
    assert torch.equal(
        plain_logits(longer, source, target), plain_logits(model, source, target)
    )
    plain_logits(longer, tokens(1, 64), tokens(1, 64))


def test_every_parameter_is_given_once():
    """nanoGPT#21: tied weights twice in an optimiser's groups."""
    model = small_model()
    once = [id(p) for p in model.parameters()]
    assert len(once) == len(set(once))
    optimizer = torch.optim.Adam(model.parameters())
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == once
    reachable = {id(v) for m in model.modules() for v in m._parameters.values()}
    assert reachable - {id(None)} == set(once)


def test_every_parameter_is_trained():
    """One backward pass reaches every weight of every variant."""
    for changes in VARIANTS.values():
        model = small_model(**changes)
        source, target = tokens(2, 4), tokens(2, 4, seed=1)
        (model(source, target) * normal(2, 4, VOCAB)).sum().backward()
        for name, parameter in model.named_parameters():
            if name.endswith("key_projection.bias"):  # softmax does not notice it
                continue
            assert parameter.grad.abs().max() > 1e-9, name


# --- devices and dtypes ---------------------------------------------------------------


@variant
def test_the_whole_model_on_the_meta_device(changes):
    """No operation makes a tensor elsewhere, forward or backward."""
    with torch.device("meta"):
        model = Transformer(small_config(**changes))
    for tensor in [*model.parameters(), *model.buffers()]:
        assert tensor.device.type == "meta"
    source = torch.zeros(2, 4, dtype=torch.long, device="meta")
    with OneDevice("meta"):
        logits = model(source, source[:, :3])
        logits.sum().backward()
    assert logits.shape == (2, 3, VOCAB)
    assert logits.device.type == "meta"
    assert {p.grad.device.type for p in model.parameters()} == {"meta"}


@variant
def test_a_model_built_on_meta_and_filled_is_the_model_of_its_seed(changes):
    with torch.device("meta"):
        model = Transformer(small_config(**changes), generator=seeded(3))
    model = model.to_empty(device="cpu")
    model.reset_parameters(seeded(3))
    plain = Transformer(small_config(**changes), generator=seeded(3))
    for name, weight in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    tied = model.source_embedding.weight is model.target_embedding.weight
    assert tied == model.config.tie_embeddings
    source, target = tokens(2, 4), tokens(2, 3)
    pad = model.config.pad_id
    source[source == pad] = 4
    ours = plain_logits(model.eval(), source, target)
    assert torch.equal(ours, plain_logits(plain.eval(), source, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("norm_first", [False, True])
def test_low_precision_rounds_and_nothing_else(dtype, norm_first):
    """With padding and an all-padding row: no NaN, close to float64, dtype kept."""
    model = small_model(norm_first=norm_first)
    source = padded([[3, 4, 5, 2], [6, 2], []])
    target = padded([[1, 9, 4], [1, 3], []])
    expected = plain_logits(model.to(dtype).double(), source, target)
    logits = plain_logits(model.to(dtype), source, target)
    assert logits.dtype == dtype
    scale = expected.abs().max().item()
    assert_same(logits.double() / scale, expected / scale, 16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_in_low_precision_are_finite(dtype):
    model = small_model().to(dtype)
    logits = model(padded([[3, 4, 2], [6, 2]]), padded([[1, 9], [1]]))
    logits.float().logsumexp(-1).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == dtype
        assert parameter.grad.isfinite().all()


def test_one_token_in_one_row():
    """ludwig#1726, OpenNMT-py#1094: a bare squeeze eats an axis of length 1."""
    for attend in (aiayn.attention, aiayn.fused_attention):
        model = small_model(attend=attend)
        assert plain_logits(model, tokens(1, 1), tokens(1, 1)).shape == (1, 1, VOCAB)
        assert plain_logits(model, tokens(0, 3), tokens(0, 2)).shape == (0, 2, VOCAB)


def test_every_attend_gives_the_same_model():
    source, target = padded([[3, 4, 5, 2], [6, 2]]), padded([[1, 9], [1, 3]])
    plain = plain_logits(small_model(attend=aiayn.attention), source, target)
    fused = plain_logits(small_model(attend=aiayn.fused_attention), source, target)
    assert_same(fused, plain)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch, of vmap
def test_under_vmap():
    """pytorch#151558: one model, a batch of batches."""
    model = small_model()
    source, target = tokens(6, 4).view(3, 2, 4), tokens(6, 3).view(3, 2, 3)
    source[:, 1, 3] = 0
    mapped = torch.vmap(model, randomness="different")(source, target)
    looped = torch.stack([model(*x) for x in zip(source, target, strict=True)])
    assert_same(mapped.detach(), looped.detach())


def test_length_up_to_max_len():
    """pytorch-seq2seq#89: exactly max_len works, one more says so."""
    model = small_model(max_len=4)
    plain_logits(model, tokens(1, 4), tokens(1, 4))
    with pytest.raises(ValueError, match="length 5 exceeds max_len=4"):
        model(tokens(1, 5), tokens(1, 4))
    with pytest.raises(ValueError, match="length 5 exceeds max_len=4"):
        model(tokens(1, 4), tokens(1, 5))


# --- more on recording and assertions -------------------------------------------------


class Inner(nn.Module):
    """Calls torch's kernel, and can be made to fail behind it."""

    def __init__(self, **settings):
        super().__init__()
        self.settings, self.fails = settings, False

    def forward(self, x):
        mixed = F.scaled_dot_product_attention(x, x, x, **self.settings)
        if self.fails:
            raise KeyError("behind the kernel")
        return mixed


def test_the_innermost_module_that_runs_gives_the_name():
    model = nn.Sequential(nn.Sequential(Inner()), Inner())
    with record_attention(model) as recorded:
        model(normal(2, 3, 4))
    assert list(recorded) == ["0.0", "1"]


def test_kernel_weights_are_those_before_dropout():
    model, x = Inner(dropout_p=0.5), normal(2, 3, 4)
    torch.manual_seed(0)
    plain = model(x)
    torch.manual_seed(0)
    with record_attention(model) as recorded:
        mixed = model(x)
    assert torch.equal(mixed, plain)
    assert_same(recorded[""][0].sum(-1), torch.ones(2, 3))


def test_a_forward_that_failed_leaves_no_name_behind():
    model = nn.Sequential(Inner(), nn.Sequential(Inner()))
    x, inner = normal(2, 3, 4), model[1][0]
    with record_attention(model) as recorded:
        inner.fails = True
        with pytest.raises(KeyError):
            model(x)
        inner.fails = False
        F.scaled_dot_product_attention(x, x, x)  # nothing of the model runs now
    assert {name: len(calls) for name, calls in recorded.items()} == {"0": 1, "1.0": 1}


@pytest.mark.parametrize("check", [assert_causal, assert_padding_invariant])
def test_assertions_refuse_a_model_in_training_mode(check):
    """Without dropout nothing else would tell."""
    with pytest.raises(ValueError, match=r"eval\(\) first"):
        check(small_model(dropout=0.0).train())


def test_logits_of_padded_places_may_be_anything():
    model = small_model()
    source, target = padded([[3, 4, 2], [6, 2]]), padded([[1, 9, 4], [1, 3]], left=True)

    def noisy(source, target):
        logits = model(source, target)
        logits[target == 0] = target.sum().double()
        return logits

    assert_causal(noisy, source, target, vocab_size=VOCAB)


class ByKeyword(nn.Module):
    """Hands what leaked on by keyword: the leak is not in the part that gets it."""

    class Leak(nn.Module):
        def forward(self, x):
            return x + x.mean(1, keepdim=True)

    class Out(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(normal(8, VOCAB))

        def forward(self, *, x):
            return x @ self.weight

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 8).double()
        self.leak, self.out = self.Leak(), self.Out()

    def forward(self, source, target):
        x = self.embedding(target)
        return self.out(x=x + torch.ones_like(x) * x.mean(1, keepdim=True))


def test_what_a_module_gets_by_keyword_counts_as_its_input():
    with pytest.raises(AssertionError, match="enters in ByKeyword$"):
        assert_causal(ByKeyword().eval(), tokens(2, 3), tokens(2, 4), vocab_size=VOCAB)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_huge_logit_hides_no_leak_and_accuses_nobody(dtype):
    """A class ruled out by −1e9 must not set the scale of the others."""
    model = small_model(dtype=dtype)
    source, target = tokens(2, 4), tokens(2, 5, seed=1)

    def ruled_out(source, target):
        logits = model(source, target).clone()
        logits[..., 0] = -1e9
        return logits

    def leaking(source, target):
        logits = ruled_out(source, target)
        logits[:, 1, 4] += 1e-3 * target[:, 3]
        return logits

    assert_causal(ruled_out, source, target, vocab_size=VOCAB)
    assert_padding_invariant(ruled_out, source, target, vocab_size=VOCAB)
    with pytest.raises(AssertionError, match="target position 3 .* position 1 "):
        assert_causal(leaking, source, target, vocab_size=VOCAB)


@pytest.mark.parametrize("max_len", [2, 5, 8])
def test_assertions_draw_examples_that_a_short_model_can_read(max_len):
    model = small_model(max_len=max_len)
    assert_causal(model)
    if max_len < 5:  # padding takes three more places
        with pytest.raises(ValueError, match=r"max_len=2 is too short .* give source"):
            assert_padding_invariant(model)
    else:
        assert_padding_invariant(model)
