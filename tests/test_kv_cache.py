"""Chapter 9: the growing store, the frozen store, bytes, work and intensity.

What every store has to do is in test_caches.py.
"""

import itertools
from functools import partial

import pytest
import torch
from helpers import assert_same, normal, padded, plain_logits, seeded, small_model, stir
from seams import ATTENTIONS
from test_caches import cached_logits, drawn, feed
from test_seams import SOURCES, TARGETS
from torch.utils.flop_counter import FlopCounterMode

from aiayn import (
    DecoderCache,
    FrozenKVCache,
    KVCache,
    MultiHeadAttention,
    RecurrentCache,
    RecurrentSeq2Seq,
    Transformer,
    TransformerConfig,
    attention,
    kv_cache_bytes,
)

CHAPTER = "09_kv_cache"

# --- the past does not change ---------------------------------------------------------


@pytest.mark.equation("res-past-fixed")
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_later_tokens_change_no_earlier_key_or_value(norm_first):
    """In every layer, at every length; in an encoder they do change."""
    model = small_model(n_layers=3, norm_first=norm_first).requires_grad_(False)
    source, target = padded(SOURCES), torch.randint(3, 11, (3, 7), generator=seeded(3))
    memory = model.encode(source)
    found: dict = {}

    def keep(name):
        return lambda module, inputs, output: found.setdefault(name, []).append(output)

    for i, layer in enumerate(model.decoder_layers):
        layer.self_attention.key_projection.register_forward_hook(keep(("key", i)))
        layer.self_attention.value_projection.register_forward_hook(keep(("value", i)))
    for n in range(1, 8):
        model.decode(target[:, :n], memory, source)
    assert len(found) == 6
    for made in found.values():
        for n, rows in enumerate(made, 1):
            assert_same(rows, made[-1][:, :n], 1e-12)
    keys = []
    model.encoder_layers[1].self_attention.key_projection.register_forward_hook(
        lambda module, inputs, output: keys.append(output)
    )
    model.encode(target[:, :6])
    model.encode(target)
    assert (keys[0] - keys[1][:, :6]).abs().max() > 0.01


@pytest.mark.equation("eq-kv-cache")
def test_one_query_by_hand():
    """Two held keys and a new one, in numbers that can be checked on paper."""
    store = KVCache()
    key = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).view(1, 1, 3, 2)
    value = torch.tensor([[1.0], [2.0], [4.0]]).view(1, 1, 3, 1)
    query = torch.zeros(1, 1, 1, 2)
    for t, expected in enumerate((1.0, 1.5, 7 / 3)):
        new = key[:, :, t : t + 1], value[:, :, t : t + 1]
        found = store.attend(attention, query, lambda new=new: new, causal=True)
        assert found.item() == pytest.approx(expected)


# --- the growing store ----------------------------------------------------------------


@pytest.mark.parametrize("pieces", [[4], [1, 1, 1, 1], [3, 1]])
def test_full_to_the_last_place_and_not_beyond(pieces):
    """deepsparse#1447, transformers#37269, litgpt#1636: off by one at the capacity."""
    query, key, value = drawn(4)
    store = KVCache(capacity=4)
    found = feed(store, query, key, value, pieces)
    assert_same(found, attention(query, key, value, causal=True))
    more = drawn(1, seed=5)
    for _ in range(2):
        with pytest.raises(ValueError, match="holds 4 tokens.*capacity=4.*1 more"):
            feed(store, *more, 1)
        assert len(store) == 4
        assert torch.equal(store.keys, key)
        assert torch.equal(store.values, value)
    store.crop(3)
    with pytest.raises(ValueError, match="no room for 2 more"):
        feed(store, *drawn(2, seed=5), 2)
    feed(store, *more, 1)
    assert torch.equal(store.keys[:, :, 3:], more[1])


def test_a_capacity_is_refused_before_any_layer_projects():
    model = small_model()
    source, target = padded(SOURCES), padded(TARGETS)
    cache = DecoderCache(2, make=partial(KVCache, capacity=5))
    cached_logits(model, source, target[:, :4], 2, cache)
    before = [layer.self_attention.keys for layer in cache.layers]
    projected = []
    for layer in model.decoder_layers:
        layer.self_attention.key_projection.register_forward_hook(
            lambda *_: projected.append(1)
        )
    with torch.no_grad():
        memory = model.encode(source)
        with pytest.raises(ValueError, match="holds 4 tokens and has capacity=5"):
            model.decode(target[:, 4:6], memory, source, cache=cache)
        assert not projected
        assert len(cache) == 4
        for layer, keys in zip(cache.layers, before, strict=True):
            assert len(layer.self_attention) == 4
            assert torch.equal(layer.self_attention.keys, keys)
        new = model.decode(target[:, 4:5], memory, source, cache=cache)
    real = target[:, 4:5] != 0
    plain = plain_logits(model, source, target[:, :5])[:, 4:]
    assert_same(new[real], plain[real])
    assert len(cache) == 5


def test_a_capacity_is_reserved_once():
    store = KVCache(capacity=10)
    query, key, value = drawn(6)
    feed(store, *(x[:, :, :1] for x in (query, key, value)), 1)
    assert store.reserved_nbytes == 10 * store.nbytes
    place = store._keys.data_ptr()
    feed(store, *(x[:, :, 1:] for x in (query, key, value)), 1)
    assert store._keys.data_ptr() == place
    store.reorder([1, 1, 0])
    assert store.reserved_nbytes == 3 * 3 * 10 * (4 + 5) * 8
    store.reset()
    assert store.reserved_nbytes == 0


def test_room_is_doubled():
    """Reserved is never more than twice what is held, and seldom copied."""
    store, sizes = KVCache(), []
    query, key, value = drawn(70, batch=1, heads=1)
    for t in range(70):
        feed(store, *(x[:, :, t : t + 1] for x in (query, key, value)), 1)
        assert store.nbytes <= store.reserved_nbytes <= 2 * store.nbytes
        sizes.append(store.reserved_nbytes)
    assert len(set(sizes)) == 8  # 1, 2, 4 … 128
    assert torch.equal(store.keys, key)


def test_a_cache_of_one_token_is_true_and_an_empty_one_false():
    """Ask `is None`: whoever asks for truth forgets the empty cache."""
    cache = DecoderCache(1)
    assert not cache
    assert cache is not None


@pytest.mark.parametrize("cls", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.equation("eq-kv-bytes")
def test_only_heads_with_keys_of_their_own_are_held(cls):
    torch.manual_seed(0)
    module = cls(16, 4).double().requires_grad_(False)
    x, store = normal(3, 5, 16), KVCache()
    module(x, x, x, causal=True, cache=store)
    heads = module.project(x, x)[0].shape[1]
    assert store.keys.shape == (3, heads, 5, 4)
    assert store.nbytes == kv_cache_bytes(1, heads, 4, 5, 3, 8)


# --- the frozen store -----------------------------------------------------------------


def test_a_frozen_store_asks_once_and_answers_as_if_it_asked_each_time():
    torch.manual_seed(0)
    module = MultiHeadAttention(8, 2, d_v=3).double().requires_grad_(False)
    stir(module, seed=1)
    query, source = normal(2, 4, 8), normal(2, 5, 8, seed=1)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None, None, :]
    expected = module(query, source, source, mask)
    calls = []
    whole = module.project
    module.project = lambda *x: calls.append(1) or whole(*x)
    store = FrozenKVCache()
    for t in range(4):
        out = module(query[:, t : t + 1], source, source, mask, cache=store)
        assert_same(out, expected[:, t : t + 1])
    assert calls == [1]
    assert len(store) == 5
    assert store.nbytes == store.reserved_nbytes == kv_cache_bytes(1, 2, 4, 5, 2, 8, 3)


def test_a_frozen_store_knows_its_source():
    """Same shape, other content; and what is the same is accepted."""
    module = MultiHeadAttention(8, 2).double().requires_grad_(False)
    query, source = normal(2, 1, 8), normal(2, 5, 8, seed=1)
    store = FrozenKVCache()
    first = module(query, source, source, cache=store)
    assert_same(module(query, source.clone(), source, cache=store), first)
    wrong = source.clone()
    wrong[1, 4, 7] += 1e-9
    with pytest.raises(ValueError, match="another source: reset it"):
        module(query, wrong, wrong, cache=store)
    for other in (normal(2, 4, 8), normal(2, 6, 8)):
        with pytest.raises(ValueError, match="2 rows and 5 tokens.*reset it"):
            module(query, other, other, cache=store)
    for rows in (1, 3):
        other = normal(rows, 5, 8)
        with pytest.raises(ValueError, match="2 rows and 5 tokens.*reset it"):
            module(normal(rows, 1, 8), other, other, cache=store)
    assert_same(module(query, source, source, cache=store), first)
    store.reset()
    fresh = module(query, wrong, wrong, cache=store)
    assert (fresh - first).abs().max() > 0


def test_a_frozen_store_without_a_word_about_its_source():
    """A plain function in place of a partial: rows are compared, all that can be."""
    query, key, value = drawn()
    store = FrozenKVCache()
    found = store.attend(attention, query, lambda: (key, value))
    again = store.attend(attention, query, lambda: (key + 1, value))
    assert torch.equal(found, again)
    with pytest.raises(ValueError, match="2 rows and 6 tokens"):
        store.attend(attention, query[:1], lambda: (key[:1], value[:1]))


def test_a_frozen_store_keeps_copies():
    query, key, value = drawn()
    store = FrozenKVCache()
    given = key.clone(), value.clone()
    found = store.attend(attention, query, lambda: given)
    given[0].zero_()
    store.keys.zero_()
    assert torch.equal(store.attend(attention, query, lambda: given), found)


def test_a_moved_source_is_taken_on_trust_but_not_in_another_size():
    module = MultiHeadAttention(8, 2).double().requires_grad_(False)
    query, source = normal(2, 1, 8), normal(2, 5, 8, seed=1)
    store = FrozenKVCache()
    module(query, source, source, cache=store)
    rows = [1, 1, 0]
    store.reorder(rows)
    moved = source[rows]
    for rows_of, other in ((query, source), (query[rows], moved[:, :4])):
        with pytest.raises(ValueError, match="3 rows and 5 tokens"):
            module(rows_of, other, other, cache=store)
    out = module(query[rows], moved, moved, cache=store)
    assert_same(out, module(query[rows], moved, moved))
    with pytest.raises(ValueError, match="another source"):
        module(query[rows], moved + 1, moved, cache=store)


# --- a decoder ------------------------------------------------------------------------


def test_positions_and_mask_of_a_step_by_hand():
    cache = DecoderCache(1)
    real = torch.tensor([[False, True, True], [True, False, True]])
    positions, mask = cache.begin(real)
    assert positions.tolist() == [[0, 0, 1], [0, 0, 1]]
    assert torch.equal(mask, real[:, None, None, :])
    store = cache.layers[0].self_attention
    feed(store, *drawn(3), 3)
    assert len(cache) == 3
    new = torch.tensor([[True, False], [True, True]])
    positions, mask = cache.begin(new)
    assert positions.tolist() == [[2, 2], [2, 3]]
    assert torch.equal(mask[:, 0, 0], torch.cat((real, new), dim=1))
    assert len(cache) == 3  # nobody has answered yet


def test_a_step_begun_twice_counts_once():
    cache = DecoderCache(1)
    real = torch.ones(2, 3, dtype=torch.bool)
    for _ in range(2):
        positions, mask = cache.begin(real)
        assert positions.tolist() == [[0, 1, 2]] * 2
        assert mask is None  # nothing to hide


def test_a_decoder_without_cross_attention():
    """Decoder-only models leave half of each layer's cache empty."""
    cache = DecoderCache(2)
    for n in (1, 2, 3):
        cache.begin(torch.ones(2, 1, dtype=torch.bool))
        for layer in cache.layers:
            feed(layer.self_attention, *drawn(1, seed=n), 1)
        assert len(cache) == n
    assert cache.nbytes == kv_cache_bytes(2, 3, 4, 3, 2, 8, d_v=5)


@pytest.mark.usefixtures("no_shape_checks")
def test_make_has_to_make():
    one = KVCache()
    with pytest.raises(ValueError, match="a new store each time"):
        DecoderCache(2, make=lambda: one)
    with pytest.raises(TypeError, match="make must make a store"):
        DecoderCache(2, make=one)
    assert len(DecoderCache(1, make=lambda: one).layers) == 1


# --- bytes ----------------------------------------------------------------------------


@pytest.mark.equation("eq-kv-bytes")
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # 2 · 6 · 8 · 64 · 4 and so on, written out
        ((6, 8, 64, 1, 1, 4), 24_576),
        ((6, 16, 64, 1, 1, 4), 49_152),
        ((96, 96, 128, 1, 1, 2), 4_718_592),
        ((32, 32, 128, 4096, 1, 2), 2_147_483_648),
        ((80, 8, 128, 1, 1, 2), 327_680),
        ((80, 64, 128, 1, 1, 2), 2_621_440),
        ((2, 3, 4, 5, 6, 7), 10_080),
        ((2, 3, 4, 5, 6, 7, 8), 15_120),
        ((2, 3, 4, 0, 6, 7), 0),
        ((2, 3, 4, 5, 0, 7), 0),
    ],
)
def test_bytes_by_hand(sizes, expected):
    assert kv_cache_bytes(*sizes) == expected


@pytest.mark.equation("eq-kv-bytes")
def test_bytes_of_base_are_those_of_a_running_model():
    """The paper's base decoder (with few tokens to choose from), in float32."""
    config = TransformerConfig(20, 20, dropout=0.0)
    model = Transformer(config, generator=seeded()).eval().requires_grad_(False)
    source, cache = torch.full((2, 5), 3), DecoderCache(6)
    memory = model.encode(source)
    for n in (1, 2, 3):
        model.decode(torch.full((2, 1), 3), memory, source, cache=cache)
        assert cache.nbytes == 2 * (n + 5) * 24_576


def test_the_state_of_an_lstm_is_the_cache_of_one_token():
    model = RecurrentSeq2Seq(20, 20, d_model=64, n_layers=3).eval()
    source, cache = torch.full((2, 4), 3), RecurrentCache()
    with torch.no_grad():
        memory = model.encode(source)
        for _ in range(3):
            model.decode(source[:, :1], memory, source, cache=cache)
            assert cache.nbytes == kv_cache_bytes(3, 4, 16, 1, 2, 4)


# --- work and intensity ---------------------------------------------------------------


@pytest.mark.equation("eq-writing-cost")
@pytest.mark.parametrize("cache", [False, True], ids=["again", "cache"])
def test_work_is_the_sum_of_the_steps(notebook_function, cache):
    """Added up step by step, with the sizes of every product written out."""
    cost = notebook_function(CHAPTER, "writing_cost")
    for n, d in itertools.product((1, 2, 5, 17), (2, 8)):
        expected = 0
        for t in range(1, n + 1):
            rows = 1 if cache else t
            for inner, outer in ((d, d),) * 4 + ((d, 4 * d), (4 * d, d)):
                expected += rows * inner * outer  # projections and feed-forward
            expected += 2 * rows * t * d  # scores, and weights times values
        assert cost(n, d, cache=cache) == expected


@pytest.mark.equation("eq-writing-cost")
def test_terms_cross_where_the_chapter_says(notebook_function):
    cost = notebook_function(CHAPTER, "writing_cost")
    d = 64
    for cache, crossing in ((False, 9 * d), (True, 12 * d)):
        for n, more in ((crossing // 2, False), (crossing * 2, True)):
            whole = cost(n, d, cache=cache)
            weights = 12 * d * d * (n if cache else n * (n + 1) // 2)
            assert (whole - weights > weights) == more


@pytest.mark.equation("eq-decode-intensity")
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_intensity_is_what_is_counted(notebook_function, heads, kv_heads, dtype):
    """FLOPs by torch's counter, bytes by nbytes, at several lengths and batches."""
    intensity = notebook_function(CHAPTER, "decode_intensity")
    size = torch.finfo(dtype).bits // 8
    for n, batch in ((3, 1), (7, 5)):
        store = KVCache()
        key = torch.zeros(batch, kv_heads, n, 6, dtype=dtype)
        store.attend(lambda q, *_, **__: q, key, lambda key=key: (key, key))
        query = torch.zeros(batch, heads, 1, 6, dtype=dtype)
        with FlopCounterMode(display=False) as counter:
            each = [
                x.repeat_interleave(heads // kv_heads, 1) for x in (store.keys,) * 2
            ]
            attention(query, *each)
        weight = torch.zeros(6, 9, dtype=dtype)
        with FlopCounterMode(display=False) as again:
            torch.zeros(batch, 6, dtype=dtype) @ weight
        found = intensity(size, n_heads=heads, n_kv_heads=kv_heads, batch=batch)
        assert found[0] == counter.get_total_flops() / store.nbytes
        assert found[1] == again.get_total_flops() / weight.nbytes
