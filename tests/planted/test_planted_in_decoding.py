"""Faults of a beam search, planted one by one: a named test has to notice each.

As in test_planted_in_attention.py the module is executed anew with one line replaced,
and the test is called with what it then holds.
"""

import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import test_decoding
import torch

import aiayn.decoding

PATH = Path(aiayn.decoding.__file__)


@dataclass(frozen=True)
class Fault:
    """What is replaced in decoding.py, and the call that must fail."""

    right: str
    wrong: str
    test: str
    case: dict = field(default_factory=dict)


FINISHED = "[c for c in candidates[:beam_size] if c.token == eos_id]"
KEPT = "[c for c in candidates if c.token != eos_id][:beam_size]"
SCORE = "score = log_probability / length_penalty(len(tokens), self.alpha)"
REACHABLE = "reachable = (length + 1, max_len)"
FINAL = "return bound < self.hypotheses[-1].score"
MOVED = "memory, source = take(memory, parents), source[parents]"
ORDER = "key=lambda c: (-c.log_probability, c.parent, c.token)"
SORTED = "values, order = values.sort(dim=-1, descending=True, stable=True)"

BY_DEFINITION = "test_beam_search_by_its_definition"
EARLY = "test_stopping_early_changes_nothing"
MOVES = "test_memory_source_and_cache_move_with_the_hypotheses"
FIRST = "test_eos_counts_only_among_the_first"
OWN_LENGTH = "test_every_hypothesis_is_scored_by_its_own_length"
LIMITS = "test_length_limits_of_a_beam"
SPREAD = {"kind": test_decoding.spread}
TIES = {"kind": test_decoding.quantised}
LATE = {"kind": test_decoding.late}
THREE = {"max_len": 3, "expected": [[5, 5, 5], [6, 6, 2]]}

FAULTS = {
    "EOS counts beyond rank k": Fault(
        FINISHED, "[c for c in candidates if c.token == eos_id]", FIRST
    ),
    "finished ones keep their place": Fault(
        KEPT, "[c for c in candidates[:beam_size] if c.token != eos_id]", FIRST
    ),
    "ended hypotheses go on growing": Fault(
        f"kept = {KEPT}",
        "kept = candidates[:beam_size]",
        "test_nothing_grows_after_eos",
        SPREAD,
    ),
    "k equal beginnings": Fault(
        "rows = [row for row, most in enumerate(limit) if most > 0]",
        "rows = [r for r, most in enumerate(limit) for _ in range(beam_size) if most]",
        "test_the_first_step_expands_one_beginning",
    ),
    "the penalty divides nothing": Fault(SCORE, "score = log_probability", OWN_LENGTH),
    "BOS counts as length": Fault(
        SCORE, SCORE.replace("len(tokens)", "len(tokens) + 1"), OWN_LENGTH
    ),
    "the sign of alpha": Fault(
        "penalty = ((5 + length) / 6) ** alpha",
        "penalty = ((5 + length) / 6) ** -alpha",
        "test_length_penalty_by_hand",
    ),
    "stops at the first that finishes": Fault(
        FINAL, "return True", "test_the_first_to_finish_need_not_be_the_best"
    ),
    "never stops early": Fault(FINAL, "return False", EARLY, LATE),
    "a tie is not waited for": Fault(
        FINAL,
        FINAL.replace("<", "<="),
        "test_a_tie_that_is_still_open_is_waited_for",
    ),
    "stops before n are found": Fault(
        "if len(self.hypotheses) < self.n_best:",
        "if not self.hypotheses:",
        EARLY,
        LATE,
    ),
    "the bound takes the present length": Fault(
        REACHABLE,
        "reachable = (length + 1,)",
        "test_no_continuation_beats_the_bound",
    ),
    "the bound forgets that alpha may be negative": Fault(
        REACHABLE, "reachable = (max_len,)", "test_no_continuation_beats_the_bound"
    ),
    "memory stays where it was": Fault(
        MOVED,
        "memory, source = take(memory, [0 for _ in parents]), source[parents]",
        MOVES,
        SPREAD,
    ),
    "the source belongs to another row": Fault(
        MOVED,
        "memory, source = take(memory, parents), source[parents[::-1]]",
        MOVES,
        SPREAD,
    ),
    "the cache is not reordered": Fault(
        "cache.reorder(parents)", "cache.reorder(sorted(parents))", MOVES, SPREAD
    ),
    "tokens of another parent": Fault(
        "torch.cat((tokens[parents], new), dim=-1)",
        "torch.cat((tokens[sorted(parents)], new), dim=-1)",
        BY_DEFINITION,
        SPREAD,
    ),
    "log-probabilities of the present step only": Fault(
        "log_p = log_p + log_p.new_tensor(so_far).unsqueeze(-1)",
        "log_p = log_p + 0 * log_p.new_tensor(so_far).unsqueeze(-1)",
        "test_the_trap_is_avoided",
    ),
    "probability 0 survives": Fault(
        "if score > -math.inf:",
        "if True:",
        "test_fewer_candidates_than_beams",
        {"dtype": torch.float64},
    ),
    "a beam wider than the vocabulary": Fault(
        "count = min(count, scores.shape[-1])",
        "count = count",
        "test_fewer_candidates_than_beams",
        {"dtype": torch.float64},
    ),
    "too few candidates are looked at": Fault(
        "best_continuations(log_p, rows, beam_size + 1)",
        "best_continuations(log_p, rows, beam_size)",
        BY_DEFINITION,
        SPREAD,
    ),
    "the limit is off by one": Fault(
        "if length == limit[row]:", "if length == limit[row] + 1:", LIMITS, THREE
    ),
    "the limit of the first row for all": Fault(
        "if length == limit[row]:", "if length == limit[0]:", BY_DEFINITION, SPREAD
    ),
    "what the limit cuts is lost": Fault(
        "finished, still_open = finished + still_open, []",
        "finished, still_open = finished, []",
        LIMITS,
        THREE,
    ),
    "ties as topk leaves them": Fault(
        SORTED,
        SORTED.replace("values.sort", "values.flip(-1).sort")
        + "; tokens = tokens.flip(-1)",
        "test_best_tokens_by_sorting",
    ),
    "ties by the highest id": Fault(
        ORDER, ORDER.replace("c.token", "-c.token"), BY_DEFINITION, TIES
    ),
    "ties by token before parent": Fault(
        ORDER,
        ORDER.replace("c.parent, c.token", "c.token, c.parent"),
        BY_DEFINITION,
        TIES,
    ),
    "NaN goes on": Fault(
        "if log_p.isnan().any():",
        "if False:",
        "test_a_beam_refuses_logits_without_a_distribution",
        {"logits": [float("nan")] * 5},
    ),
    "scores in the model's half precision": Fault(
        "logits.log_softmax(dim=-1, dtype=exact)",
        "logits.log_softmax(dim=-1)",
        "test_a_beam_in_lower_precision",
        {"dtype": torch.bfloat16},
    ),
    "greedy goes on after EOS": Fault(
        "(chosen == eos_id) |",
        "(chosen == eos_id).all() |",
        "test_each_row_ends_for_itself",
    ),
}


def use(monkeypatch, fault: Fault, planted: bool) -> None:
    """Give the tests what the module holds once it is executed, with or without."""
    source = PATH.read_text(encoding="utf-8")
    count = source.count(fault.right)
    assert count == 1, f"{fault.right!r} stands {count} times in {PATH.name}, not once"
    module = types.ModuleType("aiayn.decoding")
    text = source.replace(fault.right, fault.wrong) if planted else source
    exec(compile(text, PATH.name, "exec"), vars(module))
    for name in vars(aiayn.decoding):
        if name in vars(test_decoding) and hasattr(module, name):
            monkeypatch.setattr(test_decoding, name, getattr(module, name))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_suite_notices(fault, monkeypatch, no_shape_checks):
    test = getattr(test_decoding, fault.test)
    use(monkeypatch, fault, planted=False)
    test(**fault.case)
    use(monkeypatch, fault, planted=True)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        test(**fault.case)
    assert not isinstance(caught.value, (NameError, SyntaxError)), caught.value
