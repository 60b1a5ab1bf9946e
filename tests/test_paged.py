"""PagedAttention: blocks, their owners, attention through a table, shared prefixes.

That ``PagedKVCache`` keeps the contract of the ``cache`` seam is in test_caches.py,
where it is one line.
"""

import copy
import gc
import itertools
import json
import math
import pickle
import random
from collections import Counter
from functools import partial
from importlib.resources import files

import pytest
import torch
from helpers import assert_same, normal, padded, plain_logits, small_model, tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from seams import loop_attention
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from aiayn import (
    BlockAllocator,
    DecoderCache,
    GroupedQueryAttention,
    MultiHeadAttention,
    OutOfBlocks,
    PagedKVCache,
    PrefixCache,
    attention,
    beam_search,
    flash_attention,
    fused_attention,
    greedy_decode,
    paged,
    paged_attention,
)
from aiayn.paged import blocks_needed, slot

CHAPTER = "12_paged"
quick = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# --- blocks and slots -----------------------------------------------------------------


@pytest.mark.equation("eq-blocks-needed")
def test_blocks_are_counted_by_rounding_up():
    """MInference#201: no block more where the length is a multiple already."""
    assert [blocks_needed(n, 2) for n in range(6)] == [0, 1, 1, 2, 2, 3]
    assert blocks_needed(16, 8) == 2
    for size, n in itertools.product(range(1, 11), range(200)):
        assert blocks_needed(n, size) == len(range(0, n, size))
    assert blocks_needed(2**62, 16) == 2**58  # no float in between


@pytest.mark.equation("res-block-waste")
def test_less_than_one_block_is_wasted():
    for size in range(1, 40):
        wasted = [size * blocks_needed(n, size) - n for n in range(500)]
        assert set(wasted) == set(range(size))  # the bound is reached
        n = 10 * size
        assert sum(wasted[1 : n + 1]) / n == (size - 1) / 2


@pytest.mark.equation("eq-slot")
def test_a_slot_follows_from_the_table():
    """mistral.rs#552: a table that grows to [7, 2, 5] at block size 2."""
    table = []
    for p, (block, expected) in enumerate(
        [(7, 14), (None, 15), (2, 4), (None, 5), (5, 10)]
    ):
        if block is not None:
            with pytest.raises(ValueError, match=f"position={p} is beyond"):
                slot(table, p, 2)
            table.append(block)
        assert slot(table, p, 2) == expected
        assert len(table) == blocks_needed(p + 1, 2)
    assert [slot(table, p, 2) for p in range(5)] == [14, 15, 4, 5, 10]


@pytest.mark.equation("eq-slot")
@pytest.mark.parametrize("size", range(1, 10))
def test_a_cache_writes_where_the_slot_says(size):
    """A new block exactly at the boundary, at every length."""
    allocator = BlockAllocator(40, size)
    store = PagedKVCache(allocator)
    key = normal(2, 1, 12, 3)
    for n in range(12):
        assert [len(row) for row in store.tables] == [blocks_needed(n, size)] * (
            2 if n else 0
        )
        new = key[:, :, n : n + 1]
        store.attend(attention, new, lambda new=new: (new, new))
    for row, p in itertools.product(range(2), range(12)):
        at = slot(store.tables[row], p, size)
        assert torch.equal(allocator.keys[at // size, :, at % size], key[row, :, p])


# --- the allocator --------------------------------------------------------------------


def books(allocator: BlockAllocator) -> list[int]:
    return [allocator.references(block) for block in range(allocator.n_blocks)]


def test_a_child_survives_its_parent_and_nothing_is_freed_twice():
    """atlas#373: freed while still referenced, freed twice."""
    pool = BlockAllocator(4, 2)
    parent = pool.allocate(3)
    pool.share(parent[:2])
    pool.free(parent)
    assert books(pool) == [1, 1, 0, 0]
    assert set(pool.allocate(2)).isdisjoint(parent[:2])  # in use: not handed out again
    pool.free([2, 3])
    pool.free(parent[:2])
    assert pool.n_free == 4
    for block in range(4):
        with pytest.raises(ValueError, match=f"cannot free block {block}"):
            pool.free([block])
        with pytest.raises(ValueError, match=f"cannot share block {block}"):
            pool.share([block])
    assert pool.n_free == 4
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3]


def test_a_child_reads_on_when_its_parent_is_gone():
    """atlas#373: what it holds is not given to anybody, until it goes too."""
    pool = BlockAllocator(6, 2)
    parent, child, other = (PagedKVCache(pool) for _ in range(3))
    key, value = filled(parent, 5)
    pool.share(parent.tables[0][:2])
    child.adopt([parent.tables[0][:2]])
    parent.reset()
    filled(other, 8)  # all that is free
    assert pool.n_free == 0
    assert torch.equal(child.keys, key[:, :, :4])
    assert torch.equal(child.values, value[:, :, :4])
    for store in (child, other):
        blocks = store.tables[0]
        store.reset()
        with pytest.raises(ValueError, match="cannot free"):
            pool.free(blocks)
    assert pool.n_free == 6


def test_several_blocks_or_none():
    """openvino.genai#4481: a pool that runs out changes nothing."""
    pool = BlockAllocator(3, 4)
    first = pool.allocate(1)
    with pytest.raises(OutOfBlocks, match="3 blocks needed, 2 free") as caught:
        pool.allocate(3)
    assert (caught.value.needed, caught.value.free) == (3, 2)
    assert isinstance(caught.value, RuntimeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert books(pool) == [1, 0, 0]
    assert len({*first, *pool.allocate(2)}) == 3
    assert pool.allocate(0) == []


@pytest.mark.parametrize("name", ["share", "free"])
def test_a_list_with_one_wrong_block_changes_none(name):
    pool = BlockAllocator(4, 2)
    pool.allocate(2)
    for wrong in ([0, 3], [0, 1, 2]):
        with pytest.raises(ValueError, match="cannot"):
            getattr(pool, name)(wrong)
    for wrong, error in (
        ([0, 4], ValueError),
        ([0, -1], ValueError),
        ([0, "1"], TypeError),
    ):
        with pytest.raises(error, match="block"):
            getattr(pool, name)(wrong)
    with pytest.raises(ValueError, match="cannot free block 0 2×"):
        pool.free([0, 0])
    assert books(pool) == [1, 1, 0, 0]


class AllocatorMachine(RuleBasedStateMachine):
    """Any order of operations, beside a dictionary from blocks to counts."""

    def __init__(self):
        super().__init__()
        self.pool, self.counts = BlockAllocator(7, 2), Counter()

    @rule(n=st.integers(0, 9))
    def allocate(self, n):
        free = 7 - len(self.counts)
        if n > free:
            with pytest.raises(OutOfBlocks) as caught:
                self.pool.allocate(n)
            assert (caught.value.needed, caught.value.free) == (n, free)
            return
        blocks = self.pool.allocate(n)
        assert len(set(blocks)) == n
        assert not set(blocks) & set(self.counts)
        self.counts.update(blocks)

    @rule(blocks=st.lists(st.integers(-1, 7), max_size=4))
    def share(self, blocks):
        if any(b not in self.counts for b in blocks):
            with pytest.raises(ValueError, match="block"):
                self.pool.share(blocks)
        else:
            self.pool.share(blocks)
            self.counts.update(blocks)

    @rule(blocks=st.lists(st.integers(-1, 7), max_size=4))
    def free(self, blocks):
        wanted = Counter(blocks)
        if any(self.counts[b] < n for b, n in wanted.items()):
            with pytest.raises(ValueError, match="block"):
                self.pool.free(blocks)
        else:
            self.pool.free(blocks)
            self.counts = self.counts - wanted  # those without any are gone
        self.counts += Counter()

    @rule(data=st.data())
    @precondition(lambda self: self.counts)
    def free_one(self, data):
        block = data.draw(st.sampled_from(sorted(self.counts)))
        self.pool.free([block])
        self.counts -= Counter([block])

    @invariant()
    def books_agree(self):
        assert books(self.pool) == [self.counts[b] for b in range(7)]
        assert self.pool.n_free == 7 - len(self.counts)
        free = set(self.pool._free)
        assert len(free) == self.pool.n_free
        assert not free & set(self.counts)


@pytest.mark.equation("res-block-books")
def test_the_allocators_books_in_any_order():
    run_state_machine_as_test(
        AllocatorMachine, settings=settings(quick, stateful_step_count=40)
    )


def test_memory_may_change_its_kind_only_while_nobody_uses_it():
    pool = BlockAllocator(4, 2)
    store = PagedKVCache(pool)
    key = normal(1, 2, 3, 4)
    store.attend(attention, key, lambda: (key, key))
    memory = pool.keys
    other = PagedKVCache(pool)
    for wrong, error in ((key.float(), TypeError), (key[..., :3], ValueError)):
        with pytest.raises(error, match="keys"):
            other.attend(attention, wrong, lambda x=wrong: (x, x))
        assert len(other) == 0
        assert pool.keys is memory
    store.reset()
    other.attend(attention, key, lambda: (key, key))
    assert pool.keys is memory  # the same kind: kept
    other.reset()
    short = key.float()[..., :3]
    other.attend(attention, short, lambda: (short, short))
    assert pool.keys.dtype == torch.float32
    assert pool.keys.shape == (4, 2, 2, 3)


# --- attention through a table --------------------------------------------------------


def in_pool(rows: list[Tensor], size: int, *, seed: int = 0, spare: int = 2):
    """Rows (heads, length, width), scattered over a pool full of NaN; their table."""
    counts = [math.ceil(x.shape[1] / size) for x in rows]
    numbers = list(range(sum(counts) + spare))
    random.Random(seed).shuffle(numbers)
    heads, _, width = rows[0].shape
    pool = rows[0].new_full((len(numbers), heads, size, width), math.nan)
    table = torch.full((len(rows), max(counts, default=0) + 1), -1)
    for r, x in enumerate(rows):
        for p in range(x.shape[1]):
            if p % size == 0:
                table[r, p // size] = numbers.pop()
            pool[table[r, p // size], :, p % size] = x[:, p]
    return pool, table


def ragged(lengths, *, n_kv_heads=2, d_k=4, d_v=5, seed=0, dtype=torch.float64):
    keys = [
        normal(n_kv_heads, n, d_k, seed=seed + i, dtype=dtype)
        for i, n in enumerate(lengths)
    ]
    values = [
        normal(n_kv_heads, n, d_v, seed=seed + 50 + i, dtype=dtype)
        for i, n in enumerate(lengths)
    ]
    return keys, values


def row_by_row(query, keys, values, masks=None, *, causal=False, scale=None) -> Tensor:
    """Every row by itself, a key head for every head, one query after the other."""
    out = []
    for r, (key, value) in enumerate(zip(keys, values, strict=True)):
        group = query.shape[1] // len(key)
        key, value = (x.repeat_interleave(group, dim=0) for x in (key, value))
        mask = None if masks is None else masks[r]
        out.append(
            loop_attention(query[r], key, value, mask, causal=causal, scale=scale)
        )
    return torch.stack(out)


def paged_pair(keys, values, size, seed=0):
    (key_pool, table), (value_pool, again) = (
        in_pool(x, size, seed=seed) for x in (keys, values)
    )
    assert torch.equal(table, again)
    return key_pool, value_pool, table


@pytest.mark.equation("eq-paged-attention")
@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("n_heads", [2, 6])
def test_rows_of_unequal_length_through_a_table(size, n_heads):
    """pypto#470, accel#10: lengths 1, 4, 5 and 9, blocks anywhere, NaN around them."""
    lengths = [1, 4, 5, 9]
    keys, values = ragged(lengths)
    query = normal(4, n_heads, 1, 4, seed=9)
    key_pool, value_pool, table = paged_pair(keys, values, size)
    found = paged_attention(query, key_pool, value_pool, table, torch.tensor(lengths))
    assert_same(found, row_by_row(query, keys, values))


@pytest.mark.equation("eq-paged-attention")
@quick
@given(data=st.data())
def test_any_lengths_queries_masks_and_parts(data):
    """Parts of a few tokens, to be merged; every kind of mask; either flag."""
    draw = data.draw
    lengths = draw(st.lists(st.integers(0, 13), min_size=1, max_size=4))
    size, n_queries = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    n_kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    causal, longest = draw(st.booleans()), max(lengths)
    scale = draw(st.sampled_from([None, 0.3]))
    keys, values = ragged(lengths, n_kv_heads=n_kv_heads, seed=draw(st.integers(0, 20)))
    query = normal(len(lengths), n_kv_heads * group, n_queries, 4, seed=7)
    key_pool, value_pool, table = paged_pair(keys, values, size)
    full = [len(lengths), n_kv_heads * group, n_queries, longest]
    shape = [draw(st.sampled_from([1, n])) for n in full]
    drop = draw(st.integers(0, 2))
    shape = shape[drop:] if all(n == 1 for n in shape[:drop]) else shape
    mask = draw(st.sampled_from([None, normal(*shape, seed=3) > 0]))
    masks = mask
    if mask is not None:
        whole = mask.expand(*full)
        masks = [whole[r, :, :, :n] for r, n in enumerate(lengths)]
    at_once, paged.AT_ONCE = paged.AT_ONCE, draw(st.sampled_from([1, 4, 1024]))
    try:
        found = paged_attention(
            query, key_pool, value_pool, table, torch.tensor(lengths), mask,
            causal=causal, scale=scale,
        )  # fmt: skip
    finally:
        paged.AT_ONCE = at_once
    expected = row_by_row(query, keys, values, masks, causal=causal, scale=scale)
    assert_same(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_order_in_memory_changes_no_bit(size, dtype):
    """pypto#470: table [7, 2, 5] against [0, 1, 2]; views against copies."""
    lengths = [33, 33, 5]
    keys, values = ragged(lengths, d_k=16, d_v=16, dtype=dtype)
    query = normal(3, 4, 2, 16, seed=4, dtype=dtype)
    found = []
    for seed in range(4):
        pools = paged_pair(keys, values, size, seed)
        found.append(paged_attention(query, *pools, torch.tensor(lengths), causal=True))
    pools = [
        torch.stack([
            torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % size))
            .unflatten(1, (-1, size)).transpose(0, 1)
            for x in both[:2]
        ], dim=1).flatten(0, 1)
        for both in (keys, values)
    ]  # fmt: skip
    table = (
        torch.arange(len(pools[0])).view(-1, 2).T.contiguous()
    )  # column by column: views
    views = paged_attention(
        query[:2], *pools, table, torch.tensor(lengths[:2]), causal=True
    )
    assert torch.equal(views, found[0][:2])
    for other in found[1:]:
        assert torch.equal(other, found[0])
    assert_same(found[0], row_by_row(query, keys, values, causal=True), 1e-5)


def test_the_table_of_the_report_against_neighbours():
    """pypto#470: blocks 7, 2 and 5 hold what 0, 1 and 2 do."""
    [key], [value] = ragged([5])
    query, lengths = normal(1, 4, 1, 4, seed=1), torch.tensor([5])
    found = []
    for table in ([7, 2, 5], [0, 1, 2]):
        pools = [x.new_full((8, 2, 2, x.shape[-1]), math.nan) for x in (key, value)]
        for p, block in ((p, table[p // 2]) for p in range(5)):
            for pool, x in zip(pools, (key, value), strict=True):
                pool[block, :, p % 2] = x[:, p]
        found.append(paged_attention(query, *pools, torch.tensor([table]), lengths))
    assert torch.equal(*found)
    assert_same(found[0], row_by_row(query, [key], [value]))


def test_free_slots_never_matter():
    """vllm#641, flash-attention#1745: weight 0 times NaN would be NaN."""
    lengths = [5, 3]
    keys, values = ragged(lengths)
    pools = paged_pair(keys, values, 4)
    query, ends = normal(2, 2, 1, 4), torch.tensor(lengths)
    expected = paged_attention(query, *pools, ends)
    for filler in (math.inf, -math.inf, 1e300, 0.0):
        filled = [
            x.nan_to_num(nan=filler, posinf=filler, neginf=filler) for x in pools[:2]
        ]
        assert torch.equal(paged_attention(query, *filled, pools[2], ends), expected)
    assert expected.isfinite().all()


@pytest.mark.parametrize("wrong", [-1, 7, 2**40])
def test_table_entries_that_are_no_block_are_refused(wrong):
    """Read as an index, -1 would be the last block, somebody else's."""
    query, pool = normal(1, 1, 1, 2), normal(7, 1, 2, 2)
    table = torch.tensor([[3, wrong, wrong]])
    for n in (1, 2):  # where no token is, the entry is not looked at
        paged_attention(query, pool, pool, table, torch.tensor([n]))
    with pytest.raises(ValueError, match=f"table.*got {wrong} in row 0, column 1"):
        paged_attention(query, pool, pool, table, torch.tensor([3]))
    for n in (-1, 7):
        with pytest.raises(
            ValueError, match=f"lengths must be 0 to 6.*got {n} in row 0"
        ):
            paged_attention(query, pool, pool, table, torch.tensor([n]))


def test_a_scale_is_a_number_and_a_width_is_none_without_columns():
    """True is the number 1 to Python; and 1/√0 is no number."""
    query, pool = normal(1, 1, 1, 2), normal(3, 1, 2, 2)
    table, lengths = torch.tensor([[0]]), torch.tensor([2])
    for scale in (True, False):
        with pytest.raises(TypeError, match=f"scale must be .*got {scale}"):
            paged_attention(query, pool, pool, table, lengths, scale=scale)
    one = paged_attention(query, pool, pool, table, lengths, scale=1)
    assert torch.equal(
        one, paged_attention(query, pool, pool, table, lengths, scale=1.0)
    )
    for scale in (None, 2.0):
        with pytest.raises(ValueError, match="width d_k of at least 1, got 0 and 0"):
            paged_attention(
                query[..., :0], pool[..., :0], pool, table, lengths, scale=scale
            )


def test_rows_without_tokens_give_zeros():
    query, pool = (
        normal(2, 2, 3, 4),
        torch.full((2, 1, 2, 4), math.nan, dtype=torch.float64),
    )
    table = torch.tensor([[-1], [-1]])
    found = paged_attention(query, pool, pool, table, torch.tensor([0, 0]))
    assert_same(found, torch.zeros(2, 2, 3, 4))
    nothing = paged_attention(
        query[:0], pool, pool, table[:0], torch.tensor([], dtype=torch.long)
    )
    assert nothing.shape == (0, 2, 3, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_sums_in_float32(dtype):
    lengths = [70, 50]
    keys, values = ragged(lengths, d_k=8, d_v=8, dtype=dtype)
    query = normal(2, 4, 1, 8, dtype=dtype)
    found = paged_attention(query, *paged_pair(keys, values, 16), torch.tensor(lengths))
    assert found.dtype == dtype
    wide = [[x.double() for x in rows] for rows in (keys, values)]
    exact = row_by_row(query.double(), *wide)
    assert (found.double() - exact).abs().max() < 2 * torch.finfo(dtype).eps


def test_large_scores_do_not_overflow():
    """Scores of ±1000, in parts of one block each."""
    key = torch.tensor([1000.0, -1000.0, 999.0]).view(1, 3, 1)
    value = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
    at_once, paged.AT_ONCE = paged.AT_ONCE, 1
    try:
        found = paged_attention(
            torch.ones(1, 1, 1, 1),
            *paged_pair([key], [value], 1),
            torch.tensor([3]),
            scale=1.0,
        )
    finally:
        paged.AT_ONCE = at_once
    assert found.item() == pytest.approx(1.537883, abs=1e-6)


def test_gradients_reach_the_query():
    keys, values = ragged([5, 3])
    pools = paged_pair(keys, values, 2)
    query = normal(2, 2, 1, 4).requires_grad_()
    loss = lambda found: (found * normal(2, 2, 1, 5, seed=5)).sum()
    ours = torch.autograd.grad(
        loss(paged_attention(query, *pools, torch.tensor([5, 3]))), query
    )
    theirs = torch.autograd.grad(loss(row_by_row(query, keys, values)), query)
    assert_same(ours[0], theirs[0])


# --- the cache ------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The largest tensor that is made while it is on, in elements."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        bases = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in bases:
                self.elements = max(self.elements, x.numel())
        return result


def filled(store, length, *, batch=1, heads=2, width=8):
    key, value = (
        normal(batch, heads, length, width),
        normal(batch, heads, length, width, seed=1),
    )
    store.attend(attention, key, lambda: (key, value), causal=True)
    return key, value


@pytest.mark.parametrize("module", [attention, fused_attention, flash_attention])
def test_a_step_reads_blocks_in_place(module):
    """No copy of the whole past: scratch is that of a part, however long it is."""
    for scattered, limit in ((False, 2 * 2 * 4096), (True, 2 * 1024 * 8)):
        allocator = BlockAllocator(600, 16)
        store = PagedKVCache(allocator)
        key, value = filled(store, 4096)
        if scattered:
            order = torch.randperm(256).tolist()
            for x in (allocator.keys, allocator.values):
                x[order] = x[:256].clone()
            store._tables = [[order[b] for b in store.tables[0]]]
        new = normal(1, 2, 1, 8, seed=2)
        with Largest() as largest:
            found = store.attend(module, new, lambda new=new: (new, new), causal=True)
        both = torch.cat((key, new), 2), torch.cat((value, new), 2)
        assert_same(found, attention(new, *both))
        assert largest.elements <= limit < key.numel()


@pytest.mark.parametrize(
    "attend", [attention, fused_attention, flash_attention, loop_attention]
)
@pytest.mark.parametrize("make", [
    MultiHeadAttention,
    partial(GroupedQueryAttention, n_kv_heads=1),
    partial(GroupedQueryAttention, n_kv_heads=2),
])  # fmt: skip
def test_every_attention_of_the_book_and_one_that_is_not_known(make, attend):
    """Prefill, chunks and single steps, with a mask; as without a cache."""
    torch.manual_seed(0)
    module = make(16, 4, attend=attend).double().requires_grad_(False)
    x, real = normal(3, 12, 16), normal(3, 1, 1, 12, seed=1) > -1
    store, found = PagedKVCache(BlockAllocator(60, 3)), []
    for piece, end in zip(
        x.split([5, 4, 1, 1, 1], dim=1), (5, 9, 10, 11, 12), strict=True
    ):
        found.append(
            module(piece, piece, piece, real[..., :end], causal=True, cache=store)
        )
    assert_same(torch.cat(found, 1), module(x, x, x, real, causal=True))


def test_a_mix_that_is_not_known_gets_what_it_expects():
    """A bias on scores, a subclass with a gate: never replaced by plain attention."""

    def shifted(query, key, value, mask=None, *, causal=False):
        assert key.shape[:3] == value.shape[:3] == (1, 2, 6)
        return attention(query, key, value, mask, causal=causal) + key.mean(
            dim=2, keepdim=True
        )

    class Gated(MultiHeadAttention):
        def mix(self, *arguments, **options):
            return 0.5 * super().mix(*arguments, **options)

    key = normal(1, 2, 6, 4)
    store = PagedKVCache(BlockAllocator(9, 2))
    filled(store, 5, width=4)
    store.reset()
    store.attend(attention, key[:, :, :5], lambda: (key[:, :, :5],) * 2)
    found = store.attend(shifted, key[:, :, 5:], lambda: (key[:, :, 5:],) * 2)
    assert_same(
        found, attention(key[:, :, 5:], key, key) + key.mean(dim=2, keepdim=True)
    )
    gated = Gated(8, 2).double().requires_grad_(False)
    x, store = normal(1, 5, 8), PagedKVCache(BlockAllocator(9, 2))
    steps = [gated(y, y, y, causal=True, cache=store) for y in x.split(1, dim=1)]
    assert_same(torch.cat(steps, 1), gated(x, x, x, causal=True))


@pytest.mark.equation("eq-paged-attention")
@pytest.mark.parametrize("size", range(1, 10))
def test_a_decoder_with_rows_of_unequal_length(size):
    """accel#10: paged prefill and steps, the contiguous cache, and one whole pass."""
    model = small_model(attention=GroupedQueryAttention, n_kv_heads=2)
    rows = [[1], [1, 4, 5, 6], [1, 3, 5, 7, 9], [1, 3, 4, 5, 6, 7, 8, 9, 10]]
    target, source = padded(rows, left=True), tokens(4, 5)
    plain, real = plain_logits(model, source, target), target != 0
    pool = BlockAllocator(200, size)
    for pieces in ([9], [5, 4], [1] * 9, [6, 1, 2]):
        caches = DecoderCache(2), DecoderCache(2, make=lambda: PagedKVCache(pool))
        with torch.no_grad():
            memory, parts = model.encode(source), target.split(pieces, 1)
            both = [
                torch.cat([model.decode(y, memory, source, cache=c) for y in parts], 1)
                for c in caches
            ]  # fmt: skip
        assert_same(both[1][real], plain[real])
        assert_same(both[1][real], both[0][real])
        assert (
            caches[0].layers[0].self_attention.nbytes
            == caches[1].layers[0].self_attention.nbytes
        )
        caches[1].reset()
        assert pool.n_free == pool.n_blocks


def test_rows_share_until_one_writes():
    """The tail is copied for all but the last; full blocks never are."""
    pool = BlockAllocator(20, 4)
    store = PagedKVCache(pool)
    key, value = filled(store, 6)
    store.reorder([0, 0, 0])
    assert store.tables == [[0, 1]] * 3
    assert pool.n_free == 18
    assert store.reserved_nbytes == 2 * pool.block_nbytes < store.nbytes
    new = normal(3, 2, 1, 8, seed=3)
    store.attend(attention, new, lambda: (new, new))
    assert store.tables == [[0, 2], [0, 3], [0, 1]]
    assert books(pool)[:5] == [3, 1, 1, 1, 0]
    assert_same(store.keys, torch.cat((key.expand(3, -1, -1, -1), new), 2))
    assert_same(store.values, torch.cat((value.expand(3, -1, -1, -1), new), 2))
    two = normal(3, 2, 1, 8, seed=4)
    store.attend(attention, two, lambda: (two, two))  # 8 tokens: the tail is full
    store.reorder([1, 1])
    three = normal(2, 2, 1, 8, seed=5)
    store.attend(attention, three, lambda: (three, three))
    assert [row[:2] for row in store.tables] == [[0, 3]] * 2  # full, shared, not copied
    store.reset()
    assert pool.n_free == 20


def test_going_back_gives_blocks_back():
    pool = BlockAllocator(20, 4)
    store = PagedKVCache(pool)
    filled(store, 11, batch=2)
    for n, free in ((9, 14), (8, 16), (5, 16), (4, 18), (1, 18), (0, 20)):
        store.crop(n)
        assert (len(store), pool.n_free) == (n, free)


def test_going_back_into_a_full_block_that_is_shared():
    """After a crop it is a tail again: a new token must not show in the other row."""
    pool = BlockAllocator(20, 4)
    first = PagedKVCache(pool)
    filled(first, 8)
    tables = first.tables
    pool.share(tables[0])
    second = PagedKVCache(pool)
    second.adopt(tables)
    second.crop(6)
    before = first.keys
    new = torch.full((1, 2, 1, 8), 7.0, dtype=torch.float64)
    second.attend(attention, new, lambda: (new, new))
    assert torch.equal(first.keys, before)
    assert torch.equal(second.keys, torch.cat((before[:, :, :6], new), 2))
    assert second.tables[0][0] == tables[0][0]
    assert second.tables[0][1] != tables[0][1]


@pytest.mark.parametrize("n_new", [1, 4, 9])
def test_running_out_loses_nothing(n_new):
    """openvino.genai#4481: the batch needs one block more than there are."""
    pool = BlockAllocator(6, 2)
    store, other = PagedKVCache(pool), PagedKVCache(pool)
    filled(store, 3, batch=2)
    filled(other, 3)
    rows, others = 2, other.keys
    if n_new == 1:  # only the copy of a shared tail would need a block
        store.reorder([0, 1, 1])
        rows = 3
    held, tables, counts = store.keys, store.tables, books(pool)
    new = normal(rows, 2, n_new, 8, seed=6)
    with pytest.raises(OutOfBlocks):
        store.attend(attention, new, lambda: (new, new))
    with pytest.raises(OutOfBlocks):
        store.check_room(n_new)
    assert (store.tables, books(pool)) == (tables, counts)
    assert torch.equal(store.keys, held)
    assert torch.equal(other.keys, others)


@pytest.mark.parametrize("when", ["write", "mix", "copy"])
def test_a_call_that_fails_gives_its_blocks_back(when, monkeypatch):
    """A shared tail was copied for it: the row has its old tail again."""
    pool = BlockAllocator(20, 4)
    store = PagedKVCache(pool)
    filled(store, 6)
    store.reorder([0, 0])
    before = store.tables, books(pool), store.keys, len(store)
    new = normal(2, 2, 5, 8, seed=6)

    def broken(*_, **__):
        raise KeyboardInterrupt

    if when == "write":
        monkeypatch.setattr(store, "_write", broken)
    if when == "copy":
        monkeypatch.setattr("aiayn.paged.pick", broken)
    with pytest.raises(KeyboardInterrupt):
        store.attend(broken, new, lambda: (new, new))
    assert (store.tables, books(pool)) == before[:2]
    assert torch.equal(store.keys, before[2])
    assert len(store) == before[3]


@pytest.mark.usefixtures("no_shape_checks")
def test_blocks_may_come_from_an_iterator():
    """It is looked at twice; the second look must not find it empty."""
    pool = BlockAllocator(3, 2)
    [block] = pool.allocate()
    pool.share(iter([block]))
    assert pool.references(block) == 2
    pool.free(iter([block, block]))
    assert pool.n_free == 3


def test_a_decoder_out_of_blocks_goes_on_after_room_is_made():
    """One pool for both layers: the second finds it empty half-way through a step."""
    model = small_model()
    source, target = tokens(2, 4), tokens(2, 9, seed=1)
    pool = BlockAllocator(11, 3)
    cache = DecoderCache(2, make=lambda: PagedKVCache(pool))
    stores = [layer.self_attention for layer in cache.layers]
    with torch.no_grad():
        memory = model.encode(source)
        model.decode(target[:, :6], memory, source, cache=cache)  # 2 · 2 · 2 blocks
        before = [(x.tables, x.keys, x.values) for x in stores], books(pool)
        with pytest.raises(OutOfBlocks, match="2 blocks needed, 1 free"):
            model.decode(target[:, 6:], memory, source, cache=cache)
        assert len(cache) == 6  # at once, and what the first layer added is free again
        assert (pool.n_free, books(pool)) == (3, before[1])
        for x, (tables, keys, values) in zip(stores, before[0], strict=True):
            assert x.tables == tables
            assert torch.equal(x.keys, keys)
            assert torch.equal(x.values, values)
        cache.reorder([1])
        found = model.decode(target[1:, 6:], memory[1:], source[1:], cache=cache)
    assert_same(found, plain_logits(model, source, target)[1:, 6:])


def test_a_first_step_that_runs_out_leaves_the_pool_empty():
    model = small_model()
    source, target = tokens(2, 4), tokens(2, 6, seed=1)
    pool = BlockAllocator(7, 3)
    cache = DecoderCache(2, make=lambda: PagedKVCache(pool))
    with torch.no_grad():
        memory = model.encode(source)
        with pytest.raises(OutOfBlocks, match="4 blocks needed, 3 free"):
            model.decode(target, memory, source, cache=cache)
        assert (len(cache), pool.n_free) == (0, 7)
        found = model.decode(target[:1], memory[:1], source[:1], cache=cache)
    assert_same(found, plain_logits(model, source, target)[:1])


@pytest.mark.usefixtures("no_shape_checks")
def test_room_is_looked_for_once_there_are_rows():
    """An empty cache cannot know how many will come; attend refuses then."""
    pool = BlockAllocator(2, 2)
    store = PagedKVCache(pool)
    store.check_room(100)
    x = normal(1, 2, 100, 8)
    with pytest.raises(OutOfBlocks, match="50 blocks needed, 2 free"):
        store.attend(attention, x, lambda: (x, x))
    assert (len(store), pool.n_free, books(pool)) == (0, 2, [0, 0])
    filled(store, 3)
    with pytest.raises(OutOfBlocks, match="1 blocks needed, 0 free"):
        store.check_room(2)
    for wrong, error in ((-1, ValueError), (1.0, TypeError)):
        with pytest.raises(error, match="n_new must be"):
            store.check_room(wrong)


def test_a_beam_search_shares_blocks_and_gives_them_back():
    """Fewer bytes than the beams one by one, and not a block lost, at every size."""
    model = small_model(seed=2, tie_embeddings=False)
    source = tokens(3, 5)
    plain = beam_search(model, source, beam_size=4, max_len=20)
    for size in (1, 2, 3, 16):
        pool, seen = BlockAllocator(600, size), []

        class Watched(PagedKVCache):
            def attend(self, *arguments, seen=seen, **options):
                heads = super().attend(*arguments, **options)
                seen.append((self.reserved_nbytes, self.nbytes))
                return heads

        cache = DecoderCache(2, make=lambda pool=pool, Watched=Watched: Watched(pool))
        found = beam_search(model, source, beam_size=4, max_len=20, cache=cache)
        assert [[h.tokens for h in row] for row in found] == [
            [h.tokens for h in row] for row in plain
        ]
        if size < 16:
            assert sum(x for x, _ in seen) < 0.9 * sum(y for _, y in seen)
        cache.reset()
        assert pool.n_free == 600
        assert books(pool) == [0] * 600


def test_reordering_moves_no_key(monkeypatch):
    pool = BlockAllocator(20, 4)
    store = PagedKVCache(pool)
    filled(store, 7, batch=2)
    memory = pool.keys.clone()
    with Largest() as largest:
        store.reorder([1, 0, 1, 1])
    assert largest.elements <= 4
    assert torch.equal(pool.keys.nan_to_num(), memory.nan_to_num())


def test_many_caches_in_one_pool_do_not_meet():
    pool = BlockAllocator(30, 2)
    stores, expected = [PagedKVCache(pool) for _ in range(3)], [[], [], []]
    for turn in range(12):
        i = turn * 7 % 3
        new = normal(1, 2, 1 + turn % 2, 4, seed=turn)
        stores[i].attend(attention, new, lambda new=new: (new, new))
        expected[i].append(new)
    for store, parts in zip(stores, expected, strict=True):
        assert torch.equal(store.keys, torch.cat(parts, 2))
    stores[1].reset()
    assert torch.equal(stores[0].keys, torch.cat(expected[0], 2))


def test_a_copy_takes_the_pool_along():
    store = PagedKVCache(BlockAllocator(9, 2))
    filled(store, 3)
    other = copy.deepcopy(store)
    other.reset()
    assert other.allocator.n_free == 9
    assert store.allocator.n_free == 7
    del other
    gc.collect()
    assert len(store) == 3


class CacheMachine(RuleBasedStateMachine):
    """Two caches and a shelf in one small pool, beside plain tensors."""

    def __init__(self):
        super().__init__()
        self.size = 3
        self.pool = BlockAllocator(14, self.size)
        self.stores = [PagedKVCache(self.pool), PagedKVCache(self.pool)]
        self.shelf = PrefixCache(self.pool)
        self.plain = {0: None, 1: None}
        self.seed = 0

    def check(self, i):
        """The garbage around what is held must not matter: make it NaN."""
        used = {}
        for store in self.stores:
            for row in store.tables:
                for p in range(len(store)):
                    used[row[p // self.size], p % self.size] = True
        for block in self.shelf._block_of.values():
            used |= {(block, place): True for place in range(self.size)}
        if self.pool.keys is not None:
            for block, place in itertools.product(range(14), range(self.size)):
                if (block, place) not in used:
                    self.pool.keys[block, :, place] = math.nan
                    self.pool.values[block, :, place] = math.nan

    @rule(i=st.integers(0, 1), n_new=st.integers(1, 5), rows=st.integers(1, 3),
          fails=st.booleans())  # fmt: skip
    def append(self, i, n_new, rows, fails):
        store, plain = self.stores[i], self.plain[i]
        rows = rows if plain is None else plain[0].shape[0]
        self.seed += 1
        key = normal(rows, 2, n_new, 4, seed=self.seed)
        value = normal(rows, 2, n_new, 5, seed=1000 + self.seed)
        query = normal(rows, 2, n_new, 4, seed=2000 + self.seed)
        both = (key, value) if plain is None else tuple(
            torch.cat(pair, 2) for pair in zip(plain, (key, value), strict=True)
        )  # fmt: skip
        before = books(self.pool), store.tables
        try:
            if fails:

                def mix(*_, **__):
                    raise ZeroDivisionError

                store.attend(mix, query, lambda: (key, value))
            else:
                found = store.attend(
                    attention, query, lambda: (key, value), causal=True
                )
        except (OutOfBlocks, ZeroDivisionError) as error:
            short = isinstance(error, OutOfBlocks)
            assert not short or error.needed > self.pool.n_free  # noqa: PT017
            assert (books(self.pool), store.tables) == before
            return
        assert_same(found, attention(query, *both, causal=True))
        self.plain[i] = both

    @rule(i=st.integers(0, 1), data=st.data())
    def reorder(self, i, data):
        if self.plain[i] is not None:
            n = self.plain[i][0].shape[0]
            rows = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4))
            free = self.pool.n_free
            self.stores[i].reorder(rows)
            assert self.pool.n_free >= free  # nothing is taken
            self.plain[i] = tuple(x[rows] for x in self.plain[i])

    @rule(i=st.integers(0, 1), data=st.data())
    def crop(self, i, data):
        if self.plain[i] is not None:
            n = data.draw(st.integers(0, self.plain[i][0].shape[2]))
            self.stores[i].crop(n)
            self.plain[i] = tuple(x[:, :, :n] for x in self.plain[i]) if n else None

    @rule(i=st.integers(0, 1))
    def fork(self, i):
        """The other cache begins with the full blocks of this one."""
        full = len(self.stores[i]) // self.size
        other = self.stores[1 - i]
        other.reset()
        self.plain[1 - i] = None
        if full and self.stores[i].tables:
            tables = [row[:full] for row in self.stores[i].tables]
            self.pool.share([b for row in tables for b in row])
            other.adopt(tables)
            self.plain[1 - i] = tuple(
                x[:, :, : full * self.size] for x in self.plain[i]
            )

    def tokens(self, i, row):
        """Every key is drawn anew, so it says which token it is."""
        return (self.plain[i][0][row, 0, :, 0] * 2**40).long()

    @rule(i=st.integers(0, 1), data=st.data())
    def file(self, i, data):
        if self.plain[i] is not None:
            row = data.draw(st.integers(0, len(self.plain[i][0]) - 1))
            self.shelf.insert(self.tokens(i, row), self.stores[i].tables[row])

    @rule(i=st.integers(0, 1), data=st.data())
    def find(self, i, data):
        """The other cache begins with what the shelf knows of this one."""
        if self.plain[i] is not None:
            row = data.draw(st.integers(0, len(self.plain[i][0]) - 1))
            found = self.shelf.match(self.tokens(i, row))
            self.stores[1 - i].reset()
            self.plain[1 - i] = None
            if found:
                self.stores[1 - i].adopt([found])
                n = len(found) * self.size
                self.plain[1 - i] = tuple(
                    x[row : row + 1, :, :n] for x in self.plain[i]
                )

    @rule(n=st.integers(1, 4))
    def evict(self, n):
        free = self.pool.n_free
        assert self.pool.n_free == free + self.shelf.evict(n)

    @rule(i=st.integers(0, 1))
    def reset(self, i):
        self.stores[i].reset()
        self.plain[i] = None

    @invariant()
    def what_is_held_is_what_was_written(self):
        self.check(0)
        for i, store in enumerate(self.stores):
            plain = self.plain[i]
            if plain is None:
                assert len(store) == 0
                assert store.keys is None
                continue
            assert torch.equal(store.keys, plain[0])
            assert torch.equal(store.values, plain[1])
            assert store.nbytes == sum(x.nbytes for x in plain)

    @invariant()
    def books_agree(self):
        """Counts are the entries of tables and the shelf; free is what nobody names."""
        named = Counter(b for s in self.stores for row in s.tables for b in row)
        named.update(self.shelf._block_of.values())
        assert books(self.pool) == [named[b] for b in range(14)]
        assert self.pool.n_free == 14 - len(named)
        for store in self.stores:
            needed = math.ceil(len(store) / self.size)
            assert all(len(row) == needed for row in store.tables)

    def teardown(self):
        for store in self.stores:
            store.reset()
        assert self.pool.n_free == 14 - len(self.shelf)
        self.shelf.evict(14)
        assert self.pool.n_free == 14


@pytest.mark.equation("res-block-books")
def test_caches_in_any_order_of_operations():
    run_state_machine_as_test(
        CacheMachine, settings=settings(quick, max_examples=80, stateful_step_count=25)
    )


# --- prefixes -------------------------------------------------------------------------


def filed(size=2, n_blocks=20):
    pool = BlockAllocator(n_blocks, size)
    return pool, PrefixCache(pool)


@pytest.mark.equation("eq-prefix-key")
def test_a_block_is_found_by_the_whole_prefix_only():
    """The same tokens after another beginning are another block."""
    pool, shelf = filed()
    blocks = pool.allocate(3)
    shelf.insert([1, 2, 3, 4, 5, 6], blocks)
    assert shelf.match([1, 2, 3, 4, 5, 6]) == blocks
    assert shelf.match([1, 2, 3, 4, 9, 9]) == blocks[:2]
    assert shelf.match([1, 2, 3]) == blocks[:1]
    for other in ([3, 4], [9, 2, 3, 4], [3, 4, 1, 2], [2, 1], [1], []):
        assert shelf.match(other) == []
    assert [pool.references(b) for b in blocks] == [2 + 3, 2 + 2, 2 + 1]
    with_tail = pool.allocate(2)
    shelf.insert([7, 8, 9], with_tail)
    assert shelf.match([7, 8, 9]) == with_tail[:1]


@pytest.mark.equation("eq-prefix-key")
def test_equal_hashes_do_not_mix_sequences():
    """vllm#12621: a hash is no proof."""
    one, other = (1, 0), (1, 2**61 - 1)
    assert hash(one) == hash(other)
    pool, shelf = filed()
    shelf.insert(one, pool.allocate())
    assert shelf.match(other) == []
    shelf.insert(other, pool.allocate())
    assert (shelf.match(one), shelf.match(other)) == ([0], [1])


@pytest.mark.equation("eq-prefix-key")
@pytest.mark.usefixtures("no_shape_checks")
def test_the_context_belongs_to_the_prefix():
    pool, shelf = filed()
    shelf.insert([1, 2], pool.allocate(), context=(7, 8))
    assert shelf.match([1, 2]) == []
    assert shelf.match([1, 2], context=(7, 9)) == []
    assert shelf.match([1, 2], context=(7, 8)) == [0]
    with pytest.raises(TypeError, match="context must be .*hashed"):
        shelf.match([1, 2], context=[7])


@pytest.mark.equation("eq-prefix-key")
@pytest.mark.usefixtures("no_shape_checks")
def test_a_tensor_as_context_is_its_tokens():
    """A tensor is hashed by identity: two equal ones would never meet."""
    pool, shelf = filed()
    source = torch.tensor([7, 8])
    shelf.insert([1, 2], pool.allocate(), context=source)
    assert shelf.match([1, 2], context=source) == [0]
    assert shelf.match([1, 2], context=source.clone()) == [0]
    assert shelf.match([1, 2], context=source.int()) == [0]
    assert shelf.match([1, 2], context=(7, 8)) == [0]
    assert shelf.match([1, 2], context=torch.tensor([7, 9])) == []
    for wrong, error in (
        (torch.tensor([7.0, 8.0]), TypeError),
        (torch.tensor([[7, 8]]), ValueError),
        ((source, 3), TypeError),
        ((1, (2, frozenset({source}))), TypeError),
    ):
        for call in (shelf.match, lambda x, **k: shelf.insert(x, pool.allocate(), **k)):
            with pytest.raises(error, match="context must"):
                call([1, 2], context=wrong)
    assert len(shelf) == 1


@quick
@given(data=st.data())
@pytest.mark.equation("eq-prefix-key")
def test_any_sequences_against_a_search_through_all(data):
    size = data.draw(st.integers(1, 3))
    pool, shelf = filed(size, 200)
    sequence = st.lists(st.integers(0, 2), max_size=9)
    known = {}  # a prefix of full blocks -> the block at its end
    for one in data.draw(st.lists(sequence, min_size=1, max_size=6)):
        expected = []
        for n in range(size, len(one) + 1, size):
            if tuple(one[:n]) not in known:
                break
            expected.append(known[tuple(one[:n])])
        found = shelf.match(one)
        assert found == expected
        fresh = pool.allocate(blocks_needed(len(one), size) - len(found))
        shelf.insert(torch.tensor(one, dtype=torch.int32), found + fresh)
        for i, n in enumerate(range(size, len(one) + 1, size)):
            known.setdefault(tuple(one[:n]), (found + fresh)[i])
        pool.free(found + fresh)
    assert len(shelf) == len(known)
    assert pool.n_blocks - pool.n_free == len(known)
    shelf.evict(1000)
    assert pool.n_free == 200


def test_adopted_blocks_give_what_they_would_have_given():
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2).double().requires_grad_(False)
    pool, shelf = filed(size=3)
    x = normal(1, 11, 8)
    first, second = PagedKVCache(pool), PagedKVCache(pool)
    layer(x, x, x, causal=True, cache=first)
    shelf.insert(range(11), first.tables[0])
    first.reset()
    assert pool.n_free == 20 - 3  # the full blocks stay on the shelf
    second.adopt([shelf.match(list(range(10)))])
    assert len(second) == 9
    rest = layer(x[:, 9:], x[:, 9:], x[:, 9:], causal=True, cache=second)
    assert_same(rest, layer(x, x, x, causal=True)[:, 9:])
    with pytest.raises(ValueError, match="cache must be empty"):
        second.adopt([[0]])
    second.reset()
    assert pool.n_free == 17


def test_what_cannot_be_adopted():
    pool, _ = filed()
    blocks = pool.allocate(3)
    store = PagedKVCache(pool)
    with pytest.raises(ValueError, match="the pool holds none yet"):
        store.adopt([[0]])  # nobody has written a key
    other = PagedKVCache(pool)
    filled(other, 1)
    other.reset()
    for wrong in ([], [[0], [1, 2]], [[0, 7]], [[0, 99]], [[0, 0]], [[0, 1], [2, 1]]):
        with pytest.raises(ValueError, match="tables|block"):
            store.adopt(wrong)
        assert len(store) == 0
        assert store.tables == []
    store.adopt([[]])
    assert len(store) == 0
    assert store.tables == []
    assert [pool.references(b) for b in blocks] == [1, 1, 1]
    pool.share([1])
    store.adopt([[0, 1], [2, 1]])  # block 1 for both rows
    store.reset()
    assert pool.n_free == 20


def test_eviction_takes_the_longest_unused_end_and_nothing_in_use():
    pool, shelf = filed()
    long, short = pool.allocate(3), pool.allocate(1)
    shelf.insert([1, 2, 3, 4, 5, 6], long)
    shelf.insert([7, 8], short)
    pool.free(long + short)
    assert (shelf.evict(1), len(shelf)) == (1, 3)
    assert shelf.match([1, 2, 3, 4, 5, 6]) == long[:2]  # its end went first
    pool.free(long[:2])
    assert shelf.evict(1) == 1  # [7, 8] now is the longest unused
    assert shelf.match([7, 8]) == []
    kept = shelf.match([1, 2])
    assert shelf.evict(5) == 1
    assert shelf.match([1, 2, 3, 4]) == kept
    pool.free(kept * 2)
    assert shelf.evict(5) == 1
    assert (pool.n_free, len(shelf)) == (20, 0)
    assert shelf.evict(0) == 0


def test_a_prefix_that_is_inserted_twice_is_kept_once():
    pool, shelf = filed()
    one, two = pool.allocate(2), pool.allocate(3)
    shelf.insert([1, 2, 3, 4], one)
    shelf.insert([1, 2, 3, 4, 5, 6], two)
    assert shelf.match([1, 2, 3, 4, 5, 6]) == [*one, two[2]]
    assert len(shelf) == 3
    with pytest.raises(ValueError, match="blocks must be the 2 .*got 1"):
        shelf.insert([1, 2, 3, 4], one[:1])
    with pytest.raises(ValueError, match="cannot share block 19: it is free"):
        shelf.insert([8, 8], [19])
    assert len(shelf) == 3


@pytest.mark.usefixtures("no_shape_checks")
def test_a_row_with_something_wrong_is_not_filed_at_all():
    """Neither the blocks before the wrong one, nor one block for two prefixes."""
    pool, shelf = filed()
    one, two, three = pool.allocate(3)
    shelf.insert([1, 2], [one])
    before = dict(shelf._block_of), books(pool)
    for blocks, error, message in (
        ([two, 19], ValueError, "cannot share block 19: it is free"),
        ([two, 99], ValueError, "block 99 is not in the pool"),
        ([two, "3"], TypeError, "block must be an integer"),
        ([two, two], ValueError, r"for two: \[1\]"),
        ([two, one], ValueError, r"for two: \[0\]"),
    ):
        with pytest.raises(error, match=message):
            shelf.insert([3, 4, 5, 6], blocks)
        assert (dict(shelf._block_of), books(pool)) == before
    with pytest.raises(ValueError, match=r"for two: \[0\]"):
        shelf.insert([1, 2, 3, 4], [two, one])  # known, but not as the second
    assert (dict(shelf._block_of), books(pool)) == before
    shelf.insert([1, 2, 3, 4], [one, three])
    assert shelf.match([1, 2, 3, 4]) == [one, three]


# --- the record of times --------------------------------------------------------------


def test_the_stored_record_is_what_the_chapter_reads():
    record = json.loads(
        files("aiayn.book").joinpath("data/paged_times.json").read_text()
    )
    assert record["threads"] == 1
    cases = [(row["batch"], row["tokens"]) for row in record["rows"]]
    assert cases == [(b, n) for b in (1, 8) for n in (128, 512, 1024)]
    for row in record["rows"]:
        for low, middle, high in row["ratio to one tensor"].values():
            assert 0 < low <= middle <= high


def test_the_fragmentation_of_the_chapter(notebook_function):
    """Counted again, one sequence and one step at a time."""
    reserved = notebook_function(CHAPTER, "reserved")
    draw_lengths = notebook_function(CHAPTER, "draw_lengths")
    prompt, answer = draw_lengths(50, 3)
    assert (prompt + answer).max() <= 2048
    for first, n in zip(prompt.tolist(), answer.tolist(), strict=True):
        for held in (first, first + n // 2, first + n):
            places = reserved(torch.tensor([held]), torch.tensor([first + n]))
            power = 1
            while power < held:
                power *= 2
            expected = [2048, power, first + n, 16 * len(range(0, held, 16))]
            assert [x.item() for x in places.values()] == expected


def test_the_first_gap_that_is_large_enough(notebook_function):
    first_fit = notebook_function(CHAPTER, "first_fit")
    taken = [(10, 5), (0, 4), (20, 6)]
    for n, room, expected in (
        (6, 30, 4), (7, 40, 26), (4, 30, 4), (5, 30, 4), (14, 40, 26), (15, 40, None),
    ):  # fmt: skip
        assert first_fit(taken, n, room) == expected
    assert first_fit([], 8, 8) == 0
    assert first_fit([], 9, 8) is None


def test_two_decoders_in_one_pool():
    """Both layers and two decoders in one pool, in turns."""
    model = small_model(seed=2, tie_embeddings=False)
    pool = BlockAllocator(300, 2)
    caches = [DecoderCache(2, make=lambda: PagedKVCache(pool)) for _ in range(2)]
    sources = tokens(3, 4), tokens(2, 6, seed=1)
    with torch.no_grad():
        for source, cache in zip(sources, caches, strict=True):
            found = greedy_decode(model, source, max_len=9, cache=cache)
            assert torch.equal(found, greedy_decode(model, source, max_len=9))
    for cache in caches:
        cache.reset()
    assert pool.n_free == 300
