"""Faults of FlashAttention, planted one by one; its own tests must notice.

As in test_planted_in_attention.py a line is replaced in memory. The tests then find the
module's names with the fault in them.
"""

from dataclasses import dataclass, field

import pytest
import test_flash
import torch
from test_planted_in_attention import Fault as InModule
from test_planted_in_attention import planted

NAMES = (
    "flash_attention",
    "FlashAttention",
    "PartialAttention",
    "empty_part",
    "flash_backward",
    "flash_forward",
    "key_tiles",
    "merge_partial_attention",
    "online_softmax",
    "partial_attention",
    "tile_mask",
)


@dataclass(frozen=True)
class Fault:
    """What is replaced in flash.py, and the call that must fail."""

    right: str
    wrong: str
    test: str
    case: dict = field(default_factory=dict)


SHIFT = "return maximum.masked_fill(maximum == -math.inf, 0.0)"
TOTAL = "return denominator.masked_fill(denominator == 0, 1.0)"
EDGE = "edge, end = (max(i + n_keys - n_queries, 0) for i in (rows.start, rows.stop))"
ROWS_OF = "rows_of = rows if mask.shape[-2] > 1 else slice(None)"
KEYS_OF = "keys_of = keys if mask.shape[-1] > 1 else slice(None)"
BOTH = "return allowed if mask is None else mask & allowed"
MORE = "part = merge_partial_attention(part, part_of_tile(q, k, v, hidden))"
DOTS = "dots = (d_sums * out).sum(dim=-1, keepdim=True)"
MEAN = "d_sums = d_out / over_zero(denominator[..., rows]).unsqueeze(-1)"
HALF = "return tuple(x.float() if x.dtype in halves else x for x in tensors)"
KEPT = "ctx.save_for_backward(*tensors, *output)"
MAPPED = "else x.movedim(axis, 0)"
KINDLY = {"block_size": (2, 3), "kind": "an empty row", "causal": False}
FREE = {"block_size": (2, 3), "kind": "free", "causal": True}
TALL = {"block_size": 3, "causal": True}

FAULTS = {
    "−∞ minus −∞": Fault(
        SHIFT, "return maximum", "test_blocks_that_hide_everything", {"hidden": "first"}
    ),
    "nothing divided by nothing": Fault(
        TOTAL, "return denominator", "test_the_part_of_no_key_changes_nothing"
    ),
    "the mean of parts": Fault(
        "of_a * a.denominator + of_b * b.denominator,",
        "a.denominator + b.denominator,",
        "test_parts_are_not_averaged",
    ),
    "only one part in new units": Fault(
        "of_a.unsqueeze(-1) * a.output + of_b.unsqueeze(-1) * b.output,",
        "of_a.unsqueeze(-1) * a.output + b.output,",
        "test_merging_is_associative_and_commutative", {"dtype": torch.float64},
    ),
    "the maximum of the last part": Fault(
        "maximum = torch.maximum(a.maximum, b.maximum)", "maximum = b.maximum",
        "test_merging_is_associative_and_commutative", {"dtype": torch.float32},
    ),
    "unshifted masses": Fault(
        "masses = scores.sub_(finite_shift(maximum).unsqueeze(-1)).exp_()",
        "masses = scores.exp_()",
        "test_large_scores_of_either_sign_in_any_block", {"block_size": 2, "size": 1e4},
    ),
    "the softmax forgets what it summed": Fault(
        "denominator = (maximum - shift).exp() * denominator + masses.sum(dim=-1)",
        "denominator = denominator + masses.sum(dim=-1)",
        "test_the_softmax_in_blocks", {"block_size": 2},
    ),
    "half precision sums": Fault(
        HALF, "return tensors",
        "test_halves_are_summed_in_float32", {"dtype": torch.bfloat16},
    ),
    "a block too many": Fault(
        "for first in range(start, stop, size):",
        "for first in range(start, stop + 1, size):",
        "test_tiles_cover_what_may_be_seen_once", {"causal": False},
    ),
    "the tail is left out": Fault(
        "for first in range(start, stop, size):",
        "for first in range(start, stop - size + 1, size):",
        "test_every_length_and_block_equals_the_equation",
        {"block_size": (2, 3), "causal": False},
    ),
    "upper left": Fault(
        EDGE, "edge, end = (min(i, n_keys) for i in (rows.start, rows.stop))",
        "test_every_length_and_block_equals_the_equation", TALL,
    ),
    "a key further": Fault(
        EDGE, EDGE.replace("n_queries, 0)", "n_queries + 1, 0)"),
        "test_tiles_cover_what_may_be_seen_once", {"causal": True},
    ),
    "nothing is skipped": Fault(
        "yield slice(edge, end), True",
        "yield slice(edge, n_keys), True",
        "test_tiles_cover_what_may_be_seen_once", {"causal": True},
    ),
    "a mask of one row is cut": Fault(
        ROWS_OF, "rows_of = rows", "test_every_mask_in_every_block",
        {"block_size": (2, 3), "kind": "padding", "causal": False},
    ),
    "a mask of one column is cut": Fault(
        KEYS_OF, "keys_of = keys", "test_every_mask_in_every_block",
        {"block_size": (2, 3), "kind": "per query", "causal": False},
    ),
    "the flag instead of the mask": Fault(
        BOTH, "return allowed", "test_every_mask_in_every_block", FREE,
    ),
    "the mask instead of the flag": Fault(
        BOTH, "return allowed if mask is None else mask",
        "test_every_mask_in_every_block", FREE,
    ),
    "the mask is made larger": Fault(
        "mask = mask[(None,) * (query.dim() - mask.dim())]",
        "mask = mask.expand(*query.shape[:-1], key.shape[-2]).contiguous()",
        "test_a_padding_mask_is_never_made_larger", {"backward": False},
    ),
    "the mask is looked into": Fault(
        MORE,
        "if hidden is None or hidden.any():\n                    " + MORE,
        "test_the_mask_is_not_looked_into",
    ),
    "only the last tile": Fault(
        MORE, "part = part_of_tile(q, k, v, hidden)",
        "test_every_length_and_block_equals_the_equation", TALL,
    ),
    "D left out": Fault(
        DOTS, "dots = 0 * (d_sums * out).sum(dim=-1, keepdim=True)",
        "test_gradients_equal_those_of_the_equation", FREE,
    ),
    "D not divided": Fault(
        DOTS, "dots = (d_out * out).sum(dim=-1, keepdim=True)",
        "test_gradients_equal_those_of_the_equation", FREE,
    ),
    "weights without their denominator": Fault(
        MEAN, "d_sums = d_out",
        "test_gradients_equal_those_of_the_equation", FREE,
    ),
    "the denominator of nothing": Fault(
        MEAN, "d_sums = d_out / denominator[..., rows].unsqueeze(-1)",
        "test_gradients_equal_those_of_the_equation", KINDLY,
    ),
    "the query's gradient unscaled": Fault(
        "d_scores @ (k * scale)", "d_scores @ k",
        "test_gradients_equal_finite_differences", {"causal": True, "masked": False},
    ),
    "the last query's gradient alone": Fault(
        "d_key[..., keys, :] += d_scores.mT @ q",
        "d_key[..., keys, :] = d_scores.mT @ q",
        "test_gradients_equal_finite_differences", {"causal": False, "masked": True},
    ),
    "no mask backward": Fault(
        "masses = tile_scores(q, k, hidden)", "masses = tile_scores(q, k, None)",
        "test_gradients_equal_those_of_the_equation", FREE,
    ),
    "gradients exchanged": Fault(
        "for d in (d_query, d_key, d_value)", "for d in (d_key, d_query, d_value)",
        "test_gradients_in_every_dtype", {"dtype": torch.float32},
    ),
    "all is kept twice": Fault(
        KEPT, "ctx.save_for_backward(*tensors, *output, output[0] + 0)",
        "test_what_is_kept_for_backward_is_linear",
    ),
    "a second derivative in silence": Fault(
        "raise NotImplementedError(", "return (None,) * 11 or print(",
        "test_a_second_derivative_is_refused",
    ),
    "a mapped axis in place": Fault(
        MAPPED, "else x", "test_the_mapped_axis_may_be_any"
    ),
    "autocast reaches the tiles": Fault(
        "return torch.autocast(x.device.type, enabled=False)",
        "return contextlib.nullcontext()",
        "test_autocast_changes_nothing_inside", {"dtype": torch.bfloat16},
    ),
}  # fmt: skip


def noticed(fault: Fault, line: str, monkeypatch) -> None:
    """Call the test with what the module holds when ``line`` stands in it."""
    module = InModule(NAMES[0], fault.right, line, fault.test, {}, "flash")
    held = planted(module).__globals__
    for name in NAMES:
        monkeypatch.setattr(test_flash, name, held[name])
    getattr(test_flash, fault.test)(**fault.case)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_suite_notices(fault, no_shape_checks, monkeypatch):
    noticed(fault, fault.right, monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        noticed(fault, fault.wrong, monkeypatch)
    assert not isinstance(caught.value, (NameError, SyntaxError)), caught.value
