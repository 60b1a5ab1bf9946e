"""Faults of a training loop, planted one by one: a named test has to notice each.

As in test_planted_in_attention.py the module is executed anew with one line replaced,
and the test is called with what it then holds.
"""

import inspect
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import test_checkpoints
import test_training
import torch

import aiayn.training

PATH = Path(aiayn.training.__file__)


@dataclass(frozen=True)
class Fault:
    """What is replaced in training.py, and the call that must fail."""

    right: str
    wrong: str
    test: str
    case: dict = field(default_factory=dict)


LOSS = "test_loss_by_hand_and_by_torch"
PADDED = "test_padding_counts_in_neither_sum_nor_mean"
RATES = "test_schedule_gives_each_update_its_rate"
LIMIT = "test_each_round_holds_each_pair_once_within_the_limit"
GOES_ON = "test_the_stream_goes_on_where_it_stood"
SPLIT = "test_gradients_do_not_depend_on_the_split"
TWO = "test_two_processes_take_the_mean_of_their_gradients"
LOOP = "test_each_update_is_one_step_on_the_loss_of_its_batch"
RESUMED = "test_a_resumed_run_is_the_uninterrupted_one"
OTHERS = "test_another_optimiser_schedule_or_grouping_is_refused"
MIDDLE, UNEVEN = {"stop": 4}, {"sizes": [1, 5], "smoothing": 0.1}
ONE_MORE, RUN = {"padding": 1}, {"seed": 0, "accumulate": 1}

FAULTS = {
    "the share is summed over all classes": Fault(
        "smoothing * log_p.mean(dim=-1)",
        "smoothing * log_p.sum(dim=-1)",
        LOSS,
        {"smoothing": 0.1},
    ),
    "the true token keeps everything": Fault(
        "loss = (1 - smoothing) * loss -", "loss = loss -", LOSS, {"smoothing": 0.4}
    ),
    "padding in the denominator": Fault(
        "count = counts.sum().clamp(min=1)", "count = counts.numel()", PADDED, ONE_MORE
    ),
    "padding in the sum": Fault(
        "loss.masked_fill(~counts, 0.0).sum()", "loss.sum()", PADDED, ONE_MORE
    ),
    "NaN at padding reaches the gradient": Fault(
        "logits = logits.masked_fill(~counts.unsqueeze(-1), 0.0)",
        "logits = logits * counts.unsqueeze(-1)",
        PADDED,
        ONE_MORE,
    ),
    "a batch of padding divides by zero": Fault(
        "count = counts.sum().clamp(min=1)",
        "count = counts.sum()",
        "test_padding_alone_costs_nothing",
    ),
    "sums in half precision": Fault(
        "exact = torch.promote_types(logits.dtype, torch.float32)",
        "exact = logits.dtype",
        "test_half_precision_sums_in_single",
        {"dtype": torch.float16},
    ),
    "zero times infinity": Fault(
        "if smoothing:",
        "if True:",
        "test_a_forbidden_class_is_no_nan_without_smoothing",
    ),
    "a count that is ignored": Fault(
        "if count is None:", "if True:", "test_a_count_of_its_own_divides_the_sum"
    ),
    "labels that are not shifted": Fault(
        "return target[:, :-1], target[:, 1:]",
        "return target[:, :-1], target[:, :-1]",
        "test_repeating_what_was_read_is_no_answer",
    ),
    "the first rate is 0": Fault(
        "rate = noam_rate(self.last_epoch + 1,",
        "rate = noam_rate(self.last_epoch,",
        RATES,
    ),
    "the optimiser's own rate multiplies": Fault(
        "return [rate] * len(self.optimizer.param_groups)",
        "return [rate * lr for lr in self.base_lrs]",
        RATES,
    ),
    "the branches do not meet": Fault(
        "step * warmup**-1.5", "step * warmup**-1.4", "test_rates_of_the_paper"
    ),
    "a batch may take one row too many": Fault(
        "(len(batches[-1]) + 1) * max(grown) > max_tokens",
        "len(batches[-1]) * max(grown) > max_tokens",
        LIMIT,
        {"pool": 7},
    ),
    "the longest row is forgotten": Fault(
        "grown = [max(most, length) for most, length in zip(longest, lengths[i])]",
        "grown = list(lengths[i])",
        LIMIT,
        {"pool": 1},
    ),
    "a new batch remembers the old one's longest row": Fault(
        "            grown = list(lengths[i])",
        "            grown = grown",
        "test_batches_are_as_large_as_the_limit_allows",
    ),
    "short batches first": Fault(
        "self.plan = self.shuffled(self.plan)",
        "self.plan = self.plan",
        "test_sorting_saves_padding_and_shuffles_the_batches",
    ),
    "nothing is sorted": Fault(
        "order[first : first + self.pool] = pool",
        "pass",
        "test_sorting_saves_padding_and_shuffles_the_batches",
    ),
    "every pool rises": Fault(
        "reverse=falling", "reverse=False", "test_pools_meet_at_like_lengths"
    ),
    "a round in the order of the data": Fault(
        "order = self.shuffled(list(range(len(self.pairs))))",
        "order = list(range(len(self.pairs)))",
        LIMIT,
        {"pool": 7},
    ),
    "data begin again on resume": Fault(
        'self.done = state_dict["done"]', "self.done = 0", GOES_ON, MIDDLE
    ),
    "another round on resume": Fault(
        "self.generator.set_state(self.round_began)", "pass", GOES_ON, MIDDLE
    ),
    "a plan that stays": Fault(
        'self.round_began, self.plan = state_dict["round_began"], []',
        'self.round_began = state_dict["round_began"]',
        GOES_ON,
        {"stop": 0},
    ),
    "a generator that stays": Fault(
        'self.generator.set_state(state_dict["generator"])',
        "pass",
        GOES_ON,
        {"stop": 0},
    ),
    "another padding token": Fault(
        "padding_value=self.pad_id",
        "padding_value=PAD",
        "test_any_padding_token_fills_up",
    ),
    "a mean of means": Fault(
        "pad_id=pad_id, count=count", "pad_id=pad_id", SPLIT, UNEVEN
    ),
    "gradients are averaged twice": Fault(
        "machine.backward(loss * machine.num_processes)",
        "machine.backward(loss)",
        TWO,
        {"first": 2},
    ),
    "each process counts its own tokens": Fault(
        "count = machine.reduce(tokens_that_count(group, pad_id)).clamp(min=1)",
        "count = tokens_that_count(group, pad_id).clamp(min=1)",
        TWO,
        {"first": 2},
    ),
    "each process reports its own loss": Fault(
        "return machine.reduce(total)", "return total", TWO, {"first": 2}
    ),
    "gradients are shared too early": Fault(
        "if i == len(group) else",
        "if i == 1 else",
        "test_gradients_are_shared_once_for_each_update",
    ),
    "gradients of two updates add up": Fault(
        "optimizer.zero_grad(set_to_none=True)", "pass", LOOP
    ),
    "the schedule stands still": Fault(
        "            schedule.step()", "            pass", LOOP
    ),
    "a loss that is not finite goes on": Fault(
        'refuse_non_finite(step, "loss", losses[-1])',
        "pass",
        "test_errors_name_the_update_also_after_a_resume",
    ),
    "a gradient that is not finite goes on": Fault(
        'refuse_non_finite(step, "gradient norm", norm.item())',
        "pass",
        "test_a_gradient_that_is_not_finite_reaches_no_weight",
    ),
    "fp16 cannot skip an update": Fault(
        "if machine.scaler is None:",
        "if True:",
        "test_a_scaler_may_leave_out_an_update_that_overflowed",
    ),
    "updates are counted anew": Fault(
        "step = start + len(losses) + 1",
        "step = len(losses) + 1",
        "test_errors_name_the_update_also_after_a_resume",
    ),
    "a batch is read too early": Fault(
        "while group := list(islice(stream, accumulate)):",
        "while (group := list(islice(stream, accumulate))) and [next(stream, None)]:",
        "test_the_last_update_may_have_fewer_batches_and_none_is_read_early",
    ),
    "evaluation mode after a validation": Fault(
        "        model.train()\n",
        "        pass\n",
        "test_the_model_is_in_training_mode_for_every_update",
    ),
    "dropout goes another way": Fault(
        'torch.set_rng_state(state_dict["cpu"])', "pass", RESUMED, RUN
    ),
    "the generators are never asked for": Fault(
        "if restore_rng or (restore_rng is None and optimizer is not None):",
        "if restore_rng:",
        RESUMED,
        RUN,
    ),
    "loading for use moves the generators": Fault(
        "if restore_rng or (restore_rng is None and optimizer is not None):",
        "if restore_rng is not False:",
        "test_generators_only_go_on_where_asked",
    ),
    "a tied matrix is stored twice": Fault(
        "if weight.numel() and place in first:",
        "if False:",
        "test_a_tied_matrix_is_in_the_file_once",
        {"tied": True},
    ),
    "empty tensors are taken for one": Fault(
        "if weight.numel() and place in first:",
        "if place in first:",
        "test_views_and_transposes_are_saved_as_they_are",
    ),
    "the name before the content": Fault(
        "            os.fsync(file.fileno())  # on the disk before it gets the name",
        "            pass",
        "test_the_name_changes_hands_only_when_all_is_on_the_disk",
    ),
    "only the owner may read": Fault(
        "        partial.chmod(rights)  # safetensors lets nobody else read",
        "        pass",
        "test_others_may_read_it_as_any_new_file",
    ),
    "written in place": Fault(
        'partial = path.with_name(path.name + ".partial")',
        "partial = path",
        "test_the_name_changes_hands_only_when_all_is_on_the_disk",
    ),
    "a tuple comes back as a list": Fault(
        'return items if isinstance(value, list) else {"__tuple__": items}',
        "return items",
        "test_what_is_packed_comes_back",
    ),
    "two tensors of one name": Fault(
        "            while name in tensors:",
        "            while False:",
        "test_what_is_packed_comes_back",
    ),
    "heads may differ": Fault(
        "if theirs != mine and (resume or name not in MAY_DIFFER):",
        "if False:",
        "test_another_configuration_is_refused",
        {"changes": {"n_heads": 2}, "match": "n_heads=4.*n_heads=2"},
    ),
    "a resumed run of another dropout": Fault(
        "if theirs != mine and (resume or name not in MAY_DIFFER):",
        "if theirs != mine and name not in MAY_DIFFER:",
        "test_another_configuration_is_refused",
        {"changes": {"dropout": 0.1}, "match": "dropout=0.3.*dropout=0.1"},
    ),
    "tied into untied": Fault(
        "    if tied != file.tied:",
        "    if False:",
        "test_tied_against_untied_without_a_configuration",
        {"tied": True},
    ),
    "moments go to other parameters": Fault(
        "    if theirs != mine:\n", "    if False:\n", OTHERS
    ),
    "SGD takes Adam's state": Fault(
        "if kind is not None and kind != saved:", "if False:", OTHERS
    ),
    "a schedule takes another's warm-up": Fault(
        "            if mine != theirs:", "            if False:", OTHERS
    ),
    "a refusal leaves half of it changed": Fault(
        "for thing, state in reversed(before):",
        "for thing, state in []:",
        "test_a_part_that_refuses_leaves_the_others_as_they_were",
    ),
    "NaN is loaded": Fault(
        "        refuse_non_finite_weights(file.path, file.weights)\n    states",
        "        pass\n    states",
        "test_weights_that_are_not_finite_are_refused",
    ),
    "NaN replaces a good file": Fault(
        'refuse_non_finite_weights("model", weights)',
        "pass",
        "test_weights_that_are_not_finite_are_refused",
    ),
    "the built model rounds": Fault(
        "assign=True", "assign=False", "test_without_a_model_the_stored_one_is_built",
        {"changes": {}, "dtype": torch.float64},
    ),
    "the built model drops": Fault(
        '.to_empty(device="cpu").eval()',
        '.to_empty(device="cpu")',
        "test_without_a_model_the_stored_one_is_built",
        {"changes": {}, "dtype": torch.float32},
    ),
    "a sum in half precision": Fault(
        "torch.zeros_like(w, dtype=torch.float64)",
        "torch.zeros_like(w)",
        "test_half_precision_is_summed_in_double",
    ),
    "the mean of two models": Fault(
        "        check_same_model(first, file)\n",
        "",
        "test_checkpoints_of_two_models_have_no_mean",
    ),
}  # fmt: skip


def use(monkeypatch, fault: Fault, planted: bool) -> None:
    """Give the tests what the module holds once it is executed, with or without."""
    source = PATH.read_text(encoding="utf-8")
    count = source.count(fault.right)
    assert count == 1, f"{fault.right!r} stands {count} times in {PATH.name}, not once"
    module = types.ModuleType("aiayn.training")
    text = source.replace(fault.right, fault.wrong) if planted else source
    exec(compile(text, PATH.name, "exec"), vars(module))
    for name in vars(aiayn.training):
        for tests in (test_training, test_checkpoints):
            if name in vars(tests) and hasattr(module, name):
                monkeypatch.setattr(tests, name, getattr(module, name))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_suite_notices(fault, tmp_path, no_shape_checks):
    tests = next(t for t in (test_training, test_checkpoints) if hasattr(t, fault.test))
    test = getattr(tests, fault.test)
    given = inspect.signature(test).parameters

    def run(planted):
        with pytest.MonkeyPatch.context() as monkeypatch:
            use(monkeypatch, fault, planted)
            folder = tmp_path / str(planted)
            folder.mkdir()
            fixtures = {"tmp_path": folder, "monkeypatch": monkeypatch}
            test(**{k: v for k, v in fixtures.items() if k in given}, **fault.case)

    run(planted=False)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        run(planted=True)
    assert not isinstance(caught.value, (NameError, SyntaxError)), caught.value
