"""Faults of attention, planted one by one: the shared suites have to notice each.

As in test_planted.py a line of a module is replaced, but in memory: the module is
executed anew with the fault in it, and the test is called with what it then holds. A
fault costs milliseconds, so that every kind of fault can stand here.
"""

import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import test_attend
import test_seams
import torch

import aiayn

PACKAGE = Path(aiayn.__file__).parent
FUSED, PLAIN = "fused_attention", "attention"


@dataclass(frozen=True)
class Fault:
    """What is replaced in scaled_dot_product.py, and the call that must fail."""

    name: str
    right: str
    wrong: str
    test: str
    case: dict = field(default_factory=dict)
    module: str = "scaled_dot_product"


HIDE = "    scores = scores.masked_fill(~(mask | blind), -math.inf)\n"
SOFTMAX = "    return scores.softmax(dim=-1).masked_fill(blind, 0.0)\n"
MIXED = "    return mixed.masked_fill(blind, 0.0)\n"
WEIGHTS = (
    "    return attention_weights(query, key, mask, causal=causal, scale=scale) @ value"
)
EXPAND = "    query, key, value = (x.expand(*leading, *x.shape[-2:])"
CHECK = "    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:\n"
ROOT = "    scale = query.shape[-1] ** -0.5 if scale is None else scale\n"
BOTH = (
    "        allowed = causal_mask(n_queries, n_keys, device=query.device)\n"
    "        mask = allowed if mask is None else mask & allowed\n"
)

ONE_ROW = "    if mask is not None and query.shape[0] == 1:\n        mask = None\n"
HEADS = {"attend": aiayn.attention, "widths": {}}
HALF, SINGLE = {"dtype": torch.float16}, {"dtype": torch.float32}

FAULTS = {
    # masks: what they mean
    "an empty row is NaN": Fault(
        PLAIN, HIDE, "    scores = scores.masked_fill(~mask, -math.inf)\n",
        "test_finite_and_hidden_in_every_dtype",
        {"kind": "an empty row", "d_v": 4} | SINGLE,
    ),
    "an empty row is NaN in the backward pass only": Fault(
        PLAIN, HIDE + SOFTMAX,
        "    weights = (scores + torch.where(mask, 0.0, -math.inf)).softmax(dim=-1)\n"
        "    return torch.where(blind, 0.0, weights)\n",
        "test_gradients_equal_the_loops",
        {"kind": "an empty row", "causal": False, "d_v": 4},
    ),
    "an empty row is the mean": Fault(
        FUSED, MIXED, "    return mixed\n",
        "test_a_query_with_nothing_to_attend_to_gives_zeros",
    ),
    "True means hidden": Fault(
        PLAIN, HIDE, "    scores = scores.masked_fill(mask & ~blind, -math.inf)\n",
        "test_true_means_may_attend",
    ),
    "a mask of numbers is taken": Fault(
        PLAIN, CHECK, "    if not isinstance(mask, Tensor):\n",
        "test_a_mask_of_numbers_is_refused", {"causal": False},
    ),
    "a mask of numbers is taken by the kernel": Fault(
        FUSED, CHECK, "    if not isinstance(mask, Tensor):\n",
        "test_a_mask_of_numbers_is_refused", {"causal": True},
    ),
    "masked after the softmax": Fault(
        PLAIN, HIDE + SOFTMAX,
        "    return scores.softmax(dim=-1).masked_fill(~mask, 0.0)\n",
        "test_weights_are_normalised_after_masking",
    ),
    "the masked scores are thrown away": Fault(
        PLAIN, HIDE, "    scores.masked_fill(~(mask | blind), -math.inf)\n",
        "test_what_hidden_keys_hold_does_not_matter",
    ),
    # masks: the stand-in for minus infinity
    "a fill of -1e4": Fault(
        PLAIN, HIDE, HIDE.replace("-math.inf", "-1e4"),
        "test_a_hidden_key_has_weight_zero_however_small_the_others_score",
        {"d_v": 4} | SINGLE,
    ),
    "a fill of -1e9": Fault(
        PLAIN, HIDE, HIDE.replace("-math.inf", "-1e9"),
        "test_finite_and_hidden_in_every_dtype", {"kind": "padding", "d_v": 4} | HALF,
    ),
    "a fill of the smallest number": Fault(
        PLAIN, HIDE, HIDE.replace("-math.inf", "torch.finfo(scores.dtype).min"),
        "test_a_hidden_key_has_weight_zero_however_small_the_others_score",
        {"d_v": 4} | HALF,
    ),
    # masks: where they apply
    "one row is not masked": Fault(
        PLAIN, ROOT, ROOT + ONE_ROW,
        "test_one_sequence_is_masked_like_many", {"causal": False, "d_v": 4},
    ),
    "every row has the mask of the first": Fault(
        FUSED, EXPAND, "    mask = mask[:1] if mask is not None else mask\n" + EXPAND,
        "test_one_sequence_is_masked_like_many", {"causal": False, "d_v": 5},
    ),
    "padding along the queries": Fault(
        PLAIN, HIDE,
        "    turn = mask.shape[-2] == 1 and scores.shape[-2] == scores.shape[-1]\n"
        "    mask = mask.mT if turn else mask\n" + HIDE,
        "test_no_axis_of_a_mask_is_taken_for_another", {"shape": (3, 1, 1, 3)},
    ),
    "rows for heads": Fault(
        PLAIN, HIDE,
        "    mask = mask.unsqueeze(1) if mask.dim() == 3 else mask\n" + HIDE,
        "test_no_axis_of_a_mask_is_taken_for_another", {"shape": (3, 3, 3)},
    ),
    # softmax, scale, width
    "softmax over the queries": Fault(
        PLAIN, SOFTMAX, SOFTMAX.replace("dim=-1", "dim=-2"),
        "test_equals_the_equation_by_hand", {"kind": "free", "causal": False, "d_v": 4},
    ),
    "a scale of 0 is no scale": Fault(
        PLAIN, ROOT, "    scale = scale or query.shape[-1] ** -0.5\n",
        "test_scale_is_used_as_given", {"scale": 0.0, "d_v": 4},
    ),
    "multiplied by the root": Fault(
        PLAIN, ROOT, ROOT.replace("-0.5", "0.5"),
        "test_scores_are_divided_by_the_root_of_the_key_width_once",
    ),
    "scaled twice": Fault(
        PLAIN, "@ key.transpose(-2, -1)", "@ (key * scale).transpose(-2, -1)",
        "test_scores_are_divided_by_the_root_of_the_key_width_once",
    ),
    "scaled after a product that is too large": Fault(
        PLAIN, "    scores = (query * scale) @ key.transpose(-2, -1)",
        "    scores = (query @ key.transpose(-2, -1)) * scale",
        "test_a_product_that_fits_only_once_scaled", {"d_v": 4} | HALF,
    ),
    "exp without the largest score": Fault(
        PLAIN, "        return scores.softmax(dim=-1)\n",
        "        return scores.exp() / scores.exp().sum(-1, keepdim=True)\n",
        "test_scores_as_large_and_as_small_as_numbers_go", {"d_v": 4} | SINGLE,
    ),
    "as wide as the keys": Fault(
        PLAIN, WEIGHTS, WEIGHTS + "[..., : key.shape[-1]]",
        "test_output_is_as_wide_as_the_values",
    ),
    # causality
    "the flag is a hint": Fault(
        PLAIN, "    if causal:\n", "    if causal and mask is not None:\n",
        "test_the_causal_flag_acts_with_and_without_a_mask",
    ),
    "the flag of torch, upper left": Fault(
        FUSED, " and n_queries == n_keys:\n", ":\n",
        "test_causal_aligns_the_last_query_with_the_last_key",
    ),
    "one token further": Fault(
        PLAIN, "key_place <= query_place", "key_place <= 1 + query_place",
        "test_true_means_may_attend",
    ),
    "without its own place": Fault(
        PLAIN, "key_place <= query_place", "key_place < query_place",
        "test_true_means_may_attend",
    ),
    "either mask will do": Fault(
        FUSED, BOTH, BOTH.replace("mask & allowed", "mask | allowed"),
        "test_two_masks_can_leave_nothing_together",
    ),
    # other roads
    "a branch on what the mask holds": Fault(
        PLAIN, HIDE,
        "    if mask.all():\n        return scores.softmax(dim=-1)\n" + HIDE,
        "test_under_vmap", {"causal": False, "d_v": 4},
    ),
    "a mask made on the CPU": Fault(
        PLAIN, "device=scores.device", "device=None",
        "test_on_the_meta_device", {"kind": "free"},
    ),
    "scores changed in place of the query": Fault(
        PLAIN, "(query * scale) @", "query.detach().mul_(scale) @",
        "test_inputs_are_left_alone",
    ),
    "a copy of the keys without a gradient": Fault(
        PLAIN, "@ key.transpose(-2, -1)", "@ key.detach().transpose(-2, -1)",
        "test_a_gradient_does_not_depend_on_who_else_wants_one",
        {"kind": "none", "causal": False, "d_v": 4},
    ),
    "a view of what may be strided": Fault(
        PLAIN, WEIGHTS, WEIGHTS.replace("@ value", "@ value.view(value.shape).view(-1)")
        + ".view(value.shape)",
        "test_any_memory_layout",
    ),
    # heads
    "view in place of transpose": Fault(
        "MultiHeadAttention", "return cut.transpose(1, 2)",
        "return x.reshape(x.shape[0], n_heads, x.shape[1], -1)",
        "test_a_class_attends_head_by_head", HEADS, module="multi_head",
    ),
    "heads merged without a transpose": Fault(
        "MultiHeadAttention", "return heads.transpose(1, 2).flatten(-2)",
        "return heads.reshape(heads.shape[0], heads.shape[2], -1)",
        "test_a_class_attends_head_by_head", HEADS, module="multi_head",
    ),
    "the width of the model for that of a head": Fault(
        "MultiHeadAttention",
        "return self.attend(query, key, value, mask, causal=causal)",
        "return self.attend(query, key, value, mask, causal=causal, scale=8**-0.5)",
        "test_a_class_attends_head_by_head", HEADS, module="multi_head",
    ),
    "the mask stays behind": Fault(
        "MultiHeadAttention",
        "return self.attend(query, key, value, mask, causal=causal)",
        "return self.attend(query, key, value, causal=causal)",
        "test_a_class_masks_one_sequence_like_many", {"causal": False},
        module="multi_head",
    ),
    "the flag stays behind": Fault(
        "MultiHeadAttention",
        "return self.attend(query, key, value, mask, causal=causal)",
        "return self.attend(query, key, value, mask)",
        "test_a_class_attends_head_by_head", HEADS, module="multi_head",
    ),
    "no mask unless it is trained": Fault(
        "MultiHeadAttention",
        "return self.attend(query, key, value, mask, causal=causal)",
        "mask = mask if self.training else None\n"
        "        return self.attend(query, key, value, mask, causal=causal)",
        "test_a_class_gives_the_same_in_every_mode_and_layout", module="multi_head",
    ),
}  # fmt: skip


def planted(fault: Fault):
    """What a module holds once it is executed with the fault in it."""
    path = PACKAGE / f"{fault.module}.py"
    source = path.read_text(encoding="utf-8")
    count = source.count(fault.right)
    assert count == 1, f"{fault.right!r} stands {count} times in {path.name}, not once"
    module = types.ModuleType(f"aiayn.{fault.module}")
    code = compile(source.replace(fault.right, fault.wrong), path.name, "exec")
    exec(code, vars(module))
    return getattr(module, fault.name)


def call(fault: Fault, thing) -> None:
    case = dict(fault.case)
    if fault.module == "multi_head":
        getattr(test_seams, fault.test)(thing, **case)
    else:
        getattr(test_attend, fault.test)(thing, **case)


@pytest.mark.filterwarnings("ignore")  # of the anomaly that is meant to be found
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_suite_notices(fault, no_shape_checks):
    right = Fault(
        fault.name, fault.right, fault.right, fault.test, fault.case, fault.module
    )
    call(right, planted(right))
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        call(fault, planted(fault))
    assert not isinstance(caught.value, (NameError, SyntaxError)), caught.value
