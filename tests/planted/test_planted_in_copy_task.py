"""Faults of the copy task and its training, planted one by one, and noticed.

As in test_planted_in_caches.py a line is replaced in memory. The tests then find the
module's names with the fault in them.
"""

import inspect
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import test_copy_task

from aiayn import copy_task

SOURCE = Path(copy_task.__file__)
NAMES = (
    "CopyTask", "exact_match", "train_copy_model", "CopyBatches", "CopyRun",
    "CopyTraining", "copy_optimizer", "held_out_set", "part_of", "short_sequences",
    "to_tensors",
)  # fmt: skip
TOLD = "test_checkpoints_are_written_when_said_and_at_the_end"
RESUMED = "test_a_resumed_run_equals_the_whole_one"


@dataclass(frozen=True)
class Fault:
    """What is replaced in copy_task.py, and the call that must fail."""

    right: str
    wrong: str
    test: str
    case: dict = field(default_factory=dict)


FAULTS = {
    "test and validation exchanged": Fault(
        '{0: "test", 1: "validation"}', '{1: "test", 0: "validation"}',
        "test_the_part_of_a_sequence_is_fixed_for_ever",
    ),
    "Python's own hash": Fault(
        'remainder = int.from_bytes(digest, "big") % 10',
        "remainder = hash(tuple(symbols)) % 10",
        "test_the_part_of_a_sequence_is_fixed_for_ever",
    ),
    "validation sequences are trained on": Fault(
        "== part:\n", '!= "test":\n', "test_parts_do_not_meet",
    ),
    "no length but the longest": Fault(
        "torch.randint(1, self.max_length + 1, ()",
        "torch.randint(self.max_length, self.max_length + 1, ()",
        "test_lengths_and_symbols_cover_the_task",
    ),
    "the last symbol is never drawn": Fault(
        "torch.randint(EOS + 1, self.vocab_size, size",
        "torch.randint(EOS + 1, self.vocab_size - 1, size",
        "test_lengths_and_symbols_cover_the_task",
    ),
    "torch's global generator": Fault(
        "self.vocab_size, size, generator=generator)", "self.vocab_size, size)",
        "test_drawing_depends_on_the_generator_alone",
    ),
    "targets without BOS": Fault(
        "F.pad(source, (1, 0), value=BOS)", "F.pad(source, (1, 0), value=PAD)",
        "test_sequences_as_tensors",
    ),
    "sources without EOS": Fault(
        "[torch.tensor([*symbols, EOS])", "[torch.tensor([*symbols])",
        "test_sequences_as_tensors",
    ),
    "one right token is enough": Fault(
        "(written == source).all(dim=-1)", "(written == source).any(dim=-1)",
        "test_what_is_not_exact_does_not_match", {"fault": "last symbol wrong"},
    ),
    "what is written after the end is cut off": Fault(
        "width = max(written.shape[1], source.shape[1])\n",
        "written, width = written[:, : source.shape[1] - 1], source.shape[1] - 1\n"
        "    source = source[:, :width]\n",
        "test_what_is_not_exact_does_not_match", {"fault": "one symbol more"},
    ),
    "answers in order of length": Fault(
        "right[rows] = copied(model, source)",
        "right[start : start + batch_size] = copied(model, source)",
        "test_answers_come_in_the_order_given",
    ),
    "left in evaluation mode": Fault(
        "model.train(was_training)", "pass",
        "test_measured_in_evaluation_mode_and_put_back", {"training": True},
    ),
    "rows that no process gets": Fault(
        "slice(process, None, n_processes)",
        "slice(process * (batch_size // n_processes), "
        "(process + 1) * (batch_size // n_processes))",
        "test_the_rows_of_all_processes_are_the_batch", {"batch_size": 7, "n": 3},
    ),
    "every process trains on all rows": Fault(
        "slice(process, None, n_processes)", "slice(None)",
        "test_the_rows_of_all_processes_are_the_batch", {"batch_size": 8, "n": 2},
    ),
    "the place of another generator": Fault(
        '{"generator": self.generator.get_state()}',
        '{"generator": torch.get_rng_state()}',
        "test_batches_go_on_from_their_place",
    ),
    "a place that is not taken": Fault(
        'self.generator.set_state(state["generator"])', "pass",
        "test_batches_go_on_from_their_place",
    ),
    "padding counts": Fault(
        "int((source != PAD).sum())", "source.numel()",
        "test_tokens_are_those_to_be_written",
    ),
    "one perfect validation is enough": Fault(
        "self.validation[-3:]] == [1.0, 1.0, 1.0]", "self.validation[-1:]] == [1.0]",
        "test_three_perfect_validations_in_a_row_end_a_run",
        {"shares": [1.0, 1.0, 0.998, 1.0], "ends": False},
    ),
    "the paper's beta2 in any case": Fault(
        "betas=(0.9, beta2)", "betas=(0.9, 0.98)",
        "test_the_optimiser_is_adam_and_its_rate_peaks_as_told",
    ),
    "another peak": Fault(
        "math.sqrt(d_model * warmup)", "math.sqrt(d_model)",
        "test_the_optimiser_is_adam_and_its_rate_peaks_as_told",
    ),
    "the rate of the next update": Fault(
        "noam_rate(step, ", "noam_rate(step + 1, ", "test_each_update_is_told",
    ),
    "sequences validated twice": Fault(
        "self.sequences[index::n]", "self.sequences[index:]",
        "test_processes_divide_a_validation_and_agree",
    ),
    "every process keeps its own count": Fault(
        'self.accelerator.reduce(count, "sum").item()', "count.item()",
        "test_processes_divide_a_validation_and_agree",
    ),
    "the seam is ignored": Fault(
        '"attend": attend}', '"attend": fused_attention}',
        "test_the_model_is_built_with_the_seams_given",
    ),
    "the curve begins anew": Fault(
        'self.run.losses[:] = found.extra["losses"]', "pass", RESUMED, {"stop": 3},
    ),
    "the same batches again": Fault(
        "            batches=self.batches, restore_rng", "            restore_rng",
        RESUMED, {"stop": 3},
    ),
    "Adam forgets": Fault(
        "path, self.run.model, optimizer=self.optimizer, schedule=self.schedule,",
        "path, self.run.model, schedule=self.schedule,",
        RESUMED, {"stop": 3},
    ),
    "all processes drop the same units": Fault(
        "restore_rng=processes(self.accelerator)[0] == 0", "restore_rng=True",
        "test_only_the_process_that_saved_gets_its_generator_back", {"index": 1},
    ),
    "the rate starts again": Fault(
        "optimizer=self.optimizer, schedule=self.schedule,\n            batches",
        "optimizer=self.optimizer,\n            batches", RESUMED, {"stop": 3},
    ),
    "the last update is lost": Fault(
        "if checkpoint is not None and (ends or update.step % save_every == 0):",
        "if checkpoint is not None and update.step % save_every == 0:", TOLD,
    ),
    "saved at every validation": Fault(
        "update.step % save_every == 0", "update.step % validate_every == 0", TOLD,
    ),
    "a run that has ended is trained on": Fault(
        "if not run.finished and len(run.losses) < max_steps:", "if True:",
        "test_a_run_that_has_ended_is_read_and_not_trained",
    ),
    "another rate is taken for the same": Fault(
        '"beta2": beta2,', "", "test_another_recipe_is_refused_and_the_file_left_alone",
        {"change": {"beta2": 0.98}},
    ),
}  # fmt: skip


def with_line(fault: Fault, line: str) -> types.ModuleType:
    """The module with ``line`` where the right one stands."""
    source = SOURCE.read_text(encoding="utf-8")
    assert source.count(fault.right) >= 1, f"{fault.right!r} stands there no more"
    module = types.ModuleType("aiayn.copy_task")
    module.__package__ = "aiayn"
    exec(compile(source.replace(fault.right, line), "planted", "exec"), vars(module))
    return module


def noticed(fault: Fault, line: str, monkeypatch, tmp_path) -> None:
    """Call the test with what the module holds when ``line`` stands in it."""
    module = with_line(fault, line)
    monkeypatch.setitem(sys.modules, "aiayn.copy_task", module)
    for name in NAMES:
        monkeypatch.setattr(test_copy_task, name, getattr(module, name))
    if hasattr(module, "training_batches"):
        monkeypatch.setattr(test_copy_task, "endless", module.training_batches)
    small = module.CopyTask(n_symbols=4, max_length=3)
    monkeypatch.setattr(test_copy_task, "SMALL", small)
    test, case = getattr(test_copy_task, fault.test), dict(fault.case)
    wanted = inspect.signature(test).parameters
    if "tmp_path" in wanted:
        case["tmp_path"] = tmp_path
    if "whole" in wanted:
        case["whole"] = test_copy_task.never_stopped()
    test(**case)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_test_notices(fault, no_shape_checks, monkeypatch, tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir(), wrong.mkdir()
    with monkeypatch.context() as patch:
        noticed(fault, fault.right, patch, right)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        noticed(fault, fault.wrong, monkeypatch, wrong)
    assert not isinstance(caught.value, (NameError, SyntaxError)), caught.value
