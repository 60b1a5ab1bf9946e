"""Greedy decoding and beam search: which tokens, when a row ends, what moves along."""

import itertools
import math
import random

import pytest
import torch
from helpers import normal, padded, seeded, small_model, tokens
from seams import DecoderStore

from aiayn import (
    BOS,
    EOS,
    PAD,
    Hypothesis,
    RecurrentCache,
    RecurrentSeq2Seq,
    Seq2Seq,
    beam_search,
    greedy_decode,
    length_penalty,
)
from aiayn.decoding import Ranking, best_tokens, most_likely, score_bound

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


# --- beam search ----------------------------------------------------------------------


def log_softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    total = math.log(math.fsum(math.exp(x - top) for x in logits))
    return [x - top - total for x in logits]


def slow_beam_search(
    after, *, beam_size, max_len, alpha, n_best, bos=BOS, eos=EOS, patient=False
):
    """One row, in plain lists, by the definition: [(tokens, log p, score), …].

    ``after(prefix)`` gives the log-probabilities behind a prefix that begins with BOS.
    A patient search never stops before nothing is open.
    """
    penalty = lambda n: ((5 + n) / 6) ** alpha
    order = lambda h: (-h[2], h[0])
    still_open, found = [([bos], 0.0)], []
    if max_len == 0:
        return [([], 0.0, 0.0)]
    for length in range(1, max_len + 1):
        candidates = []
        for parent, (prefix, so_far) in enumerate(still_open):
            for token, log_p in enumerate(after(prefix)):
                if log_p > -math.inf:
                    candidates.append((-(so_far + log_p), parent, token))
        candidates.sort()
        grown = []
        for rank, (minus, parent, token) in enumerate(candidates):
            sequence = [*still_open[parent][0], token]
            if token == eos:
                if rank < beam_size:
                    found.append((sequence[1:], -minus, -minus / penalty(length)))
            elif len(grown) < beam_size:
                grown.append((sequence, -minus))
        still_open = grown
        if length == max_len:
            found += [(s[1:], p, p / penalty(length)) for s, p in still_open]
            break
        found = sorted(found, key=order)[:n_best]
        if not still_open:
            break
        lengths = range(length + 1, max_len + 1)
        reachable = max(
            p / penalty(n) if p else 0.0 for _, p in still_open for n in lengths
        )
        if not patient and len(found) == n_best and reachable < found[-1][2]:
            break
    return sorted(found, key=order)[:n_best]


class Trees:
    """A ``Seq2Seq`` in which logits depend on the source and on every token so far.

    The logits behind a prefix are drawn once, from numbers that name it.
    """

    def __init__(self, draw, vocab_size=5):
        self.draw, self.vocab_size, self.calls, self.drawn = draw, vocab_size, 0, {}

    def logits(self, name: int, prefix: tuple[int, ...]) -> list[float]:
        if (name, prefix) not in self.drawn:
            chance = random.Random(repr((name, prefix)))
            self.drawn[name, prefix] = self.draw(chance, self.vocab_size, len(prefix))
        return self.drawn[name, prefix]

    def after(self, name: int):
        def log_p(prefix):
            return exact_log_softmax(self.logits(name, tuple(prefix)))

        return log_p

    def encode(self, source):
        return source[:, 0]

    def decode(self, target, memory, source, *, cache=None):
        assert cache is None
        self.calls += 1
        rows = zip(target.tolist(), memory.tolist(), source[:, 0].tolist(), strict=True)
        logits = []
        for prefix, name, again in rows:
            assert name == again, "memory and source of different rows"
            last = self.logits(name, tuple(prefix))
            logits.append([[0.0] * self.vocab_size] * (len(prefix) - 1) + [last])
        return torch.tensor(logits, dtype=torch.float64)


def exact_log_softmax(logits: list[float]) -> list[float]:
    """Rounded as torch rounds it, so that what ties in the one ties in the other."""
    row = torch.tensor(logits, dtype=torch.float64).log_softmax(0).tolist()
    for ours, by_hand in zip(row, log_softmax(logits), strict=True):
        assert ours == by_hand or abs(ours - by_hand) < 1e-12
    return row


def spread(chance, vocab_size, length):
    return [chance.gauss(0, 1.5) for _ in range(vocab_size)]


def quantised(chance, vocab_size, length):
    """Ties at every step."""
    return [float(chance.randrange(2)) for _ in range(vocab_size)]


def constant(chance, vocab_size, length):
    return [1.0] * vocab_size


def holed(chance, vocab_size, length):
    """Some tokens, often all but one, have probability 0."""
    row = [chance.gauss(0, 1) for _ in range(vocab_size)]
    for token in chance.sample(range(vocab_size), chance.randrange(vocab_size)):
        row[token] = -math.inf
    return row


def eager(chance, vocab_size, length):
    """EOS is likely everywhere."""
    row = spread(chance, vocab_size, length)
    row[EOS] += 2.0
    return row


def late(chance, vocab_size, length):
    """EOS becomes likely with length: stops and penalties matter."""
    row = spread(chance, vocab_size, length)
    row[EOS] += 1.5 * length - 5
    return row


def certain(chance, vocab_size, length):
    """One token and nothing else."""
    row = [-math.inf] * vocab_size
    row[chance.choice([EOS, *range(vocab_size)])] = 0.0
    return row


KINDS = (spread, quantised, constant, holed, eager, late, certain)


def as_tuples(hypotheses) -> list[tuple[list[int], float, float]]:
    assert all(type(h) is Hypothesis for h in hypotheses)
    return [(h.tokens, h.log_probability, h.score) for h in hypotheses]


def assert_hypotheses(found, expected, tolerance=1e-12) -> None:
    """The same tokens in the same order, and each number with its counterpart."""
    found = as_tuples(found)
    assert [h[0] for h in found] == [h[0] for h in expected]
    for ours, right in zip(found, expected, strict=True):
        assert ours[1:] == pytest.approx(right[1:], rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_beam_search_by_its_definition(kind):
    """Element by element against plain lists, batched, with a limit for each row."""
    chance = random.Random(kind.__name__)
    compared = 0
    for case in range(120):
        model = Trees(kind, vocab_size=chance.choice([3, 4, 5, 7]))
        names = [1000 * case + row for row in range(chance.randrange(1, 4))]
        limits = [chance.randrange(7) for _ in names]
        beam_size = chance.randrange(1, 7)
        settings = {
            "beam_size": beam_size,
            "alpha": chance.choice([-0.5, 0, 0.6, 1, 2]),
            "n_best": chance.randrange(1, beam_size + 1),
        }
        found = beam_search(
            model,
            torch.tensor([[name] for name in names]),
            max_len=torch.tensor(limits),
            **settings,
        )
        assert len(found) == len(names)
        for name, limit, ours in zip(names, limits, found, strict=True):
            right = slow_beam_search(model.after(name), max_len=limit, **settings)
            assert_hypotheses(ours, right)
            compared += 1
    assert compared > 200


def every_sequence(after, max_len, alpha, bos=BOS, eos=EOS):
    """Every sequence with probability above 0, scored, the best first."""
    found, prefixes = [], [([bos], 0.0)]
    for length in range(1, max_len + 1):
        grown = []
        for prefix, so_far in prefixes:
            for token, log_p in enumerate(after(prefix)):
                if log_p > -math.inf:
                    grown.append(([*prefix, token], so_far + log_p))
        ends = [h for h in grown if h[0][-1] == eos or length == max_len]
        prefixes = [h for h in grown if h[0][-1] != eos]
        penalty = ((5 + length) / 6) ** alpha
        found += [(tokens[1:], log_p, log_p / penalty) for tokens, log_p in ends]
    return sorted(found, key=lambda h: (-h[2], h[0]))


@pytest.mark.parametrize("alpha", [-0.5, 0, 0.6, 1, 2])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_beam_as_wide_as_the_tree_finds_the_best(kind, alpha):
    """Exhaustive search, for every n_best; the stop rule must not miss anything."""
    for name in range(8):
        model = Trees(kind, vocab_size=4)
        source = torch.tensor([[name]])
        for max_len in (1, 2, 3):
            ranking = every_sequence(model.after(name), max_len, alpha)
            total = math.fsum(math.exp(log_p) for _, log_p, _ in ranking)
            assert total == pytest.approx(1.0)
            beam_size = 4**max_len
            for n_best in (1, 2, 5, beam_size):
                if n_best > beam_size:
                    continue
                found = beam_search(
                    model, source, beam_size=beam_size, max_len=max_len, alpha=alpha,
                    n_best=n_best,
                )  # fmt: skip
                assert_hypotheses(found[0], ranking[:n_best])


def test_the_trap_is_avoided():
    """Two open hypotheses are enough: [B, EOS], the best there is."""
    source = torch.tensor([[A]])
    found = beam_search(trap(), source, beam_size=2, max_len=3, alpha=0.0)
    [[best]] = found
    assert best.tokens == [B, EOS] == [4, 2]
    assert best.log_probability == pytest.approx(-1.021651, abs=1e-6)
    assert best.score == best.log_probability
    greedy = beam_search(trap(), source, beam_size=1, max_len=3, alpha=0.0)[0][0]
    assert greedy.tokens == [A, A, A] == [3, 3, 3]
    assert greedy.log_probability == pytest.approx(-2.610470, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_one_beam_without_a_penalty_is_greedy(kind):
    names = torch.arange(60).unsqueeze(-1)
    model = Trees(kind, vocab_size=5)
    for max_len in (0, 1, 2, 5, 8):
        written = greedy_decode(model, names, max_len=max_len).tolist()
        found = beam_search(model, names, beam_size=1, max_len=max_len, alpha=0)
        for row, [best] in zip(written, found, strict=True):
            length = len(best.tokens)
            assert row == best.tokens + [PAD] * (len(row) - length)
            assert best.tokens.count(EOS) == (best.tokens[-1:] == [EOS])
            assert best.tokens[-1:] == [EOS] or length == max_len


@pytest.mark.equation("eq-length-penalty")
def test_length_penalty_by_hand():
    """OpenNMT-tf#456, HF#8890, HF#19006: a reward for length; 1 at length 1."""
    for alpha in (-1, 0, 0.6, 1, 2.5):
        assert length_penalty(1, alpha) == 1
        for length in (0, 4, 7, 50):
            by_hand = math.exp(alpha * (math.log(5 + length) - math.log(6)))
            assert length_penalty(length, alpha) == pytest.approx(by_hand, rel=1e-14)
    assert length_penalty(4, 0.6) == pytest.approx(1.275425, abs=1e-6)
    assert length_penalty(7, 1) == 2
    # the same log-probability: the longer one scores higher where alpha is positive
    for alpha, better in ((0.6, 4), (-0.6, 1)):
        ranking = Ranking(2, 9, alpha)
        for length in (1, 4):
            ranking.add([A] * length, -2.0)
        assert [len(h.tokens) for h in ranking.hypotheses][0] == better


@pytest.mark.equation("eq-length-penalty")
def test_every_hypothesis_is_scored_by_its_own_length():
    """witwicky#8: EOS counts and BOS does not, for finished and cut ones alike."""
    lengths = set()
    for name, kind in itertools.product(range(8), (late, spread)):
        model = Trees(kind)
        for alpha in (0.6, 1.5):
            [found] = beam_search(
                model, torch.tensor([[name]]), beam_size=6, max_len=6, alpha=alpha,
                n_best=6,
            )  # fmt: skip
            scores = [h.score for h in found]
            assert scores == sorted(scores, reverse=True)
            for h in found:
                after = model.after(name)
                steps = range(len(h.tokens))
                log_p = sum(after([BOS, *h.tokens[:t]])[h.tokens[t]] for t in steps)
                assert h.log_probability == pytest.approx(log_p, abs=1e-12)
                right = log_p / ((5 + len(h.tokens)) / 6) ** alpha
                assert h.score == pytest.approx(right, abs=1e-12)
                lengths.add((len(h.tokens), h.tokens[-1] == EOS))
    assert {(2, True), (4, True), (6, True), (6, False)} <= lengths


@pytest.mark.equation("eq-score-bound")
def test_no_continuation_beats_the_bound():
    """By trying all lengths, and log-probabilities from none lost to much."""
    reached = 0
    for alpha in (-1, -0.3, 0, 0.6, 1, 2):
        for length, max_len in ((0, 1), (0, 5), (3, 4), (3, 20), (40, 90)):
            for so_far in (-30.0, -2.5, -0.1, 0.0):
                bound = score_bound(so_far, length, max_len, alpha)
                scores = [
                    (so_far - lost) / ((5 + n) / 6) ** alpha
                    for n in range(length + 1, max_len + 1)
                    for lost in (0.0, 0.01, 1.0)
                ]
                assert max(scores) <= bound + 1e-12
                reached += max(scores) == pytest.approx(bound)
    assert reached == 6 * 5 * 4  # and some continuation could reach it: it is tight


@pytest.mark.equation("res-stop-rule")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_stopping_early_changes_nothing(kind):
    """The same list as a search that goes on while anything is open, in fewer steps."""
    stopped = 0
    chance = random.Random(kind.__name__)
    for name in range(80):
        model, beam_size = Trees(kind), chance.randrange(1, 5)
        settings = {
            "beam_size": beam_size,
            "alpha": chance.choice([-1.0, -0.5, 0, 0.6, 1, 3]),
            "n_best": chance.randrange(1, beam_size + 1),
        }
        found = beam_search(model, torch.tensor([[name]]), max_len=7, **settings)
        patient = slow_beam_search(
            model.after(name), max_len=7, patient=True, **settings
        )
        assert_hypotheses(found[0], patient)
        stopped += model.calls < 7
    assert stopped > 5 or kind is constant


def test_the_first_to_finish_need_not_be_the_best():
    """OpenNMT-py#999, seq2seq-con#4: stopping at the first finished one loses."""
    table = torch.zeros(5, 5, dtype=torch.float64)
    table[BOS, [EOS, A]] = torch.tensor([0.4, 0.6], dtype=torch.float64)
    table[A, [B]] = 1.0
    table[B, [EOS]] = 1.0
    for alpha, expected in ((0.0, [A, B, EOS]), (1.0, [A, B, EOS]), (-3.0, [EOS])):
        [[best]] = beam_search(
            Table(table), torch.tensor([[A]]), beam_size=2, max_len=5, alpha=alpha
        )
        assert best.tokens == expected
    # worse at every step until its length pays: no look at present scores may stop it
    table[BOS, [EOS, A]] = torch.tensor([0.6, 0.4], dtype=torch.float64)
    [[best]] = beam_search(
        Table(table), torch.tensor([[A]]), beam_size=2, max_len=5, alpha=3.0
    )
    assert best.tokens == [A, B, EOS]
    assert math.log(0.4) / length_penalty(1, 3.0) < math.log(0.6)


@pytest.mark.equation("res-stop-rule")
def test_a_tie_that_is_still_open_is_waited_for():
    """Equal scores go by their tokens: [1, EOS] before [EOS], though it ends later."""
    table = torch.zeros(5, 5, dtype=torch.float64)
    table[3, [1, EOS]] = 0.5  # 3 is BOS here
    table[1, EOS] = 1.0
    for alpha, n_best in itertools.product((0, 0.6), (1, 2)):
        [found] = beam_search(
            Table(table), torch.tensor([[A]]), beam_size=2, max_len=4, alpha=alpha,
            n_best=n_best, bos_id=3,
        )  # fmt: skip
        assert [h.tokens for h in found] == [[1, EOS], [EOS]][:n_best]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_n_best_are_as_many_as_there_are(kind):
    """OpenNMT-py#920, OpenNMT-py#60, OpenNMT-py#999: distinct, sorted, none missing."""
    for name in range(20):
        model = Trees(kind)
        for max_len in (1, 2, 4):
            [found] = beam_search(
                model, torch.tensor([[name]]), beam_size=3, max_len=max_len, n_best=3
            )
            there_are = len(every_sequence(model.after(name), max_len, 0.6))
            assert len(found) == min(3, there_are)
            assert len({tuple(h.tokens) for h in found}) == len(found)
            scores = [h.score for h in found]
            assert scores == sorted(scores, reverse=True)


def test_the_first_step_expands_one_beginning():
    """attention-is-all-you-need-pytorch#21: no k copies of BOS."""
    model = Trees(spread)
    seen = []
    decode = model.decode

    def watched(target, memory, source, *, cache=None):
        seen.append(target.tolist())
        return decode(target, memory, source)

    model.decode = watched
    names = torch.tensor([[1], [2]])
    beam_search(model, names, beam_size=3, max_len=2, alpha=3.0, n_best=3)
    assert seen[0] == [[BOS], [BOS]]
    assert len(seen[1]) == 6
    assert len({tuple(row) for row in seen[1][:3]}) == 3
    assert len({tuple(row) for row in seen[1][3:]}) == 3


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_nothing_grows_after_eos(kind):
    """ParlAI#2058, sockeye#233, tensorflow#21920: one EOS, last, or cut off."""

    class Watched(Trees):
        def decode(self, target, memory, source, *, cache=None):
            assert not (target == EOS).any(), "an ended hypothesis was decoded again"
            return super().decode(target, memory, source)

    names = torch.arange(40).unsqueeze(-1)
    limits = torch.arange(40) % 6
    found = beam_search(
        Watched(kind), names, beam_size=4, max_len=limits, n_best=4, alpha=1.0
    )
    for hypotheses, limit in zip(found, limits.tolist(), strict=True):
        assert hypotheses
        for h in hypotheses:
            assert EOS not in h.tokens[:-1]
            assert h.tokens[-1:] == [EOS] or len(h.tokens) == limit
            assert type(h.tokens) is list
            assert all(type(token) is int for token in h.tokens)


def test_eos_counts_only_among_the_first():
    """Behind rank k an EOS is dropped; within it, it leaves and frees its place."""

    def search(first, **settings):
        table = torch.zeros(9, 9, dtype=torch.float64)
        for token, chance in first.items():
            table[BOS, token] = chance
        table[A, A:] = 1 / 6  # six ways on
        table[B, 5] = table[5, 5] = 1.0
        [found] = beam_search(
            Table(table),
            torch.tensor([[A]]),
            beam_size=2,
            alpha=0,
            n_best=2,
            **settings,
        )
        return [h.tokens for h in found]

    third = {A: 0.5, B: 0.3, EOS: 0.2}
    assert search(third, max_len=1) == [[A], [B]]
    assert search(third, max_len=2) == [[B, 5], [A, A]]  # 0.3 and 0.083; [EOS] has 0.2
    second = {A: 0.4, EOS: 0.35, B: 0.25}
    assert search(second, max_len=1) == [[A], [EOS]]
    assert search(second, max_len=2) == [[EOS], [B, 5]]  # B took the place of EOS


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_fewer_candidates_than_beams(dtype):
    """OpenNMT-py#1844, OpenNMT-py#1445: what has probability 0 is never returned."""
    logits = torch.full((5, 5), -math.inf, dtype=dtype)
    logits[:, [A, EOS]] = torch.tensor([1.0, 0.5], dtype=dtype)

    class Two(Table):
        def decode(self, target, memory, source, *, cache=None):
            return self.table[target]

    for max_len, there_are in ((1, 2), (2, 3), (3, 4)):
        for beam_size in (5, 50):  # far more than the vocabulary
            [found] = beam_search(
                Two(logits), torch.tensor([[A]]), beam_size=beam_size, max_len=max_len,
                n_best=5,
            )  # fmt: skip
            assert len(found) == there_are
            assert all(set(h.tokens) <= {A, EOS} for h in found)
            assert all(math.isfinite(h.score) for h in found)
            assert len({tuple(h.tokens) for h in found}) == there_are


@pytest.mark.parametrize(
    ("max_len", "expected"),
    [
        (0, [[], []]),
        (1, [[5], [6]]),
        (2, [[5, 5], [6, 6]]),
        (3, [[5, 5, 5], [6, 6, EOS]]),
        (torch.tensor([1, 3]), [[5], [6, 6, EOS]]),
        (torch.tensor([0, 2]), [[], [6, 6]]),
        (torch.tensor([4, 0]), [[5, 5, 5, 5], []]),
        (torch.tensor(2), [[5, 5], [6, 6]]),
        (torch.tensor([2, 3], dtype=torch.int8), [[5, 5], [6, 6, EOS]]),
    ],
)
def test_length_limits_of_a_beam(max_len, expected):
    """posescript#22, HF#8722: nothing finished, one token, none; a limit for each."""

    class Sure(Script):
        def decode(self, target, memory, source, *, cache=None):
            return super().decode(target, memory, source) * 20

    source = torch.tensor([[5, 5, 5, 5], [6, 6, EOS, 6]])
    model = Sure()
    for beam_size in (1, 3):
        found = beam_search(model, source, beam_size=beam_size, max_len=max_len)
        assert [best.tokens for [best] in found] == expected
    for row, most in zip(found, torch.as_tensor(max_len).expand(2), strict=True):
        if most == 0:
            assert as_tuples(row) == [([], 0.0, 0.0)]
    if not torch.as_tensor(max_len).any():
        assert model.steps == 0


def test_no_rows_for_a_beam():
    source = torch.zeros(0, 4, dtype=torch.long)
    assert beam_search(Script(), source, max_len=3) == []


def test_ties_go_to_the_lowest_ids():
    """Constant logits: the first in the order of their tokens, at every width."""
    constant_table = Table(torch.ones(5, 5))
    source = torch.tensor([[A], [B]])
    words = [0, 1, 3, 4]
    for beam_size in range(1, 7):
        found = beam_search(
            constant_table, source, beam_size=beam_size, max_len=2, alpha=5.0,
            n_best=beam_size,
        )  # fmt: skip
        pairs = itertools.product(words[:beam_size], range(5))
        wide = [list(pair) for pair in pairs]
        for row in found:
            got = [h.tokens for h in row if len(h.tokens) == 2]
            assert got[:beam_size] == wide[: len(got)][:beam_size]
    for max_len in (1, 3):
        [[best], _] = beam_search(
            constant_table, source, beam_size=1, max_len=max_len, alpha=0
        )
        assert best.tokens == [0] * max_len


def test_best_tokens_by_sorting():
    """Values and ids, against Python's stable sort, with many ties and with −inf."""
    for seed in range(60):
        chance = random.Random(seed)
        scores = [
            [chance.choice([-math.inf, -2.0, -1.0, 0.0]) for _ in range(40)]
            for _ in range(5)
        ]
        count = chance.randrange(1, 50)
        values, ids = best_tokens(torch.tensor(scores), count)
        assert values.shape == ids.shape == (5, min(count, 40))
        for row, found, tokens_of_row in zip(scores, values, ids, strict=True):
            order = sorted(range(40), key=lambda i: (-row[i], i))[:count]
            assert tokens_of_row.tolist() == order
            assert found.tolist() == [row[i] for i in order]


@pytest.mark.parametrize(
    "logits",
    [
        [0.0, math.nan, 0.0, 0.0, 0.0],
        [math.nan] * 5,
        [0.0, math.inf, 0.0, 0.0, 0.0],
        [-math.inf] * 5,
    ],
)
def test_a_beam_refuses_logits_without_a_distribution(logits):
    class Broken(Script):
        def decode(self, target, memory, source, *, cache=None):
            result = super().decode(target, memory, source)
            if target.shape[1] == 2:  # and only then, in one row
                result[-1, -1] = torch.tensor([*logits, *logits[:1] * 6])
            return result

    source = torch.tensor([[5, 5, 5], [6, 6, 6]])
    with pytest.raises(ValueError, match="logits hold NaN, .inf, or nothing but -inf"):
        beam_search(Broken(), source, beam_size=2, max_len=3)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_row_of_a_batch_equals_its_solo_run(kind):
    names, limits = torch.arange(24).unsqueeze(-1), torch.arange(24) % 7
    model = Trees(kind, vocab_size=6)
    settings = {"beam_size": 3, "n_best": 2}
    together = beam_search(model, names, max_len=limits, **settings)
    for row in range(24):
        alone = beam_search(
            model, names[row : row + 1], max_len=limits[row], **settings
        )
        assert as_tuples(together[row]) == as_tuples(alone[0])


class Carrier:
    """A cache that holds every past token of each row, and nothing else knows them."""

    def __init__(self):
        self.past: list[list[int]] = []

    def __len__(self):
        return len(self.past[0]) if self.past else 0

    def reorder(self, rows):
        self.past = [list(self.past[row]) for row in rows]


class Cached(Trees):
    """Trees whose prefix is read from the cache: an unmoved one gives other logits.

    Its memory is a tuple, of which each part names the row.
    """

    def encode(self, source):
        return source[:, 0], source.double()

    def decode(self, target, memory, source, *, cache=None):
        names, again = memory
        assert names.tolist() == source[:, 0].tolist() == again[:, 0].tolist()
        if cache is None:
            return super().decode(target, names, source)
        assert target.shape[1] == 1, "with a cache only the new token comes"
        cache.past = cache.past or [[] for _ in target]
        for past, new in zip(cache.past, target.tolist(), strict=True):
            past += new
        return super().decode(torch.tensor(cache.past), names, source)[:, -1:]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_memory_source_and_cache_move_with_the_hypotheses(kind):
    """Each names its row or holds its past; one left behind is another search."""
    names, limits = torch.arange(30).unsqueeze(-1), torch.arange(30) % 7
    for beam_size in (1, 2, 5):
        settings = {"beam_size": beam_size, "n_best": beam_size, "max_len": limits}
        plain = beam_search(Trees(kind), names, **settings)
        pairs = beam_search(Cached(kind), names, **settings)
        cached = beam_search(Cached(kind), names, cache=Carrier(), **settings)
        for one, two, three in zip(plain, pairs, cached, strict=True):
            assert as_tuples(one) == as_tuples(two) == as_tuples(three)


def real_models():
    transformer = small_model(seed=2, tie_embeddings=False)
    recurrent = RecurrentSeq2Seq(11, 11, 12, 2, generator=seeded(3)).double().eval()
    with torch.no_grad():
        recurrent.output_projection.weight *= 3
    return {
        "transformer": (transformer, lambda: DecoderStore(2)),
        "pre-norm": (
            small_model(seed=4, tie_embeddings=False, norm_first=True),
            lambda: DecoderStore(2),
        ),
        "recurrent": (recurrent, RecurrentCache),
    }


@pytest.mark.parametrize("name", ["transformer", "pre-norm", "recurrent"])
def test_a_beam_with_a_real_model(name):
    """By the definition, one source at a time; batched; and with its cache."""
    model, new_cache = real_models()[name]
    rows = [tokens(1, n % 5 + 1, seed=n)[0].tolist() for n in range(4)]
    source = padded(rows)

    def after(row):
        def log_p(prefix):
            with torch.no_grad():
                logits = model(torch.tensor([row]), torch.tensor([prefix]))[0, -1]
            return logits.log_softmax(-1).tolist()

        return log_p

    for settings in (
        {"beam_size": 4, "alpha": 0.6, "n_best": 3},
        {"beam_size": 2, "alpha": -1.0, "n_best": 1},
    ):
        found = beam_search(model, source, max_len=6, **settings)
        cached = beam_search(model, source, max_len=6, cache=new_cache(), **settings)
        lengths = set()
        for row, ours, theirs in zip(rows, found, cached, strict=True):
            right = slow_beam_search(after(row), max_len=6, **settings)
            assert_hypotheses(ours, right, tolerance=1e-10)
            assert_hypotheses(theirs, right, tolerance=1e-10)
            lengths |= {len(h.tokens) for h in ours}
        assert len(lengths) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_beam_in_lower_precision(dtype):
    """Scores are computed in double precision from what the model says."""

    class Half(Trees):
        def decode(self, target, memory, source, *, cache=None):
            return super().decode(target, memory, source).to(dtype)

        def after(self, name):
            def log_p(prefix):
                logits = torch.tensor(self.logits(name, tuple(prefix)))
                return logits.double().to(dtype).double().log_softmax(0).tolist()

            return log_p

    model = Half(spread, vocab_size=30)
    for name in range(10):
        settings = {"beam_size": 4, "alpha": 0.6, "n_best": 4, "max_len": 6}
        [found] = beam_search(model, torch.tensor([[name]]), **settings)
        assert_hypotheses(found, slow_beam_search(model.after(name), **settings))
    network = small_model(seed=2, tie_embeddings=False, dtype=dtype)
    [[best]] = beam_search(network, tokens(1, 4), max_len=5)
    assert math.isfinite(best.score)


def test_a_beam_with_other_token_roles():
    class Other(Trees):
        def decode(self, target, memory, source, *, cache=None):
            assert (target[:, 0] == 3).all()
            return super().decode(target, memory, source)

    model = Other(spread, vocab_size=6)
    for name in range(10):
        settings = {"beam_size": 3, "alpha": 0.6, "n_best": 3, "max_len": 4}
        roles = {"bos_id": 3, "eos_id": 5, "pad_id": 1}
        [found] = beam_search(model, torch.tensor([[name]]), **settings, **roles)
        right = slow_beam_search(model.after(name), bos=3, eos=5, **settings)
        assert_hypotheses(found, right)


def test_a_beam_needs_no_gradient_and_changes_nothing():
    model = small_model()
    source = tokens(2, 3)
    before = source.clone()
    beam_search(model, source, max_len=3)
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert source.equal(before)


def test_a_hypothesis_is_a_record():
    one = Hypothesis([A, EOS], -1.0, -0.5)
    assert (one.tokens, one.log_probability, one.score) == ([A, EOS], -1.0, -0.5)
    with pytest.raises(AttributeError):
        one.score = 0.0


class Coin:
    """1 or EOS, then EOS for certain: two sequences of one score."""

    def encode(self, source):
        return source.double()

    def decode(self, target, memory, source, *, cache=None):
        logits = torch.full((*target.shape, 4), -math.inf, dtype=torch.float64)
        logits[..., EOS] = 0.0
        logits[:, 0, 1] = 0.0
        return logits


def test_an_equal_score_can_still_come_first():
    """[1, EOS] ranks before [EOS], which finished first: equality must not stop."""
    source = torch.tensor([[5]])
    ((best,),) = beam_search(Coin(), source, beam_size=2, max_len=4, alpha=0)
    assert best.tokens == [1, EOS]


class Shaped:
    """Returns logits of whatever shape it is told to, with a place for each letter."""

    def __init__(self, *shape):
        self.shape = shape

    def encode(self, source):
        return source

    def decode(self, target, memory, source, *, cache=None):
        sizes = {"b": target.shape[0], "n": target.shape[1]}
        return torch.zeros([sizes.get(size, size) for size in self.shape])


@pytest.mark.parametrize("search", [greedy_decode, beam_search])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (("b", 5), r"logits \(batch, length, V\) .*\(2, 1\), got shape \(2, 5\)"),
        ((1, "n", 5), r"shape \(2, 1\), got shape \(1, 1, 5\)"),
        (("b", 3, 5), r"shape \(2, 1\), got shape \(2, 3, 5\)"),
        (("b", "n", 5, 5), r"got shape \(2, 1, 5, 5\)"),
        (("b", "n", 2), r"eos_id=2 is outside the vocabulary of 2 tokens"),
        (("b", "n", 0), r"pad_id=0 is outside the vocabulary of 0 tokens"),
    ],
)
def test_a_model_must_score_every_token_that_it_is_given(search, shape, message):
    """Else an EOS is never found, or one row's scores are taken for another's."""
    with pytest.raises(ValueError, match=message):
        search(Shaped(*shape), torch.tensor([[5], [6]]), max_len=3)
