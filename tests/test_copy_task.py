"""The copy task: what is held out stays held out, and right means right to the end."""

import hashlib
import itertools
import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from helpers import seeded, small_model
from torch import nn

from aiayn import CopyTask, TransformerConfig, exact_match, train_copy_model
from aiayn.copy_task import held_out_set, part_of, short_sequences, to_tensors
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
    assert parts == [part_by_hand(s) for s in every]
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
