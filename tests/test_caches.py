"""One contract, every way to keep keys and values: the tests of the ``cache`` seam.

A further store of one self-attention joins by one line in ``CACHES``.
"""

import contextlib
import copy
import itertools
from functools import partial

import pytest
import torch
from helpers import (
    DTYPES,
    assert_same,
    normal,
    padded,
    plain_logits,
    seeded,
    small_model,
    stir,
    tokens,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from seams import ATTENTIONS, PairedAttention
from test_seams import KINDS, SOURCES, TARGETS, splits
from torch import Tensor
from torch.nn import ModuleList

from aiayn import (
    BlockAllocator,
    DecoderCache,
    FrozenKVCache,
    KVCache,
    PagedKVCache,
    attention,
    beam_search,
    greedy_decode,
    kv_cache_bytes,
    transformer,
)

CACHES = {
    "KVCache": KVCache,
    "KVCache with a capacity": partial(KVCache, capacity=64),
    "PagedKVCache": lambda: PagedKVCache(BlockAllocator(512, 2)),
}
"""Every store of one self-attention, as ``DecoderCache(make=…)`` takes it."""

each_cache = pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
each_attention = pytest.mark.parametrize("cls", ATTENTIONS.values(), ids=ATTENTIONS)
either_flag = pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])

quick = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,  # the same examples every time: CI must not be a lottery
    database=None,
    suppress_health_check=list(HealthCheck),
)

# --- one store ------------------------------------------------------------------------


def drawn(length=6, *, batch=2, heads=3, d_k=4, d_v=5, seed=0, dtype=torch.float64):
    """Queries, keys and values of a sequence."""
    shapes = (heads, length, d_k), (heads, length, d_k), (heads, length, d_v)
    return [
        normal(batch, *shape, seed=3 * seed + i, dtype=dtype)
        for i, shape in enumerate(shapes)
    ]


def feed(store, query, key, value, pieces, *, causal=True) -> Tensor:
    """A sequence handed to a store piece by piece; what its queries found."""
    cut = zip(*(x.split(pieces, dim=-2) for x in (query, key, value)), strict=True)
    found = [
        store.attend(attention, q, lambda k=k, v=v: (k, v), causal=causal)
        for q, k, v in cut
    ]
    return torch.cat(found, dim=-2)


def state_of(store) -> tuple:
    return len(store), store.keys, store.values, store.nbytes


def assert_unchanged(store, before: tuple) -> None:
    now = state_of(store)
    assert now[0] == before[0]
    assert now[3] == before[3]
    for ours, theirs in zip(now[1:3], before[1:3], strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


@each_cache
@pytest.mark.equation("eq-kv-cache")
def test_a_store_sees_past_and_new_keys_at_every_split(make):
    """nanoGPT#613, x-transformers#219, #187: "slightly different" with a cache."""
    query, key, value = drawn()
    expected = attention(query, key, value, causal=True)
    for pieces in splits(6):
        store = make()
        assert_same(feed(store, query, key, value, pieces), expected)
        assert len(store) == 6
        assert torch.equal(store.keys, key)
        assert torch.equal(store.values, value)


@each_cache
def test_the_queries_of_one_call_see_each_other_without_the_flag(make):
    """Not causal: a query sees everything up to the end of its own piece."""
    query, key, value = drawn()
    store = make()
    found = feed(store, query, key, value, [2, 4], causal=False)
    first = attention(query[:, :, :2], key[:, :, :2], value[:, :, :2])
    assert_same(found[:, :, :2], first)
    assert_same(found[:, :, 2:], attention(query[:, :, 2:], key, value))


@each_cache
@either_flag
def test_a_mask_covers_past_and_new_keys(make, causal):
    query, key, value = drawn()
    mask = normal(2, 1, 1, 6, seed=8) > -0.5
    store = make()
    feed(store, query[:, :, :4], key[:, :, :4], value[:, :, :4], 4)
    found = store.attend(
        attention,
        query[:, :, 4:],
        lambda: (key[:, :, 4:], value[:, :, 4:]),
        mask,
        causal=causal,
    )
    expected = attention(query[:, :, 4:], key, value, mask, causal=causal)
    assert_same(found, expected)


@each_cache
@pytest.mark.parametrize("rows", [[1, 0], [1], [0, 0, 1, 1, 0], []])
@pytest.mark.parametrize("kind", ["list", torch.int64, torch.int32, torch.uint8])
@pytest.mark.usefixtures("no_shape_checks")  # ours are stricter than need be: uint8
def test_rows_move_to_more_or_fewer(make, rows, kind):
    given = rows if kind == "list" else torch.tensor(rows, dtype=kind)
    query, key, value = drawn()
    store = make()
    feed(store, query[:, :, :4], key[:, :, :4], value[:, :, :4], [3, 1])
    store.reorder(given)
    assert len(store) == 4
    assert torch.equal(store.keys, key[rows, :, :4])
    query, key, value = query[rows], key[rows], value[rows]
    found = feed(store, query[:, :, 4:], key[:, :, 4:], value[:, :, 4:], 1)
    assert_same(found, attention(query, key, value, causal=True)[:, :, 4:])
    assert torch.equal(store.values, value)


@each_cache
def test_an_empty_store_has_no_rows_to_move(make):
    store = make()
    store.reorder([4, 2])
    assert state_of(store) == (0, None, None, 0)


@each_cache
@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([2], ValueError),
        ([-1], ValueError),  # Python's last row is nobody's
        ([[0, 1]], ValueError),
        (1, ValueError),
        ([0.0], TypeError),
        ([True, False], TypeError),
        (torch.tensor([True, False]), TypeError),
        ("ab", TypeError),
        ([[0], [0, 1]], TypeError),
        (None, TypeError),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_rows_that_are_none_are_refused(make, rows, error):
    store = make()
    feed(store, *drawn(), 6)
    before = state_of(store)
    with pytest.raises(error, match="rows"):
        store.reorder(rows)
    assert_unchanged(store, before)


@each_cache
@pytest.mark.parametrize("n", range(7))
def test_going_back_and_on_equals_never_having_gone(make, n):
    """x-transformers#187: what is cropped leaves no trace."""
    query, key, value = drawn()
    other = drawn(seed=5)
    store = make()
    pairs = zip((query, key, value), other, strict=True)
    feed(store, *(torch.cat((x[:, :, :n], y), dim=2) for x, y in pairs), 2)
    store.crop(n)
    assert len(store) == n
    if n:
        assert torch.equal(store.keys, key[:, :, :n])
    if n < 6:
        found = feed(store, query[:, :, n:], key[:, :, n:], value[:, :, n:], 1)
        assert_same(found, attention(query, key, value, causal=True)[:, :, n:])
    assert torch.equal(store.values, value)


@each_cache
@pytest.mark.parametrize(
    ("n", "error"),
    [(7, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)],
)
def test_going_back_to_what_was_not_is_refused(make, n, error):
    store = make()
    feed(store, *drawn(), 6)
    before = state_of(store)
    with pytest.raises(error, match="n"):
        store.crop(n)
    assert_unchanged(store, before)


@each_cache
@pytest.mark.parametrize("forget", ["reset", "crop"])
def test_a_store_that_forgot_takes_anything(make, forget):
    """keys_values#45: another batch, other heads and widths, another dtype."""
    store = make()
    feed(store, *drawn(), 6)
    store.reset() if forget == "reset" else store.crop(0)
    assert state_of(store) == (0, None, None, 0)
    assert store.reserved_nbytes == 0
    new = drawn(3, batch=1, heads=2, d_k=3, d_v=3, dtype=torch.float32)
    assert_same(feed(store, *new, 1), attention(*new, causal=True), 1e-5)


@each_cache
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"batch": 3}, ValueError),
        ({"batch": 1}, ValueError),  # would broadcast
        ({"heads": 1}, ValueError),
        ({"d_k": 3}, ValueError),
        ({"d_v": 1}, ValueError),
        ({"dtype": torch.float32}, TypeError),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_what_does_not_fit_is_refused_and_changes_nothing(make, change, error):
    """Another batch size, other heads, another dtype: never silently converted."""
    store = make()
    feed(store, *drawn(), [4, 2])
    before = state_of(store)
    query, key, value = drawn(1, **change)
    with pytest.raises(error, match="keys|values"):
        store.attend(attention, query, lambda: (key, value), causal=True)
    assert_unchanged(store, before)


@each_cache
@pytest.mark.parametrize("kind", ["length", "rank", "heads"])
@pytest.mark.usefixtures("no_shape_checks")
def test_keys_and_values_have_to_belong_together(make, kind):
    store = make()
    query, key, value = drawn(2)
    if kind == "rank":
        key = key[0]
    elif kind == "heads":
        value = value[:, :1]
    else:
        value = value[:, :, :1]
    with pytest.raises(ValueError, match="keys and values must be"):
        store.attend(attention, query, lambda: (key, value), causal=True)
    assert len(store) == 0


@each_cache
@pytest.mark.parametrize("which", [0, 1])
def test_a_store_is_no_place_for_gradients(make, which):
    """Silently cut off, they would be wrong: it says so instead."""
    store = make()
    query, *projected = drawn(2)
    projected[which].requires_grad_()
    with pytest.raises(ValueError, match=r"require gradients.*no_grad"):
        store.attend(attention, query, lambda: tuple(projected), causal=True)
    assert len(store) == 0
    feed(store, query, *(x.detach() for x in projected), 2)
    assert not store.keys.requires_grad


@each_cache
@pytest.mark.parametrize("past", [0, 4])
def test_a_call_that_fails_has_added_nothing(make, past):
    query, key, value = drawn()
    store = make()
    if past:
        feed(store, *(x[:, :, :past] for x in (query, key, value)), past)
    before = state_of(store)

    def broken(*_, **__):
        raise RuntimeError("out of memory")

    other = drawn(6 - past, seed=9)
    with pytest.raises(RuntimeError, match="out of memory"):
        store.attend(broken, other[0], lambda: (other[1], other[2]), causal=True)
    assert_unchanged(store, before)
    found = feed(store, *(x[:, :, past:] for x in (query, key, value)), 1)
    assert_same(found, attention(query, key, value, causal=True)[:, :, past:])


@each_cache
def test_a_failed_first_call_binds_nothing(make):
    """Neither the number of rows nor anything else."""
    store = make()

    def broken(*_, **__):
        raise RuntimeError("out of memory")

    query, key, value = drawn(2)
    with pytest.raises(RuntimeError):
        store.attend(broken, query, lambda: (key, value))
    new = drawn(3, batch=5)
    assert_same(feed(store, *new, 1), attention(*new, causal=True))


@each_cache
def test_what_was_looked_at_stays_and_what_was_given_is_not_kept(make):
    """torchtune#1424: no views that change under the reader, no tensors of others."""
    query, key, value = drawn()
    given = key[:, :, :3].clone(), value[:, :, :3].clone()
    store = make()
    store.attend(attention, query[:, :, :3], lambda: given, causal=True)
    for tensor in given:
        tensor.fill_(7.0)
    seen = store.keys, store.values
    assert torch.equal(seen[0], key[:, :, :3])
    store.crop(1)
    feed(store, *(x[:, :, 1:] for x in drawn(seed=4)), 1)
    store.reorder([1, 0])
    assert torch.equal(seen[0], key[:, :, :3])
    assert torch.equal(seen[1], value[:, :, :3])
    seen = store.keys
    seen.zero_()
    assert store.keys.count_nonzero() > 0


@each_cache
def test_stores_share_nothing(make):
    first, second = make(), make()
    feed(first, *drawn(), 6)
    assert state_of(second) == (0, None, None, 0)
    feed(second, *drawn(seed=1), 6)
    assert torch.equal(first.keys, drawn()[1])


@each_cache
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_storage_has_the_keys_own_dtype(make, dtype):
    """transformers#25420: no conversion on the way in, none on the way out."""
    store = make()
    query, key, value = drawn(dtype=dtype)
    feed(store, query, key, value, [2, 4])
    assert store.keys.dtype == store.values.dtype == dtype
    assert torch.equal(store.keys, key)
    n = store.nbytes
    assert n == 2 * 3 * 6 * (4 + 5) * torch.finfo(dtype).bits // 8


@each_cache
def test_keys_and_values_may_have_dtypes_of_their_own(make):
    store = make()
    query, key, value = drawn()

    def mix(query, key, value, mask=None, *, causal=False):
        return attention(query, key, value.to(key.dtype), mask, causal=causal)

    store.attend(mix, query, lambda: (key, value.float()), causal=True)
    assert (store.keys.dtype, store.values.dtype) == (torch.float64, torch.float32)
    assert store.nbytes == 2 * 3 * 6 * (4 * 8 + 5 * 4)


@each_cache
@either_flag
@pytest.mark.parametrize("d_v", [4, 5])
@pytest.mark.equation("eq-kv-bytes")
def test_bytes_are_those_of_the_formula(make, causal, d_v):
    """torchtune#38, tinygrad#2267: counted in heads that have keys, not in queries."""
    store = make()
    query, key, value = drawn(d_v=d_v)
    for n in range(1, 7):
        new = [x[:, :, n - 1 : n] for x in (query, key, value)]
        feed(store, *new, 1, causal=causal)
        expected = kv_cache_bytes(1, 3, 4, n, 2, 8, d_v=d_v)
        assert store.nbytes == expected == store.keys.nbytes + store.values.nbytes
        assert store.reserved_nbytes >= store.nbytes


@each_cache
def test_inference_mode_and_others_may_alternate(make):
    """What was reserved in one mode can be written in another, moved or not."""
    modes = (torch.inference_mode, torch.no_grad, torch.enable_grad)
    query, key, value = drawn(4)
    expected = attention(query, key, value, causal=True)[:, :, 3:]
    for (before, after), move in itertools.product(
        itertools.permutations(modes, 2), (False, True)
    ):
        store = make()
        with before():  # three tokens one by one: room for a fourth
            feed(store, *(x[:, :, :3].clone() for x in (query, key, value)), 1)
            if move:
                store.reorder([1, 0])
                store.reorder([1, 0])
        with after():
            new = [x[:, :, 3:].clone() for x in (query, key, value)]
            found = feed(store, *new, 1)
        assert_same(found.clone(), expected)


@each_cache
def test_a_store_without_memory_behind_it(make):
    """On the meta device: shapes only, no values are looked at."""
    store = make()
    query, key, value = (x.to("meta") for x in drawn())
    assert feed(store, query, key, value, [2, 4]).shape == (2, 3, 6, 5)
    store.reorder(torch.tensor([1, 1, 0], device="meta"))
    assert store.keys.shape == (3, 3, 6, 4)
    store.crop(2)
    assert store.values.shape == (3, 3, 2, 5)


@each_cache
def test_strided_and_expanded_tensors(make):
    query, key, value = drawn()
    strided = key.mT.contiguous().mT
    store = make()
    feed(store, query, strided, value[:1].expand(2, -1, -1, -1), [1, 5])
    assert torch.equal(store.keys, key)
    assert torch.equal(store.values[1], value[0])


@each_cache
def test_a_copy_of_a_store_goes_its_own_way(make):
    store = make()
    feed(store, *drawn(), 6)
    before = state_of(store)
    other = copy.deepcopy(store)
    other.crop(2)
    feed(other, *drawn(4, seed=3), 1)
    assert_unchanged(store, before)


@quick
@given(data=st.data())
@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("cls", ATTENTIONS.values(), ids=ATTENTIONS)
def test_any_shape_split_and_mask(cls, make, data):
    """One attention of any class: sizes, cuts and padding as hypothesis likes them."""
    batch, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    causal = data.draw(st.booleans())
    torch.manual_seed(0)
    d_k, d_v = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    module = cls(8, 4, d_k=d_k, d_v=d_v)
    module = module.double().requires_grad_(False)
    stir(module, seed=1)
    x = normal(batch, length, 8, seed=data.draw(st.integers(0, 99)))
    real = torch.tensor(
        data.draw(
            st.lists(
                st.lists(st.booleans(), min_size=length, max_size=length),
                min_size=batch,
                max_size=batch,
            )
        )
    ).view(batch, 1, 1, length)
    store, start = make(), 0
    while start < length:
        end = data.draw(st.integers(start + 1, length))
        new, seen = x[:, start:end], x[:, :end]
        mask = real[..., :end]
        found = module(new, new, new, mask, causal=causal, cache=store)
        expected = module(seen, seen, seen, mask, causal=causal)[:, start:]
        assert_same(found, expected)
        start = end
    assert len(store) == length


# --- a whole decoder ------------------------------------------------------------------


def cached_logits(model, source, target, pieces, cache) -> Tensor:
    with torch.no_grad():
        memory = model.encode(source)
        return torch.cat(
            [
                model.decode(piece, memory, source, cache=cache)
                for piece in target.split(pieces, dim=1)
            ],
            dim=1,
        )


@each_cache
@each_kind
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.equation("eq-kv-cache")
def test_cached_equals_plain_at_every_split(make, kind, left):
    """transformers#26344, #31166: rows of unequal length, padding on either side.

    Every split for the plain model, four for its variants.
    """
    model = small_model(**kind)
    source, target = padded(SOURCES, left=left), padded(TARGETS, left=left)
    plain, real = plain_logits(model, source, target), target != 0
    every = splits(6) if not kind else ([1] * 6, [2, 1, 3], [5, 1], [6])
    for pieces in every:
        cache = DecoderCache(2, make=make)
        cached = cached_logits(model, source, target, pieces, cache)
        assert_same(cached[real], plain[real])
        assert len(cache) == target.shape[1]


@each_cache
def test_padding_in_the_middle_of_the_past(make):
    """A finished row goes on as padding, and could even go on after it."""
    model = small_model()
    source, target = padded(SOURCES), padded(TARGETS, left=True)
    target[0, 4], target[1, 1:3] = 0, 0
    plain, real = plain_logits(model, source, target), target != 0
    for pieces in splits(target.shape[1]):
        cached = cached_logits(
            model, source, target, pieces, DecoderCache(2, make=make)
        )
        assert_same(cached[real], plain[real])


@each_cache
@each_kind
def test_greedy_and_beam_search_find_the_same_with_a_cache(make, kind):
    model = small_model(seed=2, tie_embeddings=False, **kind)
    source = tokens(12, 4)
    limits = 9 - torch.arange(12) % 3
    plain = greedy_decode(model, source, max_len=limits)
    cache = DecoderCache(2, make=make)
    assert torch.equal(greedy_decode(model, source, max_len=limits, cache=cache), plain)
    assert len(set((plain != 0).sum(dim=1).tolist())) > 2
    for beam_size, alpha in ((1, 0.0), (4, 0.6)):
        setting = {"beam_size": beam_size, "alpha": alpha, "max_len": limits}
        plain = beam_search(model, source, n_best=beam_size, **setting)
        cache.reset()
        found = beam_search(model, source, n_best=beam_size, cache=cache, **setting)
        for ours, theirs in zip(found, plain, strict=True):
            assert [h.tokens for h in ours] == [h.tokens for h in theirs]
            for a, b in zip(ours, theirs, strict=True):
                assert a.score == pytest.approx(b.score, abs=1e-10)


@each_cache
def test_a_cache_serves_one_sequence_after_another(make):
    """keys_values#45, candle-vllm#6, OpenNMT-py#2280: x again after y is as before."""
    model = small_model(seed=2, tie_embeddings=False)
    x, y = tokens(3, 4), tokens(3, 4, seed=1)
    cache = DecoderCache(2, make=make)
    found = []
    for source in (x, y, x):
        found.append(greedy_decode(model, source, max_len=8, cache=cache))
        with pytest.raises(ValueError, match="cache must be empty"):
            greedy_decode(model, source, max_len=8, cache=cache)
        cache.reset()
        assert len(cache) == cache.nbytes == cache.reserved_nbytes == 0
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], greedy_decode(model, y, max_len=8))
    assert not torch.equal(found[0], found[1])


@each_cache
def test_a_source_is_projected_once(make):
    """Self-Forcing#78, transformers#31166; through greedy and beam search alike."""
    model = small_model(
        seed=2, tie_embeddings=False, attention=PairedAttention, n_kv_heads=4
    )
    source = tokens(5, 4)
    for search in (greedy_decode, partial(beam_search, beam_size=3)):
        for module in model.modules():
            module.projections = 0
        search(model, source, max_len=7, cache=DecoderCache(2, make=make))
        for layer in model.decoder_layers:
            assert layer.cross_attention.projections == 1
            assert layer.self_attention.projections == 7


@each_cache
@pytest.mark.parametrize("n_layers", [1, 2])
def test_another_source_is_refused_until_the_cache_is_reset(make, n_layers):
    """Of the same shape, of another length, of another batch size; nothing changes."""
    model = small_model(n_layers=n_layers)
    source, other, target = padded(SOURCES), tokens(3, 5), tokens(3, 6)
    plain = plain_logits(model, source, target)
    cache = DecoderCache(n_layers, make=make)
    with torch.no_grad():
        memory = model.encode(source)
        model.decode(target[:, :4], memory, source, cache=cache)
        for wrong in (other, tokens(3, 7), tokens(3, 1)):
            with pytest.raises(ValueError, match=r"source.*reset it"):
                model.decode(target[:, 4:], model.encode(wrong), wrong, cache=cache)
            assert len(cache) == 4
        with pytest.raises(ValueError, match="cache holds 3 rows, got 2"):
            model.decode(target[:2, 4:], memory[:2], source[:2], cache=cache)
        assert len(cache) == 4
        again = model.encode(source)  # the same in another tensor is the same
        assert again is not memory
        new = model.decode(target[:, 4:], again, source, cache=cache)
        assert_same(new, plain[:, 4:])
        cache.reset()
        fresh = model.decode(target, model.encode(other), other, cache=cache)
        assert_same(fresh, plain_logits(model, other, target))


@each_cache
@each_kind
@pytest.mark.parametrize("rows", [[2, 0, 1], [1], [1, 1, 0, 2, 2]])
def test_reordered_rows_go_on_as_themselves(make, kind, rows):
    """Keys, values, source, padding and positions; several times in a row."""
    model = small_model(**kind)
    source, target = padded(SOURCES, left=True), padded(TARGETS, left=True)
    cache = DecoderCache(2, make=make)
    with torch.no_grad():
        memory = model.encode(source)
        model.decode(target[:, :3], memory, source, cache=cache)
        for move, end in ((rows, 4), ([0], 6)):
            cache.reorder(move)
            memory, source, target = memory[move], source[move], target[move]
            new = model.decode(target[:, len(cache) : end], memory, source, cache=cache)
            real = target[:, end - new.shape[1] : end] != 0
            plain = plain_logits(model, source, target[:, :end])
            assert_same(new[real], plain[:, -new.shape[1] :][real])


@each_cache
def test_rows_are_checked_before_anything_moves(make):
    model = small_model()
    source, target = padded(SOURCES), tokens(3, 6)
    cache = DecoderCache(2, make=make)
    first = cached_logits(model, source, target[:, :3], 3, cache)
    for rows in ([0, 3], [-1]):
        with pytest.raises(ValueError, match="rows"):
            cache.reorder(rows)
    DecoderCache(2, make=make).reorder([9])  # empty: no rows to move
    with torch.no_grad():
        rest = model.decode(target[:, 3:], model.encode(source), source, cache=cache)
    plain = plain_logits(model, source, target)
    assert_same(torch.cat((first, rest), dim=1), plain)


@each_cache
@pytest.mark.parametrize("n", range(6))
def test_going_back_in_a_decoder(make, n):
    """x-transformers#187: crop, then other tokens, as if nothing had been there."""
    model = small_model()
    source, target = padded(SOURCES, left=True), padded(TARGETS, left=True)
    cache = DecoderCache(2, make=make)
    with torch.no_grad():
        memory = model.encode(source)
        wrong = torch.cat((target[:, :n], tokens(3, 6 - n, seed=7)), dim=1)
        model.decode(wrong, memory, source, cache=cache)
        cache.crop(n)
        assert len(cache) == n
        new = model.decode(target[:, n:], memory, source, cache=cache)
    real = target[:, n:] != 0
    assert_same(new[real], plain_logits(model, source, target)[:, n:][real])


@each_cache
def test_back_to_nothing_forgets_the_source_too(make):
    model = small_model()
    cache = DecoderCache(2, make=make)
    cached_logits(model, padded(SOURCES), tokens(3, 4), 2, cache)
    cache.crop(0)
    assert cache.nbytes == 0
    source = tokens(2, 9)
    target = tokens(2, 3)
    cached = cached_logits(model, source, target, 1, cache)
    assert_same(cached, plain_logits(model, source, target))


class Broken(Exception):
    pass


def fail(*_, **__):
    raise Broken


def unguarded(*_):
    return contextlib.nullcontext()


def failing_attentions(model):
    """One block for each attention of the decoder, in which it fails."""
    for layer in model.decoder_layers:
        for module in (layer.self_attention, layer.cross_attention):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, "attend", fail)
                # the store is on its own: the model does not take it back
                patch.setattr(transformer, "undone_on_error", unguarded)
                yield


def failing_modules(model):
    """One block for each module that every step calls, in which it fails."""
    for name, module in model.named_modules():
        once = "cross_attention.key" in name or "cross_attention.value" in name
        ours = name.startswith(("target_", "decoder_")) and not once
        if ours and type(module) is not ModuleList:
            hook = module.register_forward_pre_hook(fail)
            yield
            hook.remove()


@each_cache
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("failing", [failing_attentions, failing_modules])
def test_a_step_that_fails_anywhere_is_as_if_it_had_not_begun(
    make, n_layers, start, failing
):
    """Then the same step again, or another."""
    model = small_model(n_layers=n_layers)
    source, target = padded(SOURCES), padded(TARGETS, left=True)
    plain, real = plain_logits(model, source, target), target != 0
    for then in ("again", "reorder", "crop"):
        cache = DecoderCache(n_layers, make=make)
        with torch.no_grad():
            memory = model.encode(source)
            if start:
                model.decode(target[:, :start], memory, source, cache=cache)
            for _ in failing(model):
                with pytest.raises(Broken):
                    model.decode(target[:, start:5], memory, source, cache=cache)
                assert len(cache) == start
            if then == "reorder":
                cache.reorder([0, 1, 2])
            elif then == "crop":
                cache.crop(start)
            assert len(cache) == start
            new = model.decode(target[:, start:], memory, source, cache=cache)
            here = real[:, start:]
            assert_same(new[here], plain[:, start:][here])


@each_cache
@pytest.mark.parametrize("change", ["half", "grad"])
def test_a_model_that_changed_is_refused(make, change):
    """Converted, or with gradients: what came before no longer fits."""
    model = small_model()
    source, target = padded(SOURCES), tokens(3, 4)
    cache = DecoderCache(2, make=make)
    cached_logits(model, source, target[:, :2], 1, cache)
    if change == "half":
        model = model.float()
        with torch.no_grad(), pytest.raises(TypeError, match="float32.*float64"):
            model.decode(target[:, 2:], model.encode(source), source, cache=cache)
    else:
        memory = model.encode(source).detach()
        with pytest.raises(ValueError, match="require gradients"):
            model.decode(target[:, 2:], memory, source, cache=cache)
    assert len(cache) == 2


@each_cache
def test_each_layer_has_its_own_store(make):
    """x-transformers#187: state that reached the wrong layer."""
    model = small_model()
    source, target = padded(SOURCES), tokens(3, 4)
    cache = DecoderCache(2, make=make)
    assert len(cache.layers) == 2
    with torch.no_grad():
        memory = model.encode(source)
        model.decode(target[:, :3], memory, source, cache=cache)
        swapped = copy.deepcopy(cache)
        swapped.layers.reverse()
        right = model.decode(target[:, 3:], memory, source, cache=cache)
        wrong = model.decode(target[:, 3:], memory, source, cache=swapped)
    assert_same(right, plain_logits(model, source, target)[:, 3:])
    assert (right - wrong).abs().max() > 1e-3


@each_cache
@pytest.mark.parametrize("kind", [{}, {"d_k": 3, "d_v": 5}, {"dtype": torch.float32}])
@pytest.mark.equation("eq-kv-bytes")
def test_a_decoders_bytes_are_those_of_the_formula(make, kind):
    model = small_model(**kind)
    source, target = padded(SOURCES), tokens(3, 7)
    cache = DecoderCache(2, make=make)
    cached_logits(model, source, target, 1, cache)
    d_k, d_v = kind.get("d_k", 4), kind.get("d_v", 4)
    element = 4 if kind.get("dtype") == torch.float32 else 8
    both = [kv_cache_bytes(2, 4, d_k, n, 3, element, d_v=d_v) for n in (7, 5)]
    assert cache.nbytes == sum(both)
    held = [s for x in cache.layers for s in (x.self_attention, x.cross_attention)]
    assert cache.nbytes == sum(s.keys.nbytes + s.values.nbytes for s in held)
    assert cache.reserved_nbytes >= cache.nbytes


@each_cache
def test_a_model_on_the_meta_device(make):
    model = small_model().to("meta")
    source, target = (torch.ones(2, 5, dtype=torch.long, device="meta"),) * 2
    cache = DecoderCache(2, make=make)
    with torch.no_grad():
        memory = model.encode(source)
        for piece in target.split(2, dim=1):
            assert model.decode(piece, memory, source, cache=cache).shape[2] == 11
            memory = memory.clone()  # another tensor, whose values nobody can compare
    assert len(cache) == 5


class DecoderMachine(RuleBasedStateMachine):
    """Any order of operations on a decoder's cache, beside a list of the tokens."""

    make = KVCache
    model = None

    def __init__(self):
        super().__init__()
        self.cache = DecoderCache(2, make=type(self).make)
        self.start(seed=0)

    def start(self, seed: int) -> None:
        order = torch.randperm(3, generator=seeded(seed))
        self.source = padded(SOURCES)[order]
        with torch.no_grad():
            self.memory = self.model.encode(self.source)
        self.target = torch.zeros(3, 0, dtype=torch.long)

    @rule(n_new=st.integers(1, 3), seed=st.integers(0, 50), empty=st.booleans())
    @precondition(lambda self: self.target.shape[1] < 12)
    def decode(self, n_new, seed, empty):
        new = tokens(len(self.target), n_new, seed=seed)
        if empty:  # padding anywhere
            new = new * (tokens(len(new), n_new, seed=seed + 1) > 5)
        target = torch.cat((self.target, new), dim=1)
        with torch.no_grad():
            found = self.model.decode(new, self.memory, self.source, cache=self.cache)
            plain = self.model.decode(target, self.memory, self.source)
        real = new != 0
        assert_same(found[real], plain[:, -n_new:][real])
        self.target = target

    @rule(data=st.data())
    def reorder(self, data):
        n = len(self.target)
        rows = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
        self.cache.reorder(rows)
        self.memory, self.source = self.memory[rows], self.source[rows]
        self.target = self.target[rows]

    @rule(data=st.data())
    def crop(self, data):
        n = data.draw(st.integers(0, self.target.shape[1]))
        self.cache.crop(n)
        self.target = self.target[:, :n]

    @rule(seed=st.integers(0, 5))
    def reset(self, seed):
        self.cache.reset()
        self.start(seed)

    @rule(n_new=st.integers(1, 3), layer=st.integers(0, 1), across=st.booleans())
    def fail(self, n_new, layer, across):
        layer = self.model.decoder_layers[layer]
        module = layer.cross_attention if across else layer.self_attention
        whole, module.attend = module.attend, None  # calling None is a TypeError
        try:
            with torch.no_grad(), pytest.raises(TypeError):
                self.model.decode(
                    tokens(len(self.target), n_new), self.memory, self.source,
                    cache=self.cache,
                )  # fmt: skip
        finally:
            module.attend = whole

    @rule()
    def refuse(self):
        before = self.cache.nbytes
        if len(self.cache):
            with pytest.raises(ValueError, match="rows"):
                self.cache.reorder([99])
        with pytest.raises(ValueError, match="crop"):
            self.cache.crop(self.target.shape[1] + 1)
        assert len(self.cache) == self.target.shape[1]
        assert before >= self.cache.nbytes  # a failed step's leftovers may be gone

    @invariant()
    def lengths_agree(self):
        assert len(self.cache) == self.target.shape[1]


@each_cache
def test_any_order_of_operations(make):
    """transformers#26344, keys_values#45, x-transformers#187: state lags behind."""
    model = small_model()
    settled = {"make": staticmethod(make), "model": model}
    machine = type("Machine", (DecoderMachine,), settled)
    run_state_machine_as_test(
        machine, settings=settings(quick, max_examples=25, stateful_step_count=12)
    )


@pytest.mark.parametrize("layer", [0, 1])
def test_rows_that_moved_only_in_part_are_not_kept(monkeypatch, layer):
    """Out of memory while rows move: better an empty cache than fluent nonsense."""
    model, cache = small_model(), DecoderCache(2)
    source, target = tokens(2, 4), tokens(2, 3, seed=1)
    with torch.no_grad():
        memory = model.encode(source)
        model.decode(target, memory, source, cache=cache)

    def fails(rows):
        raise MemoryError("no room to move")

    monkeypatch.setattr(cache.layers[layer].cross_attention, "reorder", fails)
    with pytest.raises(MemoryError, match="no room to move"):
        cache.reorder([1, 0])
    assert len(cache) == 0
    assert cache.nbytes == 0


@pytest.mark.parametrize("other", [0, 1], ids=["keys", "values"])
def test_keys_and_values_of_another_source_are_refused(other):
    """They may be made of two tensors; neither may change."""
    query, key, value = drawn()
    sources = [normal(2, 6, 5, seed=seed) for seed in (1, 2)]
    store, mix = FrozenKVCache(), attention

    def attend(*made_of):
        project = partial(lambda *_: (key, value), *made_of)
        return store.attend(mix, query, project, causal=False)

    first = attend(*sources)
    assert_same(attend(*(x.clone() for x in sources)), first)
    sources[other] = sources[other] + 1
    with pytest.raises(ValueError, match=r"another source: reset it"):
        attend(*sources)


def test_a_source_that_is_named_by_keyword_only_is_taken_on_trust():
    """What ``project`` would be made of stands in its positional arguments, if any."""
    key, value = drawn()[1:]
    project = partial(lambda key, value: (key, value), key=key, value=value)
    store = FrozenKVCache()
    query = drawn()[0]
    expected = attention(query, key, value)
    for _ in range(2):
        assert_same(store.attend(attention, query, project), expected)
