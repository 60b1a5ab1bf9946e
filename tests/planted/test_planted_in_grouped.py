"""Faults of grouped-query attention, planted one by one; its own tests must notice.

As in test_planted_in_attention.py a line is replaced in memory. The tests then find the
module's names with the fault in them.
"""

import inspect
from dataclasses import dataclass, field

import pytest
import test_grouped_query
from test_planted_in_attention import Fault as InModule
from test_planted_in_attention import planted

import aiayn

NAMES = ("GroupedQueryAttention", "align_heads", "pool_heads", "pool_model")


@dataclass(frozen=True)
class Fault:
    """What is replaced in grouped_query.py, and the call that must fail."""

    right: str
    wrong: str
    test: str
    case: dict = field(default_factory=dict)


GROUPS = "query.unflatten(1, groups)"
ROWS = "query.reshape(batch, *groups, d_k)"
ONE = "heads = self.attend(query.reshape(batch, *groups, d_k), key, value, mask)"
MANY = "self.attend(query, key, value, mask, causal=causal)"
ROOM = "mask = mask.expand(batch, self.n_kv_heads, -1, -1, -1).flatten(0, 1)"
TOGETHER = "key, value = (x.flatten(0, 1).unsqueeze(1) for x in (key, value))"
CUT = "return mask.unflatten(1, (n_kv_heads, -1))"
POOLED = "x.unflatten(0, (n_kv_heads, -1, width))"
EQUATION = {"attend": aiayn.attention, "n_kv_heads": 2}

FAULTS = {
    "tiles": Fault(
        GROUPS, "query.unflatten(1, groups[::-1]).transpose(1, 2)",
        "test_equals_the_equation_head_by_head", EQUATION | {"n_queries": 7},
    ),
    "tiles, at one query": Fault(
        ROWS, "query.reshape(batch, *groups[::-1], d_k).transpose(1, 2)",
        "test_equals_the_equation_head_by_head", EQUATION | {"n_queries": 1},
    ),
    "the flag for rows that are heads": Fault(
        ONE, ONE.replace("mask)", "mask, causal=causal)"),
        "test_one_query_stands_at_the_last_key",
    ),
    "the flag stays behind": Fault(
        MANY, MANY.replace(", causal=causal", ""),
        "test_any_mask_means_the_same_as_for_heads", {"n_queries": 4, "causal": True},
    ),
    "the mask stays behind, at one query": Fault(
        ONE, ONE.replace(", mask)", ")"),
        "test_any_mask_means_the_same_as_for_heads", {"n_queries": 1, "causal": False},
    ),
    "the mask of the first row": Fault(
        ROOM, ROOM.replace("mask.expand", "mask[:1].expand"),
        "test_any_mask_means_the_same_as_for_heads", {"n_queries": 4, "causal": False},
    ),
    "masks by tiles": Fault(
        CUT, "return mask.unflatten(1, (-1, n_kv_heads)).transpose(1, 2)",
        "test_any_mask_means_the_same_as_for_heads", {"n_queries": 4, "causal": False},
    ),
    "rows of a mask for heads": Fault(
        "mask = mask[(None,) * (4 - mask.dim())]",
        "mask = mask.unsqueeze(1) if mask.dim() == 3 else "
        "mask[(None,) * (4 - mask.dim())]",
        "test_any_mask_means_the_same_as_for_heads", {"n_queries": 4, "causal": False},
    ),
    "keys repeated": Fault(
        TOGETHER,
        "key, value = (x.repeat_interleave(groups[1], 1)"
        ".unflatten(1, groups).flatten(0, 1) for x in (key, value))",
        "test_the_cache_is_read_in_place", {"n_queries": 2, "room": 7},
    ),
    "keys copied at one query": Fault(
        ONE, ONE.replace("key, value", "key.clone(), value.clone()"),
        "test_the_cache_is_read_in_place", {"n_queries": 1, "room": 9},
    ),
    "a mask in place of the flag": Fault(
        MANY,
        "self.attend(query, key, value, torch.ones(n_queries, "
        "key.shape[2]).tril(key.shape[2] - n_queries).bool())",
        "test_the_causal_flag_stays_a_flag",
    ),
    "no gradient for shared keys": Fault(
        TOGETHER, TOGETHER.replace("x.flatten", "x.detach().flatten"),
        "test_a_key_head_learns_the_sum_of_its_group",
        {"n_kv_heads": 2, "n_queries": 5},
    ),
    "the first head for the mean": Fault(
        "heads.mean(dim=1)", "heads[:, 0]",
        "test_pooled_heads_are_means_of_neighbours", {"n_kv_heads": 2, "bias": True},
    ),
    "the sum for the mean": Fault(
        "heads.mean(dim=1)", "heads.sum(dim=1)",
        "test_pooled_heads_are_means_of_neighbours", {"n_kv_heads": 2, "bias": False},
    ),
    "heads pooled by tiles": Fault(
        POOLED, "x.unflatten(0, (-1, n_kv_heads, width)).transpose(0, 1)",
        "test_pooled_heads_are_means_of_neighbours", {"n_kv_heads": 2, "bias": True},
    ),
    "values cut like keys": Fault(
        'width = attention.d_k if name.startswith("key") else attention.d_v',
        "width = attention.d_k",
        "test_pooled_heads_are_means_of_neighbours", {"n_kv_heads": 1, "bias": True},
    ),
    "the given model is pooled": Fault(
        "pooled = copy.deepcopy(model)", "pooled = model",
        "test_a_pooled_model_is_what_its_configuration_builds",
    ),
    "the configuration does not say": Fault(
        "pooled.config = dataclasses.replace(model.config, n_kv_heads=n_kv_heads)",
        "pass",
        "test_a_pooled_model_is_what_its_configuration_builds",
    ),
    "queries are not turned": Fault(
        "turn_rows(aligned.query_projection, turns)", "pass",
        "test_alignment_changes_no_answer_and_brings_heads_together", {"n_kv_heads": 2},
    ),
    "values are turned twice": Fault(
        "(heads @ turns.mT)", "(heads @ turns)",
        "test_alignment_changes_no_answer_and_brings_heads_together", {"n_kv_heads": 2},
    ),
    "turned away": Fault(
        "turns = u @ vh", "turns = vh.mT @ u.mT",
        "test_alignment_finds_heads_that_were_only_turned",
    ),
}  # fmt: skip


def noticed(fault: Fault, line: str, monkeypatch, notebook_function) -> None:
    """Call the test with what the module holds when ``line`` stands in it."""
    module = InModule(NAMES[0], fault.right, line, fault.test, {}, "grouped_query")
    cls = planted(module)
    held = cls.mix.__globals__
    for name in NAMES:
        monkeypatch.setattr(test_grouped_query, name, held[name])
    test, case = getattr(test_grouped_query, fault.test), dict(fault.case)
    if "notebook_function" in inspect.signature(test).parameters:
        case["notebook_function"] = notebook_function
    test(**case)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_suite_notices(fault, no_shape_checks, monkeypatch, notebook_function):
    noticed(fault, fault.right, monkeypatch, notebook_function)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        noticed(fault, fault.wrong, monkeypatch, notebook_function)
    assert not isinstance(caught.value, (NameError, SyntaxError)), caught.value
