"""FlashAttention: parts and their merge, tiles, gradients, memory.

That ``flash_attention`` keeps the contract of the seam, at its default block size, is
in test_attend.py, where it is one line. Here the tiles are small.
"""

import functools
import itertools
import math
import random
import weakref

import pytest
import torch
from helpers import DTYPES, assert_same, normal, padded, plain_logits, small_model
from seams import loop_attention
from test_attend import KINDS, by_hand, masks
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from aiayn import (
    PartialAttention,
    attention,
    causal_mask,
    flash_attention,
    merge_partial_attention,
    online_softmax,
    partial_attention,
)
from aiayn.flash import (
    FlashAttention,
    cut,
    empty_part,
    flash_backward,
    flash_forward,
    key_tiles,
    tile_mask,
)

CHAPTER = "11_flash"
INF = math.inf
BLOCKS = (1, 2, 3, (2, 3), (4, 1), 5, 8, (3, 9))


def some_parts(n: int, *, dtype=torch.float64, seed=0) -> list[PartialAttention]:
    """Parts of one attention, two queries each; the middle one saw nothing in row 0."""
    parts = []
    for i in range(n):
        key = normal(i % 3 + 1, 4, seed=seed + 10 * i + 1, dtype=dtype)
        value = normal(i % 3 + 1, 3, seed=seed + 10 * i + 2, dtype=dtype)
        mask = torch.ones(2, len(key), dtype=torch.bool)
        mask[0] = i != n // 2
        query = normal(2, 4, seed=seed, dtype=dtype)
        parts.append(partial_attention(3 * query, key, value, mask))
    return parts


def assert_same_parts(a: PartialAttention, b: PartialAttention, tolerance=1e-12):
    assert torch.equal(a.maximum, b.maximum)
    assert_same(a.denominator, b.denominator, tolerance)
    assert_same(a.output, b.output, tolerance)


# ----------------------------------------------------------------- parts and merges


@pytest.mark.equation("eq-partial-attention")
@pytest.mark.equation("eq-normalised-part")
def test_a_part_by_hand():
    """Scores 1 and 3, values 10 and 20, and a second query that sees the first only."""
    query, key = torch.ones(2, 1).double(), torch.tensor([[1.0], [3.0]]).double()
    value = torch.tensor([[10.0], [20.0]]).double()
    mask = torch.tensor([[True, True], [True, False]])
    part = partial_attention(query, key, value, mask, scale=1.0)
    low = math.exp(-2)
    assert_same(part.maximum, [3.0, 1.0])
    assert_same(part.denominator, [1 + low, 1.0])
    assert_same(part.output, [[20 + 10 * low], [10.0]])
    assert_same(part.normalise(), [[(20 + 10 * low) / (1 + low)], [10.0]])


@pytest.mark.equation("eq-partial-attention")
@pytest.mark.equation("eq-normalised-part")
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_all_keys_is_attention(kind):
    query, key = normal(2, 3, 4, 5), normal(2, 3, 6, 5, seed=1)
    value, mask = normal(2, 3, 6, 7, seed=2), masks(4, 6)[kind]
    part = partial_attention(query, key, value, mask)
    assert part.maximum.shape == part.denominator.shape == (2, 3, 4)
    assert_same(part.normalise(), by_hand(query, key, value, mask), 1e-12)


@pytest.mark.equation("eq-merged-parts")
def test_parts_are_not_averaged():
    """sglang#35045: scores 1, 2 in one part and 3 in another; 3.905692, no mean."""
    query = torch.ones(1, 1, dtype=torch.float64)
    key = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    value = torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.float64)
    a = partial_attention(query, key[:2], value[:2], scale=1.0)
    b = partial_attention(query, key[2:], value[2:], scale=1.0)
    mean = (a.normalise() + b.normalise()) / 2
    assert mean.item() == pytest.approx(3.365529, abs=1e-6)
    for merged in (merge_partial_attention(a, b), merge_partial_attention(b, a)):
        assert merged.normalise().item() == pytest.approx(3.905692, abs=1e-6)


@pytest.mark.equation("eq-merged-parts")
@pytest.mark.equation("res-merge-monoid")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_merging_is_associative_and_commutative(dtype):
    """Parts with empty rows too, at every place."""
    tolerance = 8 * torch.finfo(dtype).eps
    for seed, order in itertools.product(range(5), itertools.permutations(range(3))):
        parts = some_parts(3, dtype=dtype, seed=seed)
        a, b, c = (parts[i] for i in order)
        left = merge_partial_attention(merge_partial_attention(a, b), c)
        right = merge_partial_attention(a, merge_partial_attention(b, c))
        assert_same_parts(left, right, tolerance)
        swapped = merge_partial_attention(c, merge_partial_attention(b, a))
        assert_same_parts(left, swapped, tolerance)


@pytest.mark.equation("res-merge-monoid")
def test_the_part_of_no_key_changes_nothing():
    """flashinfer#4051: two empty parts make an empty one, and no NaN."""
    """Bit for bit, from either side, and with itself; its attention is 0."""
    (part,) = some_parts(1)
    query, value = normal(2, 4), normal(0, 3)
    for empty in (
        empty_part(query, value),
        partial_attention(query, normal(0, 4), value),
        partial_attention(query, normal(5, 4), normal(5, 3), torch.zeros(1, 5).bool()),
    ):
        assert torch.equal(empty.maximum, torch.full((2,), -INF).double())
        assert not empty.denominator.any()
        assert not empty.output.any()
        assert torch.equal(empty.normalise(), torch.zeros(2, 3).double())
        for merged in (
            merge_partial_attention(part, empty),
            merge_partial_attention(empty, part),
        ):
            assert all(map(torch.equal, merged, part))
        twice = merge_partial_attention(empty, empty)
        assert all(map(torch.equal, twice, empty))


@pytest.mark.equation("eq-merged-parts")
@pytest.mark.parametrize("seed", range(20))
def test_any_order_and_any_split_gives_the_same(seed):
    """Keys shuffled, cut anywhere, parts merged as a random tree."""
    choose = random.Random(seed)
    n_keys = choose.randint(1, 9)
    query, key = normal(3, 4, seed=seed), 3 * normal(n_keys, 4, seed=seed + 100)
    value = normal(n_keys, 2, seed=seed + 200)
    mask = normal(3, n_keys, seed=seed + 300) > -0.5
    order = choose.sample(range(n_keys), n_keys)
    parts = []
    while order:
        taken = [order.pop() for _ in range(min(choose.randint(1, 3), len(order)))]
        part = partial_attention(query, key[taken], value[taken], mask[:, taken])
        parts.append(part)
    while len(parts) > 1:
        choose.shuffle(parts)
        parts.append(merge_partial_attention(parts.pop(), parts.pop()))
    assert_same(parts[0].normalise(), by_hand(query, key, value, mask), 1e-12)


def test_gradients_flow_through_parts():
    """Though the maximum is taken for a constant; the second derivatives too."""
    inputs = [normal(3, 4), normal(5, 4, seed=1), normal(5, 2, seed=2)]
    inputs = [x.requires_grad_() for x in inputs]
    mask = normal(3, 5, seed=3) > -0.5
    mask[0, :2] = mask[1, 2:] = mask[2] = False

    def merged(query, key, value):
        pieces = (key[:2], value[:2], mask[:, :2]), (key[2:], value[2:], mask[:, 2:])
        a, b = (partial_attention(query, *piece) for piece in pieces)
        return merge_partial_attention(a, b).normalise()

    assert gradcheck(merged, inputs)
    assert torch.autograd.gradgradcheck(merged, inputs)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 8), (4, 8), (2, 4, 5)),
        ((3, 8), (2, 0, 8), (0, 5)),
        ((3, 8), (2, 4, 8), (4, 5)),
    ],
)
def test_a_part_has_the_shape_of_all_three(shapes):
    """Whichever of query, key and value has the leading dimension."""
    query, key, value = (normal(*shape, seed=i) for i, shape in enumerate(shapes))
    part = partial_attention(query, key, value)
    assert part.maximum.shape == part.denominator.shape == (2, 3)
    merged = merge_partial_attention(part, part)
    assert_same(merged.normalise(), attention(query, key, value))


@pytest.mark.equation("eq-online-softmax")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "block_size"), [(5000, 1), (70_000, 1000)])
def test_the_denominator_is_no_number_of_half_precision(dtype, n, block_size):
    """In float16 a sum of ones stops at 2048, and ends at infinity after 65,504."""
    weights = online_softmax(torch.zeros(1, n, dtype=dtype), block_size)
    assert weights.dtype == dtype
    assert weights.double().sum().item() == pytest.approx(1, rel=0.01)


def test_parts_broadcast():
    """A prefix shared by a batch is one part for all of its rows."""
    query, key = normal(3, 2, 4), normal(5, 4, seed=1)
    value, rest = normal(5, 2, seed=2), (normal(3, 4, 4, seed=3), normal(3, 4, 2))
    shared = partial_attention(query.flatten(0, 1), key, value)
    shared = PartialAttention(*(x.unflatten(0, (3, 2)) for x in shared))
    merged = merge_partial_attention(shared, partial_attention(query, *rest))
    whole = [
        torch.cat((x.expand(3, *x.shape), y), 1)
        for x, y in zip((key, value), rest, strict=True)
    ]
    assert_same(merged.normalise(), by_hand(query, *whole), 1e-12)
    one = PartialAttention(*(x[:1] for x in shared))
    both = merge_partial_attention(one, partial_attention(query, *rest))
    assert both.output.shape == (3, 2, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_summed_in_float32(dtype):
    """4,096 equal keys of weight 1: a half-precision sum sticks far below."""
    query, key = torch.zeros(1, 4, dtype=dtype), torch.zeros(4096, 4, dtype=dtype)
    value = torch.full((4096, 1), 3.0, dtype=dtype)
    part = partial_attention(query, key, value)
    assert {x.dtype for x in part} == {torch.float32}
    assert part.denominator.item() == 4096.0
    mixed = flash_attention(query, key, value, block_size=1)
    assert mixed.dtype == dtype
    assert mixed.item() == 3.0


@pytest.mark.equation("eq-online-softmax")
@pytest.mark.parametrize("block_size", [1, 2, 3, 7, 8, 100])
def test_the_softmax_in_blocks(block_size):
    """Against Python's own numbers; rows and first blocks that hide everything."""
    scores = 5 * normal(4, 7)
    scores[0, :3] = scores[1] = scores[2, -2:] = -INF
    found = online_softmax(scores, block_size)
    for row, ours in zip(scores.tolist(), found, strict=True):
        masses = [math.exp(s - max(row)) if s > -INF else 0.0 for s in row]
        total = sum(masses) or 1.0
        assert_same(ours, [m / total for m in masses], 1e-14)
    big = torch.tensor([1000.0, -1000.0, 999.0])
    values = torch.tensor([1.0, 2.0, 3.0])
    mixed = online_softmax(big, block_size) @ values
    assert mixed.item() == pytest.approx(1.537883, abs=1e-6)


def test_the_softmax_in_blocks_has_the_softmax_gradient():
    scores = normal(3, 7).requires_grad_()
    assert gradcheck(functools.partial(online_softmax, block_size=3), scores)
    assert online_softmax(normal(2, 0), 3).shape == (2, 0)
    assert online_softmax(normal(0, 4), 3).shape == (0, 4)


# ---------------------------------------------------------------------------- tiles


@pytest.mark.equation("eq-causal-tiles")
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_tiles_cover_what_may_be_seen_once(causal):
    """MInference#201: no tile too many where the length is a multiple of the block."""
    for n_queries, n_keys, n_rows, size in itertools.product(
        range(1, 8), range(8), (1, 2, 3, 8), (1, 2, 3, 8)
    ):
        allowed = causal_mask(n_queries, n_keys) if causal else None
        seen = torch.zeros(n_queries, n_keys, dtype=torch.long)
        pieces = list(cut(0, n_queries, n_rows))
        assert len(pieces) == math.ceil(n_queries / n_rows)
        assert [i for p in pieces for i in range(p.start, p.stop)] == [
            *range(n_queries)
        ]
        for rows in pieces:
            tiles = list(key_tiles(rows, n_queries, n_keys, size, causal))
            for keys, on_edge in tiles:
                assert 0 <= keys.start < keys.stop <= n_keys
                height, width = rows.stop - rows.start, keys.stop - keys.start
                assert width <= (height if on_edge else size)
                inside = tile_mask(None, rows, keys, on_edge, None)
                assert (inside is not None) == on_edge
                seen[rows, keys] += 1 if inside is None else inside.long()
                if causal:  # no tile lies beyond the edge
                    assert allowed[rows, keys].any()
            if not causal:
                assert len(tiles) == math.ceil(n_keys / size)
        expected = torch.ones_like(seen) if allowed is None else allowed.long()
        assert torch.equal(seen, expected)


@pytest.mark.equation("eq-tiled-attention")
@pytest.mark.parametrize("block_size", [*range(1, 11), (2, 3), (4, 1), (3, 9)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_every_length_and_block_equals_the_equation(block_size, causal):
    """flashinfer#5090, jax#27224, tiny-flash-attention#12: the tail of a block.

    Lengths 1 to 9 on either side, against an implementation without tiles.
    """
    for n_queries, n_keys in itertools.product(range(1, 10), repeat=2):
        query, key = normal(2, n_queries, 3), normal(2, n_keys, 3, seed=1)
        value = normal(2, n_keys, 4, seed=2)
        mixed = flash_attention(query, key, value, causal=causal, block_size=block_size)
        expected = attention(query, key, value, causal=causal)
        assert_same(mixed, expected, 1e-12)


def test_a_tail_is_not_padded_with_zeros():
    """Three keys that score 0, values 3: 3.0; padded to four it would be 2.25."""
    query, key = torch.zeros(1, 2), torch.zeros(3, 2)
    value = torch.full((3, 1), 3.0)
    assert flash_attention(query, key, value, block_size=2).item() == 3.0


@pytest.mark.equation("eq-tiled-attention")
@pytest.mark.parametrize("block_size", BLOCKS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_every_mask_in_every_block(block_size, kind, causal):
    for n_queries, n_keys in ((5, 5), (3, 7), (7, 3)):
        query, key = normal(2, 3, n_queries, 4), normal(2, 3, n_keys, 4, seed=1)
        value, mask = normal(2, 3, n_keys, 5, seed=2), masks(n_queries, n_keys)[kind]
        mixed = flash_attention(
            query, key, value, mask, causal=causal, block_size=block_size
        )
        assert_same(mixed, by_hand(query, key, value, mask, causal=causal), 1e-12)


@pytest.mark.parametrize("hidden", ["first", "middle", "last", "all but one", "all"])
def test_blocks_that_hide_everything(hidden):
    """A first block without a key leaves −∞ − (−∞) to the second."""
    keep = torch.ones(6, dtype=torch.bool)
    places = {"first": [0, 1], "middle": [2, 3], "last": [4, 5], "all": list(range(6)),
              "all but one": [0, 1, 2, 3, 5]}  # fmt: skip
    keep[places[hidden]] = False
    inputs = [normal(3, 4), normal(6, 4, seed=1), normal(6, 2, seed=2)]
    inputs = [x.requires_grad_() for x in inputs]
    mask = keep.expand(3, 6)
    mixed = flash_attention(*inputs, mask, block_size=2)
    plain = loop_attention(*inputs, mask)
    assert_same(mixed, plain.detach(), 1e-12)
    upstream = normal(3, 2, seed=4)
    ours, theirs = (torch.autograd.grad(x, inputs, upstream) for x in (mixed, plain))
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b, 1e-12)


@pytest.mark.parametrize("block_size", [1, 2, 3])
@pytest.mark.parametrize("size", [1e2, 1e4, 1e30])
def test_large_scores_of_either_sign_in_any_block(block_size, size):
    """Scores 1000, −1000, 999 and far larger ones; the largest comes first or last."""
    value = torch.tensor([[1.0], [2.0], [3.0]])
    for order in itertools.permutations(range(3)):
        key = torch.tensor([[1000.0], [-1000.0], [999.0]])[list(order)]
        inputs = torch.ones(1, 1), key, value[list(order)]
        mixed = flash_attention(*inputs, scale=1.0, block_size=block_size)
        assert mixed.item() == pytest.approx(1.537883, abs=1e-6)
        key = size * torch.tensor([[1.0], [-1.0], [1.0]])[list(order)]
        inputs = [x.requires_grad_() for x in (torch.ones(1, 1), key, inputs[2])]
        mixed = flash_attention(*inputs, scale=1.0, block_size=block_size)
        assert mixed.item() == 2.0
        d_value = torch.autograd.grad(mixed, inputs)[2].flatten()
        expected = torch.tensor([0.5, 0.0, 0.5])[list(order)]
        assert torch.equal(d_value, expected)
        low = -size * torch.ones(3, 1)
        mixed = flash_attention(inputs[0], low, value, block_size=block_size)
        assert mixed.item() == pytest.approx(2.0)


def test_one_kept_number_would_lose_the_denominator():
    """Why the maximum and the denominator are kept apart: log-sum-exp at 1e8."""
    query = torch.ones(1, 1)
    key = torch.full((4, 1), 1e8)
    value = torch.arange(4.0)[:, None].requires_grad_()
    flash_attention(query, key, value, scale=1.0).backward()
    assert torch.equal(value.grad, torch.full((4, 1), 0.25))
    scores = (query @ key.mT).flatten()
    assert (scores - scores.logsumexp(0)).exp().tolist() == [1.0] * 4


# ------------------------------------------------------------------------ gradients


@pytest.mark.equation("eq-tiled-gradients")
@pytest.mark.parametrize("block_size", BLOCKS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_gradients_equal_those_of_the_equation(block_size, kind, causal):
    """apex#816, brevitas#1591: a hand-written backward; the block does not matter."""
    for n_queries, n_keys in ((5, 5), (3, 7), (7, 3)):
        inputs = [normal(2, 3, n_queries, 4), normal(2, 3, n_keys, 4, seed=1),
                  normal(2, 3, n_keys, 5, seed=2)]  # fmt: skip
        inputs = [x.requires_grad_() for x in inputs]
        mask, upstream = masks(n_queries, n_keys)[kind], normal(2, 3, n_queries, 5)
        options = {"causal": causal, "scale": 0.7}
        ours = flash_attention(*inputs, mask, **options, block_size=block_size)
        theirs = loop_attention(*inputs, mask, **options)
        ours, theirs = (
            torch.autograd.grad(x, inputs, upstream) for x in (ours, theirs)
        )
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b, 1e-11)


@pytest.mark.equation("eq-tiled-gradients")
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_gradients_equal_finite_differences(causal, masked):
    """Ragged tails in both directions; a mask with a row that sees nothing."""
    inputs = [normal(2, 5, 3), normal(2, 7, 3, seed=1), normal(2, 7, 2, seed=2)]
    mask = normal(2, 5, 7, seed=3) > 0 if masked else None
    if masked:
        mask[1, 2] = False
    assert gradcheck(
        lambda *x: flash_attention(*x, mask, causal=causal, block_size=(2, 3)),
        [x.requires_grad_() for x in inputs],
    )


@pytest.mark.equation("eq-tiled-attention")
@pytest.mark.equation("eq-tiled-gradients")
def test_forward_and_backward_alone():
    """The two functions without autograd: what one keeps is what the other needs."""
    query, key, value = (normal(5, 4, seed=s) for s in range(3))
    options = None, True, 0.3, (2, 3)
    output, maximum, denominator = flash_forward(query, key, value, *options)
    scores = (0.3 * query @ key.mT).masked_fill(~causal_mask(5), -INF)
    assert_same(maximum, scores.amax(-1), 1e-14)
    assert_same(denominator, (scores - maximum[:, None]).exp().sum(-1), 1e-14)
    weights = scores.softmax(-1)
    assert_same(output, weights @ value, 1e-14)
    upstream = normal(5, 4, seed=3)
    mask, *rest = options
    kept = output, maximum, denominator
    ours = flash_backward(upstream, query, key, value, mask, *kept, *rest)
    pull = upstream @ value.mT
    d_scores = weights * (pull - (weights * pull).sum(-1, keepdim=True))
    expected = 0.3 * d_scores @ key, 0.3 * d_scores.mT @ query, weights.mT @ upstream
    for a, b in zip(ours, expected, strict=True):
        assert_same(a, b, 1e-13)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_in_every_dtype(dtype):
    inputs = [normal(2, 9, 4, seed=s).to(dtype).requires_grad_() for s in range(3)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    upstream = normal(2, 9, 4, seed=4)
    flash_attention(*inputs, causal=True, block_size=2).backward(upstream.to(dtype))
    loop_attention(*exact, causal=True).backward(upstream.to(dtype).double())
    for x, y in zip(inputs, exact, strict=True):
        assert x.grad.dtype == dtype
        assert_same(x.grad.double(), y.grad, 16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_halves_are_summed_in_float32(dtype):
    """4,096 ones, and the masses of 70,000 keys, are no numbers of half precision."""
    query, key = torch.zeros(4096, 4, dtype=dtype), torch.zeros(1, 4, dtype=dtype)
    value = torch.ones(1, 1, dtype=dtype, requires_grad=True)
    flash_attention(query, key, value, block_size=1).sum().backward()
    assert value.grad.item() == 4096.0
    many = torch.ones(70_000, 1, dtype=dtype, requires_grad=True)
    flash_attention(query[:1], key.expand(70_000, 4), many).sum().backward()
    assert many.grad.min().item() == pytest.approx(1 / 70_000, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_scale_is_not_rounded_to_half_precision(dtype):
    """A scale half way between two numbers of that type, and a small weight."""
    eps = torch.finfo(dtype).eps
    scale, query = 1 + eps / 2, torch.ones(1, 1, dtype=dtype)
    key = torch.tensor([[9.0], [0.0]], dtype=dtype)
    value = torch.tensor([[0.0], [1.0]], dtype=dtype)
    mixed = flash_attention(query, key, value, scale=scale, block_size=1)
    assert mixed.item() == pytest.approx(1 / (1 + math.exp(9 * scale)), rel=eps)
    part = partial_attention(query, key, value, scale=scale)
    assert part.maximum.item() == pytest.approx(9 * scale, rel=1e-6)


def test_a_scale_of_zero_is_a_scale():
    query, key, value = normal(2, 3), normal(4, 3, seed=1), normal(4, 2, seed=2)
    part = partial_attention(query, key, value, scale=0.0)
    assert_same(part.normalise(), value.mean(0).expand(2, 2), 1e-12)
    assert_same(flash_attention(query, key, value, scale=0.0), part.normalise(), 1e-12)


def test_a_second_derivative_is_refused():
    """Better than a wrong one: what is kept of a row is taken for a constant."""
    inputs = [normal(4, 3, seed=s).requires_grad_() for s in range(3)]

    def total(*inputs):
        return flash_attention(*inputs, block_size=2).square().sum()

    first = torch.autograd.grad(total(*inputs), inputs, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        first[0].sum().backward()
    gradient = torch.func.grad(total)
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.func.grad(lambda x: gradient(x, *inputs[1:]).sum())(inputs[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("dims", [(0, None, None, None), (None, 1, None, 0),
                                  (None, None, 0, None), (None, None, None, 0),
                                  (1, 0, 2, 1)])  # fmt: skip
def test_vmap_over_any_of_the_inputs(dims):
    """Forward and gradient, tiles smaller than the inputs."""
    shapes = (5, 4), (7, 4), (7, 3), (5, 7)
    inputs = [normal(*s, seed=i) for i, s in enumerate(shapes)]
    inputs[3] = inputs[3] > 0
    given = [
        x if d is None else torch.stack([x.roll(i, 0) for i in range(3)], dim=d)
        for x, d in zip(inputs, dims, strict=True)
    ]

    def total(query, key, value, mask):
        options = {"causal": True, "block_size": (2, 3)}
        return flash_attention(query, key, value, mask, **options).sin().sum()

    gradient = torch.func.grad(total, (0, 1, 2))
    mapped = torch.vmap(total, dims)(*given), *torch.vmap(gradient, dims)(*given)
    for i in range(3):
        one = [
            x if d is None else x.select(d, i) for x, d in zip(given, dims, strict=True)
        ]
        expected = total(*one), *gradient(*one)
        for ours, theirs in zip(mapped, expected, strict=True):
            assert_same(ours[i], theirs, 1e-12)


def test_the_mapped_axis_may_be_any():
    """As the function meets it when nothing before has moved the axis."""
    inputs = normal(4, 3, 5), normal(3, 6, 5, seed=1), normal(6, 2, 3, seed=2)

    def call(query, key, value):
        return FlashAttention.apply(query, key, value, None, False, 0.5, (2, 4))[0]

    mapped = torch.vmap(call, (1, 0, 2))(*inputs)
    for i in range(3):
        one = [x.select(d, i) for x, d in zip(inputs, (1, 0, 2), strict=True)]
        assert_same(mapped[i], by_hand(*one, scale=0.5), 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_changes_nothing_inside(dtype):
    """float32 comes out as without it; a model under autocast still hides padding."""
    inputs = [normal(9, 4, seed=s).float().requires_grad_() for s in range(3)]
    attend = functools.partial(flash_attention, block_size=2)
    expected = attend(*inputs)
    gradients = torch.autograd.grad(expected.sin().sum(), inputs)
    with torch.autocast("cpu", dtype=dtype):
        mixed = attend(*inputs)
        found = torch.autograd.grad(mixed.sin().sum(), inputs)
        part = partial_attention(*inputs)
    assert torch.equal(mixed, expected)
    assert all(map(torch.equal, found, gradients))
    assert all(map(torch.equal, part, partial_attention(*inputs)))
    model = small_model(attend=attend, dtype=torch.float32)
    source, target = padded([[3, 4, 5, 2], [6, 2], []]), padded([[1, 9, 4], [1, 3], []])
    exact = plain_logits(model, source, target)
    with torch.autocast("cpu", dtype=dtype):
        logits = model(source, target)
        longer = model(torch.nn.functional.pad(source, (0, 3)), target)
    tolerance, size = 32 * torch.finfo(dtype).eps, exact.abs().max()
    assert_same(logits.detach().float() / size, exact / size, tolerance)
    assert_same(longer.detach()[:2], logits.detach()[:2], tolerance)
    logits.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


# --------------------------------------------------------------- memory, work, bytes


class Held(TorchDispatchMode):
    """Bytes of the tensors that are alive, and the most that ever were."""

    def __init__(self, *given: Tensor):
        super().__init__()
        self.now = self.peak = 0
        self.largest = 0  # numbers in one tensor
        self.given = [x.untyped_storage() for x in given]  # they do not count
        self.known = {id(storage) for storage in self.given}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(result):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                if id(storage) not in self.known:
                    self.known.add(id(storage))
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self.free, id(storage), storage.nbytes())
                    self.largest = max(self.largest, storage.nbytes() // x.itemsize)
        self.peak = max(self.peak, self.now)
        return result

    def free(self, name, size):
        self.known.discard(name)
        self.now -= size


def held(attend, n, *, backward=False, mask=None, **options) -> Held:
    """What (1, 8, n, 64) float32 takes; on meta there is nothing to compute."""
    inputs = [torch.empty(1, 8, n, 64, device="meta") for _ in range(3)]
    inputs = [x.requires_grad_(backward) for x in inputs]
    given = [*inputs, torch.empty_like(inputs[2])]
    with Held(*given, *(() if mask is None else (mask,))) as mode:
        mixed = attend(*inputs, mask, **options)
        if backward:
            mixed.backward(given[-1])
    return mode


@pytest.mark.equation("res-flash-memory")
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_memory_grows_linearly(backward, causal):
    """Twice the length takes at most twice the bytes; the equation takes four times."""
    options = {"backward": backward, "causal": causal}
    bytes_at = {n: held(flash_attention, n, **options).peak for n in (1024, 2048, 4096)}
    assert bytes_at[2048] <= 2 * bytes_at[1024]
    assert bytes_at[4096] <= 2 * bytes_at[2048]
    plain = {n: held(attention, n, **options).peak for n in (2048, 4096)}
    assert plain[4096] > 3.8 * plain[2048]
    if not backward:
        assert 40 * bytes_at[4096] <= plain[4096]


@pytest.mark.equation("res-flash-memory")
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_padding_mask_is_never_made_larger(backward):
    """(batch, 1, 1, n): no tensor, of any dtype, has n × n numbers, or half of them."""
    n = 4096
    mask = torch.empty(1, 1, 1, n, dtype=torch.bool, device="meta")
    for causal in (False, True):
        mode = held(flash_attention, n, backward=backward, mask=mask, causal=causal)
        assert mode.largest <= max(8 * n * 64, 8 * 128 * 1024)
        assert mode.largest < n * n / 2


def test_what_is_kept_for_backward_is_linear():
    """Inputs, output and two numbers a query: nothing else."""
    kept = []
    inputs = [normal(2, 50, 4, seed=s).requires_grad_() for s in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.shape) or x, lambda x: x
    ):
        flash_attention(*inputs, block_size=8)
    assert sorted(kept) == [(2, 50), (2, 50), *[(2, 50, 4)] * 4]


def test_products_counted():
    """Forward as many FLOPs as the equation, backward five products instead of four;
    causal, only the tiles that are seen."""
    n, d, size = 256, 16, 32
    inputs = [normal(1, 2, n, d, seed=s).requires_grad_() for s in range(3)]
    attend = functools.partial(flash_attention, block_size=size)

    def flops(run):
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    product = 2 * 2 * n * n * d
    for which, forward, backward in ((attention, 2, 4), (attend, 2, 5)):
        assert flops(lambda: which(*inputs)) == forward * product  # noqa: B023
        mixed = which(*inputs)
        assert flops(lambda: mixed.sum().backward()) == backward * product  # noqa: B023
    tiles = n // size
    seen = flops(lambda: attend(*inputs, causal=True))
    assert seen == 2 * product * (tiles + 1) / (2 * tiles)


def test_the_mask_is_not_looked_into():
    """A causal mask is work like any other; only the flag saves some."""
    n, inputs = 64, [normal(1, 64, 8, seed=s) for s in range(3)]
    with FlopCounterMode(display=False) as by_mask:
        flash_attention(*inputs, causal_mask(n), block_size=16)
    with FlopCounterMode(display=False) as by_flag:
        flash_attention(*inputs, causal=True, block_size=16)
    assert by_mask.get_total_flops() == 4 * n * n * 8
    assert by_flag.get_total_flops() == 4 * n * n * 8 * 5 / 8


def test_float32_error_is_small():
    """Against float64, at the default tiles and at tiny ones; within 1e-5."""
    inputs = [normal(1, 2, 1500, 64, seed=s) for s in range(3)]
    expected = attention(*inputs, causal=True)
    for block_size in ((128, 1024), 64):
        mixed = flash_attention(
            *(x.float() for x in inputs), causal=True, block_size=block_size
        )
        assert_same(mixed.double(), expected, 1e-5)


# --------------------------------------------------------------------------- traffic


@pytest.mark.equation("eq-equation-traffic")
@pytest.mark.equation("eq-flash-traffic")
@pytest.mark.parametrize(
    "sizes",
    [(9, 11, 3, 2, 4, 5), (8, 8, 4, 4, 4, 2), (1, 7, 2, 5, 3, 3), (12, 5, 1, 1, 1, 1)],
)
def test_what_is_moved(sizes, notebook_function):
    """The two formulas against a loop that counts each number where it is moved."""
    n, m, d_k, d_v, r, c = sizes
    pieces = [range(i, min(i + r, n)) for i in range(0, n, r)]
    by_steps = by_tiles = 0
    for rows in pieces:
        by_steps += len(rows) * d_k + m * d_k + len(rows) * m  # S = Q K^T
        by_steps += 2 * len(rows) * m  # the softmax, in and out
        by_steps += len(rows) * m + m * d_v + len(rows) * d_v  # O = W V
        by_tiles += len(rows) * d_k + m * (d_k + d_v) + len(rows) * (d_v + 2)
    tiles = notebook_function(CHAPTER, "tiles_traffic")
    steps = notebook_function(CHAPTER, "equation_traffic")
    assert tiles(n, m, d_k, d_v, r) == by_tiles
    assert steps(n, m, d_k, d_v, r) == by_steps
    assert by_steps - by_tiles == 4 * n * m - 2 * n
    query, key, value = normal(n, d_k), normal(m, d_k, seed=1), normal(m, d_v, seed=2)
    expected = by_hand(query, key, value)
    for move, moved in (("move_tiles", by_tiles), ("move_steps", by_steps)):
        room = max(r * (d_k + d_v + 2) + c * (d_k + d_v) + r * c, m)
        memory = notebook_function(CHAPTER, "FastMemory")(room)
        found = notebook_function(CHAPTER, move)(query, key, value, r, c, memory)
        assert_same(found, expected, 1e-12)
        assert memory.moved == moved
    small = notebook_function(CHAPTER, "FastMemory")(d_k * min(r, n) - 1)
    with pytest.raises(MemoryError):
        notebook_function(CHAPTER, "move_tiles")(query, key, value, r, c, small)


@pytest.mark.equation("res-flash-accesses")
def test_what_is_moved_is_of_order_n2_d2_over_m(notebook_function):
    """Both bounds, for every room from 8·d to n·d on a grid, one key at a time."""
    tiles = notebook_function(CHAPTER, "tiles_traffic")
    tried = 0
    for d, n in itertools.product((3, 4, 7, 16, 64), (8, 9, 30, 100, 1000)):
        for room in {8 * d, 9 * d, 8 * d + 1, n * d // 2, n * d - 1, n * d}:
            if not 8 * d <= room <= n * d:
                continue
            r = (room - 2 * d) // (2 * d + 3)
            assert r * (2 * d + 2) + 2 * d + r <= room  # it fits, and no more would
            assert (r + 1) * (2 * d + 2) + 2 * d + r + 1 > room
            moved = tiles(n, n, d, d, r)
            assert 4 * n**2 * d**2 <= moved * room <= 21 * n**2 * d**2
            tried += 1
    assert tried > 80
