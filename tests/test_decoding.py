"""Greedy decoding: which token, when a row ends, and what no row may notice."""

import itertools
import math

import pytest
import torch
from helpers import normal, padded, seeded, small_model, tokens

from aiayn import BOS, EOS, PAD, Seq2Seq, greedy_decode
from aiayn.decoding import most_likely

A, B = 3, 4


class Table:
    """A ``Seq2Seq`` whose next token depends on the last one alone: log P[last]."""

    def __init__(self, table):
        self.table = table

    def encode(self, source):
        return torch.zeros(len(source), 1)

    def decode(self, target, memory, source, *, cache=None):
        return self.table.log()[target]


def trap() -> Table:
    """The likelier first token leads into a dead end."""
    table = torch.full((5, 5), 1e-30, dtype=torch.float64)
    table[BOS, [A, B]] = torch.tensor([0.6, 0.4], dtype=torch.float64)
    table[A, [A, B, EOS]] = torch.tensor([0.35, 0.33, 0.32], dtype=torch.float64)
    table[B, [EOS, A, B]] = torch.tensor([0.9, 0.05, 0.05], dtype=torch.float64)
    return Table(table)


class Script:
    """A ``Seq2Seq`` that writes what its source says, one token a step, row by row."""

    def __init__(self, vocab_size: int = 11, strength: float = 1.0):
        self.vocab_size, self.strength = vocab_size, strength
        self.steps = 0

    def encode(self, source):
        return source

    def decode(self, target, memory, source, *, cache=None):
        self.steps += 1
        step = target.shape[1] - 1
        logits = torch.zeros(*target.shape, self.vocab_size)
        said = memory[:, step : step + 1]
        return logits.scatter(2, said.unsqueeze(-1).expand(-1, step + 1, 1), 1.0)


def log_probability(table, sequence) -> float:
    pairs = itertools.pairwise([BOS, *sequence])
    return sum(math.log(table[last, token]) for last, token in pairs)


@pytest.mark.equation("eq-greedy")
def test_most_likely_is_the_first_largest():
    """argmax by a loop; among equals the lowest id."""
    logits = torch.tensor(
        [[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0], [-9, -8, -7, -7]]
    )
    by_loop = []
    for row in logits.tolist():
        best = 0
        for token, logit in enumerate(row):
            if logit > row[best]:
                best = token
        by_loop.append(best)
    assert by_loop == [1, 0, 2]
    assert most_likely(logits).tolist() == by_loop
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert most_likely(logits.to(dtype)).tolist() == by_loop
    ties = torch.randint(3, (200, 50), generator=seeded(0)).float()
    assert most_likely(ties).tolist() == [row.index(max(row)) for row in ties.tolist()]
    hidden = torch.tensor([[-math.inf, -math.inf, 0.0, 0.0]])
    assert most_likely(hidden).tolist() == [2]


@pytest.mark.equation("eq-greedy")
def test_greedy_takes_the_trap():
    """Greedy is no search: [A, A, A] at −2.61, where [B, EOS] has −1.02."""
    model = trap()
    written = greedy_decode(model, torch.tensor([[A]]), max_len=3)
    assert written.tolist() == [[A, A, A]]
    assert log_probability(model.table, [A, A, A]) == pytest.approx(-2.610470, abs=1e-6)
    assert log_probability(model.table, [B, EOS]) == pytest.approx(-1.021651, abs=1e-6)


@pytest.mark.equation("eq-greedy")
def test_greedy_by_hand_with_a_real_model():
    """Token by token, each from the whole forward pass of what stands so far."""
    model = small_model(seed=2, tie_embeddings=False)
    lengths = set()
    for seed in range(12):
        source = tokens(1, 4, seed=seed)
        by_hand = [BOS]
        while len(by_hand) <= 9 and by_hand[-1] != EOS:
            with torch.no_grad():
                logits = model(source, torch.tensor([by_hand]))[0, -1].tolist()
            by_hand.append(logits.index(max(logits)))
        assert greedy_decode(model, source, max_len=9).tolist() == [by_hand[1:]]
        lengths.add(len(by_hand))
    assert len(lengths) > 1


def test_each_row_ends_for_itself():
    """mistral-inference#270, flash-attention#2784: finished rows went on writing."""
    script = Script()
    source = torch.tensor([[EOS, 7, 8, 9, 9], [5, 6, 7, EOS, 9]])
    written = greedy_decode(script, source, max_len=10)
    assert written.tolist() == [[EOS, PAD, PAD, PAD], [5, 6, 7, EOS]]
    assert script.steps == 4
    for row in range(2):
        alone = greedy_decode(Script(), source[row : row + 1], max_len=10)
        assert alone.tolist() == [[t for t in written[row].tolist() if t != PAD]]


def test_a_row_never_depends_on_its_neighbours():
    model = small_model(seed=2, tie_embeddings=False)
    rows = [tokens(1, n % 5 + 1, seed=n)[0].tolist() for n in range(12)]
    together = greedy_decode(model, padded(rows), max_len=8)
    assert len({tuple(row) for row in together.tolist()}) > 5
    for row, source in enumerate(rows):
        alone = greedy_decode(model, torch.tensor([source]), max_len=8)[0].tolist()
        rest = together.shape[1] - len(alone)
        assert together[row].tolist() == alone + [PAD] * rest


def test_other_token_roles():
    class Other(Script):
        def encode(self, source):
            self.started = None
            return source

        def decode(self, target, memory, source, *, cache=None):
            self.started = target[:, 0].tolist()
            return super().decode(target, memory, source)

    script = Other()
    source = torch.tensor([[4, 9, 3], [9, 3, 3]])
    written = greedy_decode(script, source, max_len=3, bos_id=7, eos_id=9, pad_id=8)
    assert written.tolist() == [[4, 9], [9, 8]]
    assert script.started == [7, 7]


@pytest.mark.parametrize(
    ("max_len", "expected"),
    [
        (0, [[], []]),
        (1, [[5], [6]]),
        (3, [[5, 5, 5], [6, 6, EOS]]),
        (torch.tensor([1, 3]), [[5, PAD, PAD], [6, 6, EOS]]),
        (torch.tensor([0, 2]), [[PAD, PAD], [6, 6]]),
        (torch.tensor(2), [[5, 5], [6, 6]]),
        (torch.tensor([0, 0]), [[], []]),
    ],
)
def test_length_limits(max_len, expected):
    """posescript#22: nothing finished, one token, none; a limit for each row."""
    source = torch.tensor([[5, 5, 5, 5], [6, 6, EOS, 6]])
    written = greedy_decode(Script(), source, max_len=max_len)
    assert written.tolist() == expected
    assert written.dtype == torch.long
    assert written.shape == (2, len(expected[0]))


def test_no_rows():
    source = torch.zeros(0, 4, dtype=torch.long)
    assert greedy_decode(Script(), source, max_len=3).shape == (0, 0)


def test_equal_logits_give_the_lowest_id():
    """Whatever the batch, and with EOS among the equals."""
    constant = Table(torch.ones(5, 5))
    source = torch.tensor([[A], [B]])
    assert greedy_decode(constant, source, max_len=3).tolist() == [[0, 0, 0]] * 2


def test_nan_is_an_error_and_not_token_zero():
    broken = Table(torch.full((5, 5), math.nan))
    with pytest.raises(ValueError, match="logits hold NaN"):
        greedy_decode(broken, torch.tensor([[A]]), max_len=3)


def test_nan_in_an_ended_row_stops_nobody():
    """A model need not make sense after EOS."""

    class Breaks(Script):
        def decode(self, target, memory, source, *, cache=None):
            logits = super().decode(target, memory, source)
            ended = (target == EOS).any(dim=1)
            return logits.masked_fill(ended[:, None, None], math.nan)

    source = torch.tensor([[EOS, 7, 8], [5, 6, EOS]])
    written = greedy_decode(Breaks(), source, max_len=3)
    assert written.tolist() == [[EOS, PAD, PAD], [5, 6, EOS]]


def test_no_gradient_and_no_change_of_mode():
    model = small_model()
    written = greedy_decode(model, tokens(2, 3), max_len=3)
    assert not written.requires_grad
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


def test_a_memory_may_be_a_tuple():
    """All a search needs is ``encode`` and ``decode``."""

    class Pair(Script):
        def encode(self, source):
            return source, torch.zeros(len(source))

        def decode(self, target, memory, source, *, cache=None):
            return super().decode(target, memory[0], source)

    source = torch.tensor([[5, EOS]])
    assert isinstance(Pair(), Seq2Seq)
    assert greedy_decode(Pair(), source, max_len=4).tolist() == [[5, EOS]]


@pytest.mark.equation("eq-sequence-probability")
def test_log_probability_of_a_sequence(notebook_function):
    """The sum of the logs of the table's entries; all sequences together have one."""
    function = notebook_function("07_decoding", "log_probability")
    table = normal(5, 5, seed=1).softmax(-1)
    model, source = Table(table), torch.tensor([[A]])
    for sequence in ([A], [B, EOS], [A, B, A, EOS]):
        ours = function(model, source, sequence)
        assert float(ours) == pytest.approx(log_probability(table, sequence), abs=1e-12)
    every = itertools.product(range(5), repeat=3)
    total = sum(math.exp(float(function(model, source, list(s)))) for s in every)
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.equation("res-greedy-enough")
def test_greedy_is_right_when_its_sequence_has_more_than_half():
    """Against every sequence there is, over some hundred random tables."""
    symbols = [EOS, A, B]
    outcomes = set()
    for seed in range(300):
        table = torch.zeros(5, 5, dtype=torch.float64)
        logits = normal(5, 3, seed=seed) * (1 + seed % 4)
        table[:, symbols] = logits.softmax(-1)
        written = greedy_decode(Table(table), torch.tensor([[A]]), max_len=3)[
            0
        ].tolist()
        written = [t for t in written if t != PAD]
        finished = [
            s
            for n in (1, 2, 3)
            for s in itertools.product(symbols, repeat=n)
            if EOS not in s[:-1] and (s[-1] == EOS or n == 3)
        ]
        best = max(finished, key=lambda s: log_probability(table, s))
        enough = math.exp(log_probability(table, written)) > 0.5
        if enough:
            assert written == list(best)
        outcomes.add((enough, written == list(best)))
    assert outcomes == {(True, True), (False, True), (False, False)}
