"""Grouped-query attention: groups, copies, what is saved, pooling and alignment.

That the class keeps the contract of the seam is in test_seams.py, where it is one line.
"""

import copy
import dataclasses
import itertools

import pytest
import torch
from helpers import (
    assert_same,
    normal,
    padded,
    plain_logits,
    small_model,
    stir,
)
from seams import loop_attention
from test_attend import by_hand
from torch.utils.flop_counter import FlopCounterMode

from aiayn import (
    GroupedQueryAttention,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    align_heads,
    assert_causal,
    assert_padding_invariant,
    attention,
    beam_search,
    fused_attention,
    greedy_decode,
    parameter_count,
    pool_heads,
    pool_model,
    record_attention,
)
from aiayn.kv_cache import DecoderCache, kv_cache_bytes

CHAPTER = "10_grouped_query"
SOURCES = [[3, 4, 5, 6, 2], [7, 2], [8, 9, 2]]
TARGETS = [[1, 9, 4], [1, 3, 5, 6, 7, 8], [1]]


def built(cls=None, d_model=12, n_heads=6, *, seed=0, **settings):
    torch.manual_seed(seed)
    module = (cls or GroupedQueryAttention)(d_model, n_heads, **settings).double()
    stir(module, seed=seed)
    return module


def repeated(module: GroupedQueryAttention) -> MultiHeadAttention:
    """Multi-head attention with a copy of its key head for every head."""
    d_model = module.query_projection.in_features
    plain = MultiHeadAttention(
        d_model, module.n_heads, d_k=module.d_k, d_v=module.d_v
    ).double()
    state = module.state_dict()
    for name, x in state.items():
        if name.startswith(("key", "value")):
            parts = x.unflatten(0, (module.n_kv_heads, -1))
            rows = [
                i * module.n_kv_heads // module.n_heads for i in range(module.n_heads)
            ]
            state[name] = parts[rows].flatten(0, 1)
    plain.load_state_dict(state)
    return plain


# --- which head reads which key head --------------------------------------------------


@pytest.mark.equation("eq-grouped-query")
@pytest.mark.parametrize("attend", [attention, fused_attention, loop_attention])
@pytest.mark.parametrize("n_queries", [1, 2, 7])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
def test_equals_the_equation_head_by_head(
    notebook_function, attend, n_queries, n_kv_heads
):
    """Against single attentions by hand, and the chapter's loop."""
    module = built(n_kv_heads=n_kv_heads, d_k=4, d_v=5, bias=False, attend=attend)
    query, key, value = (normal(2, n, 12, seed=n) for n in (n_queries, 9, 9))
    w_query, w_key, w_value, w_output = (x.weight.T for x in module.children())
    cut = [w_query.split(4, -1), w_key.split(4, -1), w_value.split(5, -1)]
    answers = []
    for number, w in enumerate(cut[0], start=1):  # heads counted from 1
        j = -(-number * n_kv_heads // 6) - 1
        answers.append(by_hand(query @ w, key @ cut[1][j], value @ cut[2][j]))
    expected = torch.cat(answers, dim=-1) @ w_output
    assert_same(module(query, key, value).detach(), expected.detach())
    loop = notebook_function(CHAPTER, "grouped_by_loop")
    assert_same(loop(query, key, value, *cut, w_output).detach(), expected.detach())


@pytest.mark.parametrize("n_queries", [1, 3])
def test_neighbours_share(n_queries):
    """onnx#7274, NATTEN#92, llama#384: tiled, the answers would be 10 20 10 20."""
    module = GroupedQueryAttention(4, 4, n_kv_heads=2)
    value = torch.tensor([10.0, 20.0])[None, :, None, None].expand(1, 2, 3, 1)
    mixed = module.mix(torch.zeros(1, 4, n_queries, 1), torch.zeros(1, 2, 3, 1), value)
    assert mixed.shape == (1, 4, n_queries, 1)
    assert mixed[0, :, 0, 0].tolist() == [10.0, 10.0, 20.0, 20.0]


@pytest.mark.parametrize("n_queries", [1, 4])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_any_mask_means_the_same_as_for_heads(n_queries, causal):
    """Every rank and every axis of length 1; rows, heads and groups equally many."""
    module = built(d_model=8, n_heads=4, n_kv_heads=2)
    plain = repeated(module)
    x, key = normal(4, n_queries, 8), normal(4, 4, 8, seed=1)
    full = (4, 4, n_queries, 4)
    shapes = {
        tuple(size if keep else 1 for size, keep in zip(full, kept, strict=True))[
            -rank:
        ]
        for kept in itertools.product((False, True), repeat=4)
        for rank in (2, 3, 4)
    }
    for seed, shape in enumerate(sorted(shapes)):
        mask = normal(*shape, seed=seed) > -0.3
        ours = module(x, key, key, mask, causal=causal).detach()
        theirs = plain(x, key, key, mask, causal=causal).detach()
        assert_same(ours, theirs)
        assert_same(
            module.weights(x, key, mask, causal=causal).detach(),
            plain.weights(x, key, mask, causal=causal).detach(),
        )


def test_one_query_stands_at_the_last_key():
    """The group's rows are heads, not places: the flag hides nothing from them."""
    module = built(n_kv_heads=2)
    x, key = normal(2, 1, 12), normal(2, 5, 12, seed=1)
    flagged = module(x, key, key, causal=True).detach()
    assert torch.equal(flagged, module(x, key, key).detach())
    assert_same(flagged, repeated(module)(x, key, key, causal=True).detach())


def test_as_many_key_heads_as_heads_is_multi_head_attention():
    """keras#23081: kv = h is multi-head attention with the same state dict."""
    module, plain = built(n_kv_heads=6), built(MultiHeadAttention, seed=1)
    plain.load_state_dict(module.state_dict(), strict=True)
    for n in (1, 5):
        x = normal(3, n, 12)
        assert_same(
            module(x, x, x, causal=True).detach(), plain(x, x, x, causal=True).detach()
        )


@pytest.mark.equation("res-shared-gradient")
@pytest.mark.parametrize("n_queries", [1, 5])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3])
def test_a_key_head_learns_the_sum_of_its_group(n_kv_heads, n_queries):
    """torchtune#38: in both cases of mix; and gradients to the inputs agree."""
    module = built(n_kv_heads=n_kv_heads)
    plain = repeated(module)
    inputs = {}
    for attend in (module, plain):
        query = normal(2, n_queries, 12).requires_grad_()
        key = normal(2, 5, 12, seed=1).requires_grad_()
        attend(query, key, key, causal=True).backward(normal(2, n_queries, 12, seed=2))
        inputs[attend] = query.grad, key.grad
    for ours, theirs in zip(inputs[module], inputs[plain], strict=True):
        assert_same(ours, theirs)
    for name, parameter in module.named_parameters():
        theirs = plain.get_parameter(name).grad
        if name.startswith(("key", "value")):
            parts = theirs.unflatten(0, (n_kv_heads, 6 // n_kv_heads, -1))
            theirs = sum(parts.unbind(1)).flatten(0, 1)
        assert_same(parameter.grad, theirs)


# --- nothing is copied ----------------------------------------------------------------


@pytest.mark.parametrize("n_queries", [1, 2, 5])
@pytest.mark.parametrize("room", [7, 9], ids=["full", "with room to spare"])
def test_the_cache_is_read_in_place(n_queries, room):
    """llm-foundry#628: no copy, and never more keys than the key heads have."""
    seen = []

    def watch(query, key, value, mask=None, *, causal=False):
        seen.append((key, value))
        return fused_attention(query, key, value, mask, causal=causal)

    module = GroupedQueryAttention(16, 8, n_kv_heads=2, attend=watch)
    held = [
        normal(3, 2, room, 2, seed=i, dtype=torch.float32)[:, :, :7] for i in (1, 2)
    ]
    query = normal(3, 8, n_queries, 2, dtype=torch.float32)
    mask = torch.ones(3, 1, 1, 7, dtype=torch.bool)
    module.mix(query, *held, mask, causal=True)
    [given] = seen
    for ours, cached in zip(given, held, strict=True):
        assert ours.data_ptr() == cached.data_ptr()
        assert ours.untyped_storage().data_ptr() == cached.untyped_storage().data_ptr()
        assert ours.numel() == cached.numel()


def test_the_causal_flag_stays_a_flag():
    """No mask is made for it, and it is not handed over where rows are heads."""
    seen = []

    def watch(query, key, value, mask=None, *, causal=False):
        seen.append((query.shape[-2], mask, causal))
        return fused_attention(query, key, value, mask, causal=causal)

    module = GroupedQueryAttention(16, 8, n_kv_heads=2, attend=watch)
    x = normal(2, 5, 16, dtype=torch.float32)
    module(x, x, x, causal=True)
    module(x[:, :1], x, x, causal=True)
    assert seen == [(5, None, True), (4, None, False)]


def test_a_mask_of_one_for_all_is_not_copied():
    seen = []

    def watch(query, key, value, mask=None, *, causal=False):
        seen.append(mask)
        return fused_attention(query, key, value, mask, causal=causal)

    module = GroupedQueryAttention(16, 8, n_kv_heads=2, attend=watch)
    x, mask = normal(3, 6, 16, dtype=torch.float32), torch.ones(6, 6, dtype=torch.bool)
    module(x, x, x, mask)
    assert seen[0].data_ptr() == mask.data_ptr()


# --- what is saved and what is given up -----------------------------------------------


@pytest.mark.equation("eq-grouped-cost")
@pytest.mark.parametrize(
    "sizes", [(12, 6, 6, 2, 2), (12, 6, 3, 4, 5), (12, 6, 2, 4, 1), (8, 4, 1, 3, 7)]
)
def test_cost_as_torch_counts_it(notebook_function, sizes):
    d_model, n_heads, n_kv_heads, d_k, d_v = sizes
    module = GroupedQueryAttention(
        d_model, n_heads, n_kv_heads=n_kv_heads, d_k=d_k, d_v=d_v, bias=False,
        attend=attention,
    )  # fmt: skip
    keys, values = module.project(*torch.zeros(2, 1, 10, d_model))
    with FlopCounterMode(display=False) as counter:
        module.mix(torch.zeros(1, n_heads, 1, d_k), keys, values)
    read = keys.numel() + values.numel()
    found = notebook_function(CHAPTER, "grouped_cost")(*sizes)
    assert found == (
        sum(p.numel() for p in module.parameters()),
        read // 10,
        counter.get_total_flops() / 2 / read,
    )


@pytest.mark.equation("res-invisible")
@pytest.mark.parametrize(("n_kv_heads", "at_least"), [(4, 0), (2, 0), (1, 8)])
def test_directions_that_a_layer_cannot_see(notebook_function, n_kv_heads, at_least):
    """d_model − h_kv (d_k + d_v) at least; and what is orthogonal to them is seen."""
    module = built(d_model=16, n_heads=4, n_kv_heads=n_kv_heads)
    hidden = notebook_function(CHAPTER, "invisible_directions")(module)
    assert len(hidden) == at_least == max(0, 16 - n_kv_heads * 8)
    x = normal(2, 5, 16)
    before = module(x, x, x).detach()
    for direction in hidden:
        other = x + 100 * direction.detach()
        assert_same(module(x, other, other).detach(), before, 1e-9)
    for weight in (module.key_projection.weight, module.value_projection.weight):
        change = torch.zeros_like(x)
        change[:, 1] = weight[0]
        assert (module(x, x + change, x + change) - before).abs().max() > 1e-6


# --- models and caches ----------------------------------------------------------------

GROUPED = {"attention": GroupedQueryAttention, "n_kv_heads": 2}


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize(
    "changes", [{}, {"norm_first": True}, {"bias": False}], ids=str
)
def test_a_configuration_rebuilds_the_model(n_kv_heads, changes):
    model = small_model(
        attention=GroupedQueryAttention, n_kv_heads=n_kv_heads, **changes
    )
    config = TransformerConfig.from_json(model.config.to_json())
    assert config.n_kv_heads == n_kv_heads
    other = Transformer(config, attention=GroupedQueryAttention).double().eval()
    other.load_state_dict(model.state_dict(), strict=True)
    source, target = padded(SOURCES), padded(TARGETS)
    assert torch.equal(
        plain_logits(other, source, target), plain_logits(model, source, target)
    )
    assert parameter_count(config) == sum(p.numel() for p in model.parameters())


def test_a_model_sees_neither_the_future_nor_padding():
    model = small_model(**GROUPED)
    source, target = padded(SOURCES), padded(TARGETS)
    assert_causal(model, source, target)
    assert_padding_invariant(model, source, target)


def test_weights_are_recorded_for_every_head():
    model = small_model(**GROUPED)
    source, target = padded(SOURCES), padded(TARGETS)
    with record_attention(model) as maps:
        plain_logits(model, source, target)
    assert len(maps) == 6
    for name, [weights] in maps.items():
        assert weights.shape[1] == 4, name
        assert_same(weights.sum(-1), torch.ones_like(weights[..., 0]), 1e-12)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_a_cache_holds_the_key_heads_only(n_kv_heads):
    """torchtune#38, torchtune#1961, tinygrad#2267: sized by the query heads."""
    model = small_model(attention=GroupedQueryAttention, n_kv_heads=n_kv_heads)
    plain = small_model()
    source, target = padded(SOURCES), padded([[1, 3, 4, 5, 6]] * 3)
    caches = {}
    for each in (model, plain):
        caches[each] = DecoderCache(2)
        with torch.no_grad():
            memory = each.encode(source)
            for token in target.split(1, dim=1):
                each.decode(token, memory, source, cache=caches[each])
    for layer in caches[model].layers:
        assert layer.self_attention.keys.shape == (3, n_kv_heads, 5, 4)
        assert layer.cross_attention.values.shape == (3, n_kv_heads, 5, 4)
    assert caches[model].nbytes * 4 == caches[plain].nbytes * n_kv_heads
    own = sum(layer.self_attention.nbytes for layer in caches[model].layers)
    assert own == kv_cache_bytes(2, n_kv_heads, 4, 5, 3, 8)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_cached_equals_plain_however_split(n_kv_heads, left):
    """One token is another case of mix than several: all mixtures of the two."""
    model = small_model(attention=GroupedQueryAttention, n_kv_heads=n_kv_heads)
    source, target = padded(SOURCES, left=left), padded(TARGETS, left=left)
    plain = plain_logits(model, source, target)
    real = target != 0
    for pieces in ([1] * 6, [6], [1, 5], [5, 1], [2, 1, 3], [1, 2, 1, 2], [3, 3]):
        cache, logits = DecoderCache(2), []
        with torch.no_grad():
            memory = model.encode(source)
            for piece in target.split(pieces, dim=1):
                logits.append(model.decode(piece, memory, source, cache=cache))
        assert_same(torch.cat(logits, dim=1)[real], plain[real])


def test_search_writes_the_same_with_a_cache():
    model = small_model(seed=2, tie_embeddings=False, **GROUPED)
    source = padded([[3, 4, 5, 2], [6, 2], [7, 8, 9, 10, 2]])
    greedy = greedy_decode(model, source, max_len=8)
    assert torch.equal(
        greedy_decode(model, source, max_len=8, cache=DecoderCache(2)), greedy
    )
    beams = beam_search(model, source, beam_size=3, max_len=8)
    cached = beam_search(model, source, beam_size=3, max_len=8, cache=DecoderCache(2))
    for ours, theirs in zip(cached, beams, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]


# --- other roads ----------------------------------------------------------------------


def test_on_the_meta_device():
    with torch.device("meta"):
        module = GroupedQueryAttention(16, 8, n_kv_heads=2)
        for n in (1, 5):
            x = torch.zeros(2, n, 16)
            mask = torch.ones(2, 1, 1, n, dtype=torch.bool)
            assert module(x, x, x, mask, causal=True).shape == (2, n, 16)
    pooled = pool_heads(module, 1)
    assert pooled.key_projection.weight.is_meta
    assert pooled.key_projection.weight.shape == (2, 16)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("n_queries", [1, 3])
def test_a_mask_that_does_not_fit_is_refused_in_words_of_heads(n_queries):
    module = GroupedQueryAttention(8, 4, n_kv_heads=2)
    x, key = torch.zeros(2, n_queries, 8), torch.zeros(2, 5, 8)
    with pytest.raises(ValueError, match=rf"\(2, 4, {n_queries}, 5\)"):
        module(x, key, key, torch.ones(2, 2, n_queries, 5, dtype=torch.bool))
    with pytest.raises(TypeError, match="mask must be a boolean"):
        module(x, key, key, torch.ones(n_queries, 5))
    with pytest.raises(ValueError, match="does not broadcast"):
        module(x, key, key, torch.ones(1, 2, 4, n_queries, 5, dtype=torch.bool))


# --- pooling --------------------------------------------------------------------------


@pytest.mark.equation("eq-pooled-heads")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
def test_pooled_heads_are_means_of_neighbours(n_kv_heads, bias):
    module = built(MultiHeadAttention, d_k=4, d_v=5, bias=bias, attend=loop_attention)
    before = copy.deepcopy(module.state_dict())
    pooled = pool_heads(module, n_kv_heads)
    assert type(pooled) is GroupedQueryAttention
    assert (pooled.n_heads, pooled.n_kv_heads) == (6, n_kv_heads)
    assert (pooled.d_k, pooled.d_v) == (4, 5)
    assert pooled.attend is loop_attention
    group = 6 // n_kv_heads
    for name, x in pooled.state_dict().items():
        if name.startswith(("query", "output")):
            assert torch.equal(x, before[name])
            continue
        width = 4 if name.startswith("key") else 5
        for j in range(n_kv_heads):
            heads = [
                before[name][i * width : (i + 1) * width]
                for i in range(j * group, (j + 1) * group)
            ]
            assert_same(x[j * width : (j + 1) * width], sum(heads) / group)
    for name, x in module.state_dict().items():
        assert torch.equal(x, before[name]), "pooling changed what it was given"


def test_the_mean_lies_closest_to_the_group():
    """And the sum of squares to it is what it is anywhere else, plus the way there."""
    heads = normal(3, 4, 12)
    mean = heads.mean(0)
    least = (heads - mean).square().sum()
    for seed in range(5):
        other = mean + normal(4, 12, seed=seed + 1)
        there = (heads - other).square().sum()
        assert_same(there, least + 3 * (other - mean).square().sum())


def test_a_group_of_equal_heads_loses_nothing():
    module = built(n_kv_heads=2)
    x = normal(2, 5, 12)
    for n in (1, 5):
        ours = pool_heads(repeated(module), 2)(x[:, :n], x, x).detach()
        assert_same(ours, module(x[:, :n], x, x).detach())
    assert_same(
        pool_heads(pool_heads(built(MultiHeadAttention), 6), 2).state_dict()[
            "key_projection.weight"
        ],
        pool_heads(built(MultiHeadAttention), 2).state_dict()["key_projection.weight"],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_pooling_keeps_type_and_mode(dtype):
    module = MultiHeadAttention(8, 4).to(dtype).eval()
    pooled = pool_heads(module, 2)
    assert {p.dtype for p in pooled.parameters()} == {dtype}
    assert not pooled.training
    assert pool_heads(module.train(), 2).training
    assert all(p.requires_grad for p in pooled.parameters())
    own = {p.data_ptr() for p in module.parameters()}
    assert not own & {p.data_ptr() for p in pooled.parameters()}


def test_pooling_draws_no_random_numbers():
    module, model = MultiHeadAttention(8, 4), small_model()
    before = torch.get_rng_state()
    pool_heads(module, 2)
    pool_model(model, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_pooled_model_is_what_its_configuration_builds():
    model = small_model(norm_first=True)
    before = copy.deepcopy(model.state_dict())
    pooled = pool_model(model, 2)
    assert pooled.config == dataclasses.replace(model.config, n_kv_heads=2)
    assert model.config.n_kv_heads is None
    assert not pooled.training
    built_anew = Transformer(pooled.config, attention=GroupedQueryAttention).double()
    built_anew.load_state_dict(pooled.state_dict(), strict=True)
    source, target = padded(SOURCES), padded(TARGETS)
    assert torch.equal(
        plain_logits(built_anew.eval(), source, target),
        plain_logits(pooled, source, target),
    )
    modules = [m for m in pooled.modules() if isinstance(m, MultiHeadAttention)]
    assert [type(m) for m in modules] == [GroupedQueryAttention] * 6
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name])
    whole = pool_model(model, 4)  # groups of one: the same model
    assert_same(
        plain_logits(whole, source, target), plain_logits(model, source, target)
    )


# --- alignment ------------------------------------------------------------------------


def residual(module: MultiHeadAttention, n_kv_heads: int) -> torch.Tensor:
    """How far key heads lie from the mean of their group, and value heads."""
    total = torch.zeros((), dtype=torch.float64)
    for projection, width in (
        (module.key_projection, module.d_k),
        (module.value_projection, module.d_v),
    ):
        heads = projection.weight.detach().unflatten(0, (n_kv_heads, -1, width))
        total += (heads - heads.mean(1, keepdim=True)).square().sum()
    return total


@pytest.mark.equation("eq-aligned-heads")
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3])
def test_alignment_changes_no_answer_and_brings_heads_together(n_kv_heads):
    module = built(MultiHeadAttention, d_k=4, d_v=3)
    before = copy.deepcopy(module.state_dict())
    aligned = align_heads(module, n_kv_heads)
    x, key = normal(2, 4, 12), normal(2, 5, 12, seed=1)
    assert_same(aligned(x, key, key).detach(), module(x, key, key).detach(), 1e-11)
    assert residual(aligned, n_kv_heads) < 0.95 * residual(module, n_kv_heads)
    for name, y in module.state_dict().items():
        assert torch.equal(y, before[name])


@pytest.mark.equation("eq-aligned-heads")
def test_alignment_finds_heads_that_were_only_turned():
    """Equal heads, each with axes of its own: aligned, they are equal again."""
    module = repeated(built(n_kv_heads=2, d_k=4, d_v=3))
    turned = copy.deepcopy(module)
    for seed, (seen, partner, width) in enumerate(
        (("key", "query", 4), ("value", "output", 3))
    ):
        for i in range(6):
            turn = torch.linalg.qr(normal(width, width, seed=10 * seed + i)).Q
            rows = slice(i * width, (i + 1) * width)
            for name in (seen, partner):
                projection = getattr(turned, f"{name}_projection")
                with torch.no_grad():
                    if name == "output":
                        weight = projection.weight[:, rows]
                        projection.weight[:, rows] = weight @ turn.T
                        continue
                    projection.weight[rows] = turn @ projection.weight[rows]
                    projection.bias[rows] = turn @ projection.bias[rows]
    x = normal(2, 5, 12)
    expected = module(x, x, x).detach()
    assert_same(turned(x, x, x).detach(), expected)
    lost = (pool_heads(turned, 2)(x, x, x) - expected).abs().max()
    assert lost > 1e-2
    found = pool_heads(align_heads(turned, 2), 2)(x, x, x).detach()
    assert_same(found, expected, 1e-6)


def test_alignment_of_grouped_heads_turns_every_query_of_a_group():
    module = built(n_heads=6, n_kv_heads=3)
    aligned = align_heads(module, 1)
    x = normal(2, 5, 12)
    assert_same(aligned(x, x, x).detach(), module(x, x, x).detach(), 1e-11)
    assert type(aligned) is GroupedQueryAttention
