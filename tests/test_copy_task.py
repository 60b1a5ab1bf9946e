"""The copy task: what is held out stays held out, and right means right to the end."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import random
import subprocess
import sys
from fractions import Fraction
from importlib.resources import files

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import seeded, small_model
from torch import nn

from aiayn import (
    BlockAllocator,
    CopyTask,
    DecoderCache,
    GroupedQueryAttention,
    KVCache,
    MultiHeadAttention,
    PagedKVCache,
    Transformer,
    TransformerConfig,
    attention,
    exact_match,
    flash_attention,
    fused_attention,
    greedy_decode,
    load_copy_model,
    noam_rate,
    read_checkpoint,
    save_checkpoint,
    train_copy_model,
)
from aiayn.copy_task import (
    CopyBatches,
    CopyRun,
    CopyTraining,
    copy_optimizer,
    held_out_set,
    part_of,
    short_sequences,
    to_tensors,
)
from aiayn.copy_task import training_batches as endless
from aiayn.tokens import BOS, EOS, PAD


@pytest.fixture(scope="module")
def tests() -> list[tuple[int, ...]]:
    """The book's test set."""
    return held_out_set(CopyTask())


def part_by_hand(symbols) -> str:
    digest = hashlib.blake2b(bytes(list(symbols)), digest_size=8).hexdigest()
    return {0: "test", 1: "validation"}.get(int(digest, 16) % 10, "training")


def test_the_part_of_a_sequence_is_fixed_for_ever():
    """Python's own hash is salted: it would hold out others in every process."""
    task = CopyTask()
    every = [s for n in (1, 2, 3) for s in itertools.product(range(3, 13), repeat=n)]
    parts = [part_of(s) for s in every]
    assert all(part == part_by_hand(s) for part, s in zip(parts, every, strict=True))
    assert parts.count("test") == len(short_sequences(task)) == 95
    assert part_of([3, 4, 5]) == part_of((3, 4, 5))
    assert 0.07 < parts.count("validation") / len(parts) < 0.13


def test_parts_do_not_meet():
    task = CopyTask(n_symbols=3, max_length=4)
    drawn = {
        part: set(task.draw(part, 300, seeded(0)))
        for part in ("training", "validation", "test")
    }
    for first, second in itertools.combinations(drawn.values(), 2):
        assert not first & second
    for part, sequences in drawn.items():
        assert {part_by_hand(s) for s in sequences} == {part}


def test_no_held_out_sequence_is_trained_on(tests):
    """Batches as training draws them, against the test set and a validation set."""
    task = CopyTask()
    held_out = {*tests, *task.draw("validation", 500, seeded(1))}
    batches = endless(task, 64, seeded(0), torch.device("cpu"))
    seen = set()
    for source, target in itertools.islice(batches, 40):
        for tensor in (source, target):
            for row in tensor.tolist():
                seen.add(tuple(t for t in row if t > EOS))
    assert len(seen) > 2000
    assert not seen & held_out
    assert {part_by_hand(s) for s in seen} == {"training"}


def test_lengths_and_symbols_cover_the_task():
    task = CopyTask(n_symbols=5, max_length=7)
    drawn = task.draw("training", 2000, seeded(0))
    assert {len(s) for s in drawn} == set(range(1, 8))
    assert {t for s in drawn for t in s} == set(range(3, 8))
    assert task.vocab_size == 8
    assert task.draw("training", 0, seeded(0)) == []


def test_drawing_depends_on_the_generator_alone():
    task = CopyTask()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = task.draw("training", 20, seeded(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert task.draw("training", 20, seeded(3)) == first
    assert task.draw("training", 20, seeded(4)) != first


def test_the_test_set_is_always_the_same(tests):
    task = CopyTask()
    assert len(tests) == len(set(tests)) == 10_000
    assert {part_by_hand(s) for s in tests} == {"test"}
    assert set(short_sequences(task)) <= set(tests)
    short = [s for s in tests if len(s) <= 3]
    assert sorted(short) == sorted(short_sequences(task))
    torch.manual_seed(9)
    assert held_out_set(task, 400) == tests[:400]


def test_short_sequences_of_every_part():
    task = CopyTask(n_symbols=4, max_length=2)
    found = {
        part: short_sequences(task, part) for part in ("training", "validation", "test")
    }
    assert sum(map(len, found.values())) == 4 + 16
    assert short_sequences(task, "training", 1) == [
        s for s in found["training"] if len(s) == 1
    ]


def test_sequences_as_tensors():
    """The source is meant to hold the answer: the task is to copy it."""
    source, target = to_tensors(CopyTask(), [(3, 4, 5), (12,)])
    assert source.tolist() == [[3, 4, 5, EOS], [12, EOS, PAD, PAD]]
    assert target.tolist() == [[BOS, 3, 4, 5, EOS], [BOS, 12, EOS, PAD, PAD]]
    assert source.dtype == target.dtype == torch.long


# --- exact match ----------------------------------------------------------------------


class Copier(nn.Module):
    """Writes the source down, with a fault of choice."""

    def __init__(self, fault=None):
        super().__init__()
        self.fault = fault
        self.weight = nn.Parameter(torch.zeros(1))
        self.modes, self.batches = [], []

    def encode(self, source):
        self.modes.append(self.training)
        self.batches.append(source.shape)
        answer = F.pad(source, (0, 3))
        lengths = (source > EOS).sum(dim=1)
        for row, n in enumerate(lengths.tolist()):
            match self.fault:
                case "never stops":
                    answer[row, n:] = 3
                case "one symbol more":
                    answer[row, n : n + 2] = torch.tensor([3, EOS])
                case "stops early":
                    answer[row, n - 1] = EOS
                case "last symbol wrong":
                    answer[row, n - 1] = 3 + (answer[row, n - 1] - 2) % 10
                case "long ones wrong":
                    if n > 4:
                        answer[row, 0] = 3 + (answer[row, 0] - 2) % 10
                case "breaks":
                    raise RuntimeError("out of memory")
        return answer

    def decode(self, target, memory, source, *, cache=None):
        return 10.0 * F.one_hot(memory[:, : target.shape[1]], 13)


def test_a_perfect_copy_matches():
    sequences = held_out_set(CopyTask(), 300)
    right = exact_match(Copier(), CopyTask(), sequences, batch_size=64)
    assert right.dtype == torch.bool
    assert right.tolist() == [True] * 300


@pytest.mark.parametrize(
    "fault", ["never stops", "one symbol more", "stops early", "last symbol wrong"]
)
def test_what_is_not_exact_does_not_match(fault):
    sequences = held_out_set(CopyTask(), 200)
    assert not exact_match(Copier(fault), CopyTask(), sequences, batch_size=64).any()


def test_answers_come_in_the_order_given():
    sequences = held_out_set(CopyTask(), 200)[::-1]
    copier = Copier("long ones wrong")
    right = exact_match(copier, CopyTask(), sequences, batch_size=7)
    assert right.tolist() == [len(s) <= 4 for s in sequences]
    assert {True, False} == set(right.tolist())
    assert len(copier.batches) == math.ceil(200 / 7)
    assert exact_match(copier, CopyTask(), sequences[:1]).tolist() == right[:1].tolist()


@pytest.mark.parametrize("training", [True, False])
def test_measured_in_evaluation_mode_and_put_back(training):
    copier = Copier().train(training)
    exact_match(copier, CopyTask(), [(3, 4)])
    assert copier.modes == [False]
    assert copier.training is training
    broken = Copier("breaks").train(training)
    with pytest.raises(RuntimeError, match="out of memory"):
        exact_match(broken, CopyTask(), [(3, 4)])
    assert broken.training is training


def test_an_untrained_model_copies_nothing():
    task = CopyTask(n_symbols=8)
    right = exact_match(small_model(), task, [(3, 4, 5, 6), (7, 8, 9, 10)])
    assert right.tolist() == [False, False]


# --- training -------------------------------------------------------------------------

SMALL = CopyTask(n_symbols=4, max_length=3)


def small_run(**settings):
    config = TransformerConfig.toy(SMALL.vocab_size, **{"d_model": 32, "d_ff": 64})
    return train_copy_model(
        SMALL,
        config,
        device=torch.device("cpu"),
        **{"n_validation": 40, "batch_size": 32, **settings},
    )


@pytest.mark.usefixtures("no_shape_checks")  # twice as fast without
def test_a_small_task_is_learnt_and_held_out_sequences_are_copied():
    """From the first update to the stop: three perfect validations in a row."""
    run = small_run(seed=0, max_steps=600)
    steps, shares = zip(*run.validation, strict=True)
    assert shares[-3:] == (1.0, 1.0, 1.0)
    assert shares[0] < 1.0
    every = steps[0]
    assert list(steps) == list(range(every, every * len(steps) + 1, every))
    assert steps[-1] == len(run.losses) < 600
    assert not run.model.training
    assert exact_match(run.model, SMALL, short_sequences(SMALL)).all()


def test_a_run_is_its_seed():
    torch.manual_seed(1)
    first = small_run(seed=1, max_steps=12, validate_every=6)
    torch.manual_seed(2)
    again = small_run(seed=1, max_steps=12, validate_every=6)
    other = small_run(seed=2, max_steps=12, validate_every=6)
    assert first.losses == again.losses
    assert first.validation == again.validation
    assert first.losses != other.losses
    assert len(first.losses) == 12
    assert [step for step, _ in first.validation] == [6, 12]


@pytest.mark.usefixtures("no_shape_checks")
def test_a_model_without_positions_cannot_copy():
    """The control: attention alone does not know one order from another."""
    config = TransformerConfig.toy(
        SMALL.vocab_size, d_model=32, d_ff=64, positions="none"
    )
    run = train_copy_model(
        SMALL, config, n_validation=40, max_steps=100, device=torch.device("cpu")
    )
    assert max(share for _, share in run.validation) < 0.9


@pytest.mark.equation("res-rule-of-three")
def test_no_error_in_n_bounds_the_rate_by_three_in_n():
    """(1 − 3/n)^n is below 5 %, and no much smaller bound would do."""
    for n in (4, 10, 100, 1000):
        assert (1 - Fraction(3, n)) ** n < Fraction(5, 100)
    for n in (100, 1000):
        assert (1 - Fraction(29, 10 * n)) ** n > Fraction(5, 100)
    assert pytest.approx(0.0498, abs=1e-4) == (1 - 3 / 10_000) ** 10_000


@pytest.mark.equation("eq-zero-errors")
def test_the_largest_rate_that_no_error_leaves(notebook_function):
    """Against the binomial law, summed exactly; and against the rule of three."""
    largest_rate = notebook_function("14_copy_task", "largest_rate")
    for n, confidence in itertools.product((1, 10, 500, 10_000), (0.5, 0.95, 0.99)):
        p = largest_rate(n, confidence)
        assert math.isclose((1 - p) ** n, 1 - confidence, rel_tol=1e-9)
        assert (1 - p * 1.001) ** n < 1 - confidence < (1 - p * 0.999) ** n
    assert largest_rate(10_000) == pytest.approx(2.9953e-4, rel=1e-4)
    assert all(largest_rate(n) < 3 / n for n in (1, 10, 100, 10_000))


@pytest.mark.equation("eq-diagonality")
def test_diagonality_counts_real_rows_by_a_loop(notebook_function):
    diagonality = notebook_function("14_copy_task", "diagonality")
    weights = torch.rand(3, 2, 5, 5, generator=seeded(0), dtype=torch.float64)
    is_token = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]) == 1
    for head, found in enumerate(diagonality(weights, is_token).tolist()):
        on = [
            weights[s, head, t, t].item()
            for s, t in itertools.product(range(3), range(5))
            if is_token[s, t]
        ]
        assert len(on) == 10
        assert math.isclose(found, sum(on) / 10)
    perfect = torch.eye(5).expand(3, 2, 5, 5)
    assert diagonality(perfect, is_token).tolist() == [1.0, 1.0]


@pytest.mark.equation("res-bags")
def test_without_order_one_of_each_bag_can_come_back(notebook_function):
    """The bound by counting, and a model without positions that cannot beat it."""
    share = notebook_function("14_copy_task", "share_of_bags")
    for n, s in itertools.product((1, 2, 3, 5), (1, 2, 4)):
        every = list(itertools.product(range(s), repeat=n))
        bags = {tuple(sorted(sequence)) for sequence in every}
        assert share(n, s) == len(bags) / len(every)
    task = CopyTask(n_symbols=3, max_length=4)
    config = TransformerConfig.toy(task.vocab_size, d_model=16, positions="none")
    for seed in range(3):
        model = Transformer(config, generator=seeded(seed)).eval()
        model.output_projection.weight.data[:3] -= 10  # write symbols, not the end
        every = list(itertools.product((3, 4, 5), repeat=3))
        source, _ = to_tensors(task, every)
        written = greedy_decode(model, source, max_len=3).tolist()
        answers = {}
        for sequence, answer in zip(every, written, strict=True):
            answers.setdefault(tuple(sorted(sequence)), set()).add(tuple(answer))
        assert all(len(given) == 1 for given in answers.values())
        right = sum(list(s) == w for s, w in zip(every, written, strict=True))
        assert right / len(every) <= share(3, 3)


@pytest.mark.parametrize(
    ("shares", "ends"),
    [
        ([1.0, 1.0, 1.0], True), ([0.5, 1.0, 1.0, 1.0], True), ([1.0, 1.0], False),
        ([1.0, 1.0, 0.998, 1.0], False), ([1.0, 1.0, 1.0, 0.5], False), ([], False),
    ],
)  # fmt: skip
def test_three_perfect_validations_in_a_row_end_a_run(shares, ends):
    validation = [(10 * i, share) for i, share in enumerate(shares, start=1)]
    assert CopyRun(small_model(), [], validation).finished is ends


def test_the_optimiser_is_adam_and_its_rate_peaks_as_told():
    model = small_model()
    optimizer, schedule = copy_optimizer(model, 4e-3, 7, beta2=0.97)
    assert type(optimizer) is torch.optim.Adam
    [group] = optimizer.param_groups
    assert group["betas"] == (0.9, 0.97)
    assert group["eps"] == 1e-9
    assert len(group["params"]) == len(list(model.parameters()))
    rates = []
    for _ in range(20):
        rates.append(group["lr"])
        optimizer.step()
        schedule.step()
    assert max(rates) == rates[6] == pytest.approx(4e-3)
    assert rates[13] == pytest.approx(4e-3 / math.sqrt(2))


# --- the stream of batches ------------------------------------------------------------


def test_batches_go_on_from_their_place():
    task = CopyTask()
    stream = CopyBatches(task, 8, seeded(4))
    first = list(itertools.islice(stream, 3))
    place = {name: state.clone() for name, state in stream.state_dict().items()}
    expected = list(itertools.islice(stream, 3))
    other = CopyBatches(task, 8, seeded(99))
    other.load_state_dict(place)
    for (source, target), (again, also) in zip(
        expected, itertools.islice(other, 3), strict=True
    ):
        assert torch.equal(source, again)
        assert torch.equal(target, also)
    assert not torch.equal(first[0][0], expected[0][0])
    assert iter(stream) is stream


@pytest.mark.parametrize(("batch_size", "n"), [(8, 1), (8, 2), (7, 3), (3, 3)])
def test_the_rows_of_all_processes_are_the_batch(batch_size, n):
    """Uneven splits too; every process pads to the same width."""
    task = CopyTask()
    [whole] = itertools.islice(CopyBatches(task, batch_size, seeded(1)), 1)
    streams = [
        CopyBatches(task, batch_size, seeded(1), process=i, n_processes=n)
        for i in range(n)
    ]
    parts = [next(stream) for stream in streams]
    for side in range(2):
        sizes = [len(part[side]) for part in parts]
        assert sum(sizes) == batch_size
        assert max(sizes) - min(sizes) <= 1
        rows = [row for part in parts for row in part[side].tolist()]
        assert sorted(rows) == sorted(whole[side].tolist())
    count = int((whole[0] != PAD).sum())
    assert [stream.n_tokens for stream in streams] == [count] * n


def test_tokens_are_those_to_be_written():
    stream = CopyBatches(CopyTask(), 16, seeded(2))
    _, target = next(stream)
    assert stream.n_tokens == int((target[:, 1:] != PAD).sum())


# --- a run that stops -----------------------------------------------------------------


def dropping_run(**settings):
    """A few updates with dropout, which draws from torch's own generator."""
    config = TransformerConfig.toy(SMALL.vocab_size, d_model=16, d_ff=16, dropout=0.2)
    return train_copy_model(
        SMALL, config, device=torch.device("cpu"),
        **{"n_validation": 20, "batch_size": 8, "max_steps": 9, "validate_every": 3,
           **settings},
    )  # fmt: skip


def same_weights(a, b) -> bool:
    return all(map(torch.equal, a.state_dict().values(), b.state_dict().values()))


def never_stopped():
    """The run with which the others are compared."""
    torch.manual_seed(5)
    return dropping_run()


@pytest.fixture
def whole():
    return never_stopped()


@pytest.mark.parametrize("stop", [1, 3, 5, 8])
def test_a_resumed_run_equals_the_whole_one(whole, tmp_path, stop):
    """Loss for loss to the last bit, weights too, whatever torch's generator did."""
    path = tmp_path / "run.safetensors"
    torch.manual_seed(5)
    part = dropping_run(checkpoint=path, after_step=lambda update: update.step == stop)
    assert len(part.losses) == stop
    torch.manual_seed(77)
    again = dropping_run(checkpoint=path)
    assert again.losses == whole.losses
    assert again.validation == whole.validation
    assert same_weights(again.model, whole.model)


def test_a_killed_run_goes_on_from_its_last_checkpoint(whole, tmp_path):
    """What came after it is made again, equal."""
    path = tmp_path / "run.safetensors"

    def killed(update):
        if update.step == 8:
            raise KeyboardInterrupt

    torch.manual_seed(5)
    with pytest.raises(KeyboardInterrupt):
        dropping_run(checkpoint=path, save_every=2, after_step=killed)
    assert read_checkpoint(path).step == 6
    steps = []
    again = dropping_run(
        checkpoint=path,
        save_every=2,
        after_step=lambda update: steps.append(update.step),
    )
    assert steps == [7, 8, 9]
    assert again.losses == whole.losses
    assert same_weights(again.model, whole.model)


def test_a_run_that_has_ended_is_read_and_not_trained(whole, tmp_path):
    path = tmp_path / "run.safetensors"
    torch.manual_seed(5)
    dropping_run(checkpoint=path, max_steps=4)
    before = path.read_bytes()
    told = []
    again = dropping_run(checkpoint=path, max_steps=4, after_step=told.append)
    assert again.losses == whole.losses[:4]
    assert not told
    assert path.read_bytes() == before
    assert not again.model.training
    longer = dropping_run(checkpoint=path, max_steps=9)
    assert longer.losses == whole.losses


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 3}, {"batch_size": 9}, {"peak_rate": 1e-3}, {"warmup": 9},
        {"beta2": 0.98}, {"smoothing": 0.0}, {"n_validation": 21},
        {"validate_every": 2},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_another_recipe_is_refused_and_the_file_left_alone(tmp_path, change):
    path = tmp_path / "run.safetensors"
    dropping_run(checkpoint=path, max_steps=1)
    before = path.read_bytes()
    [name] = change
    with pytest.raises(ValueError, match=f"run.safetensors was trained with {name}="):
        dropping_run(checkpoint=path, **change)
    assert path.read_bytes() == before


def test_another_model_task_or_file_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    dropping_run(checkpoint=path, max_steps=1)
    other = TransformerConfig.toy(SMALL.vocab_size, d_model=16, d_ff=16)
    settings = {"n_validation": 20, "batch_size": 8, "validate_every": 3}
    with pytest.raises(ValueError, match="dropout=0.2.*dropout=0.0"):
        train_copy_model(SMALL, other, checkpoint=path, **settings)
    with pytest.raises(ValueError, match="trained with task="):
        train_copy_model(CopyTask(), checkpoint=path, **settings)
    save_checkpoint(path, small_model())
    with pytest.raises(ValueError, match="no checkpoint of train_copy_model"):
        dropping_run(checkpoint=path)


def test_checkpoints_are_written_when_said_and_at_the_end(tmp_path):
    """After the update was told, so that nothing saved is missing in the metrics."""
    path, seen = tmp_path / "run.safetensors", []

    def look(update):
        stored = read_checkpoint(path).step if path.exists() else 0
        seen.append((update.step, stored))

    dropping_run(checkpoint=path, save_every=4, max_steps=7, after_step=look)
    assert seen == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 4), (6, 4), (7, 4)]
    assert read_checkpoint(path).step == 7


def test_each_update_is_told():
    told = []
    run = dropping_run(after_step=told.append)
    assert [update.step for update in told] == list(range(1, 10))
    assert [update.loss for update in told] == run.losses
    factor = 2.5e-3 * math.sqrt(16 * 100)
    for update in told:
        assert math.isclose(update.rate, noam_rate(update.step, 16, 100, factor))
    shares = [(u.step, u.validation) for u in told if u.validation is not None]
    assert shares == run.validation
    assert [step for step, _ in shares] == [3, 6, 9]
    assert all(8 * 2 <= update.tokens <= 8 * 4 for update in told)


# --- seams and processes --------------------------------------------------------------


def test_the_model_is_built_with_the_seams_given():
    calls = []

    def attend(query, key, value, mask=None, *, causal=False, scale=None):
        calls.append(causal)
        return attention(query, key, value, mask, causal=causal, scale=scale)

    class Own(MultiHeadAttention):
        pass

    run = dropping_run(max_steps=1, attention=Own, attend=attend)
    assert {True, False} == set(calls)
    assert type(run.model.encoder_layers[0].self_attention) is Own
    config = TransformerConfig.toy(SMALL.vocab_size, d_model=16, d_ff=16, n_kv_heads=2)
    grouped = train_copy_model(
        SMALL, config, n_validation=10, batch_size=4, max_steps=1, validate_every=9
    )
    for layer in grouped.model.decoder_layers:
        assert type(layer.cross_attention) is GroupedQueryAttention
        assert layer.cross_attention.key_projection.out_features == 8


class Half:
    """An accelerator's view of one of two processes, in one process."""

    device, num_processes, scaler = torch.device("cpu"), 2, None

    def __init__(self, index, others):
        self.process_index, self.others, self.asked = index, others, []

    def reduce(self, tensor, reduction="sum"):
        assert reduction == "sum"
        self.asked.append(tensor.item())
        return tensor + self.others


@pytest.mark.usefixtures("no_shape_checks")  # parts that a validation does not need
def test_processes_divide_a_validation_and_agree():
    sequences = SMALL.draw("validation", 15, seeded(3))
    run = small_run(max_steps=60, validate_every=60)
    right = exact_match(run.model, SMALL, sequences)
    assert 0 < right.sum() < 15
    counts = [right[0::2].sum().item(), right[1::2].sum().item()]
    for index in range(2):
        half = Half(index, others=counts[1 - index])
        training = CopyTraining(SMALL, sequences, run, None, None, None, half)
        assert training.validate() == right.double().mean().item()
        assert half.asked == [counts[index]]
    alone = CopyTraining(SMALL, sequences, run, None, None, None)
    assert alone.validate() == right.double().mean().item()
    few = CopyTraining(SMALL, sequences[:1], run, None, None, None, Half(1, others=1.0))
    assert few.validate() == 1.0


@pytest.mark.usefixtures("no_shape_checks")  # a training whose parts come one by one
@pytest.mark.parametrize("index", [0, 1])
def test_only_the_process_that_saved_gets_its_generator_back(tmp_path, index):
    """With one generator, both would drop the same units of their different rows."""
    path = tmp_path / "run.safetensors"
    torch.manual_seed(5)
    run = dropping_run(checkpoint=path, max_steps=3)
    saved = torch.get_rng_state()
    optimizer, schedule = copy_optimizer(run.model, 2.5e-3, 100)
    halves = {"process": index, "n_processes": 2}
    batches = CopyBatches(SMALL, 8, seeded(0), **halves)
    half = Half(index, others=0.0)
    training = CopyTraining(SMALL, [], run, optimizer, schedule, batches, half)
    torch.manual_seed(77)
    own = torch.get_rng_state()
    training.resume(path, read_checkpoint(path).extra["recipe"])
    assert torch.equal(torch.get_rng_state(), own if index else saved)


# --- reproducibility ------------------------------------------------------------------


@pytest.mark.usefixtures("no_shape_checks")  # which draw from Python's generator
def test_training_uses_no_generator_but_its_own():
    """numpy's, Python's and torch's stay as they were (flash-attention#429)."""
    numpy_state = lambda: np.random.get_state()[1].tolist()  # noqa: NPY002
    before = random.getstate(), numpy_state(), torch.get_rng_state()
    small_run(max_steps=2, validate_every=2)
    assert random.getstate() == before[0]
    assert numpy_state() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_fresh_process_gives_the_same_losses(request):
    program = (
        "import torch; from aiayn import *;"
        "torch.use_deterministic_algorithms(True); torch.set_num_threads(1);"
        "task = CopyTask(n_symbols=4, max_length=3);"
        "config = TransformerConfig.toy(task.vocab_size, d_model=32, d_ff=64);"
        "run = train_copy_model(task, config, n_validation=40, batch_size=32,"
        "    max_steps=5, device=torch.device('cpu'));"
        "print([loss.hex() for loss in run.losses])"
    )
    env = os.environ | {"PYTHONPATH": str(request.config.rootpath / "src")}
    out = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run = small_run(max_steps=5)
    finally:
        torch.set_num_threads(threads)
    assert out.strip() == str([loss.hex() for loss in run.losses])


# --- the shipped model ----------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped():
    return load_copy_model()


def test_the_shipped_model_is_the_one_its_record_names(shipped):
    data = files("aiayn.book") / "data"
    record = json.loads((data / "copy_model.json").read_text(encoding="utf-8"))
    weights = (data / "copy_model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == record["sha256"]
    assert len(weights) == record["bytes"] < 1_500_000
    assert dataclasses.asdict(shipped.config) == record["config"]
    assert shipped.config == TransformerConfig.toy(CopyTask().vocab_size)
    assert sum(p.numel() for p in shipped.parameters()) == record["parameters"]
    assert {p.dtype for p in shipped.parameters()} == {torch.float32}
    assert record["copied"] == record["tested"] == 10_000


def test_loading_changes_nothing_and_gives_a_model_of_its_own(shipped):
    before = torch.get_rng_state()
    other = load_copy_model()
    assert torch.equal(torch.get_rng_state(), before)
    assert not other.training
    assert same_weights(other, shipped)
    with torch.no_grad():
        other.output_projection.weight.zero_()
    assert not same_weights(other, shipped)
    assert same_weights(load_copy_model(), shipped)


@pytest.mark.usefixtures("no_shape_checks")
def test_the_shipped_model_copies_what_it_never_saw(shipped, tests):
    chosen = [*tests[:95], *tests[95:9995:50]]
    assert {len(s) for s in chosen} == set(range(2, 21))
    assert exact_match(shipped, CopyTask(), chosen).all()


@pytest.mark.usefixtures("no_shape_checks")
def test_however_it_is_served_the_tokens_are_the_same(shipped, tests):
    """Lengths mixed: rows end one by one, and the rest of the batch goes on."""
    source, _ = to_tensors(CopyTask(), tests[100:140])
    expected = greedy_decode(shipped, source, max_len=23)
    blocks = lambda: PagedKVCache(BlockAllocator(400, 4))
    for attend in (attention, fused_attention, flash_attention):
        model = Transformer(shipped.config, attend=attend).eval()
        model.load_state_dict(shipped.state_dict())
        for make in (None, KVCache, blocks):
            cache = None if make is None else DecoderCache(2, make=make)
            written = greedy_decode(model, source, max_len=23, cache=cache)
            assert torch.equal(written, expected)
    width = source.shape[1]
    assert torch.equal(expected[:, :width], source)
