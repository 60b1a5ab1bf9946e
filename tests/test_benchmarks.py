"""How times are measured, with clocks that the tests wind: no real time is read."""

import json
import math
import os
import sys

import pytest
import torch
from helpers import seeded

from aiayn.book.timing import exponent, paired_ratio, repeats_for, take_turns


class Clock:
    """Stands still but for what contenders spend."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def __call__(self) -> float:
        return self.now

    def spends(self, name, *seconds):
        """A contender whose calls take these seconds in turn, the last for ever."""
        left = list(seconds)

        def run():
            self.log.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_contenders_take_turns_and_the_first_one_changes():
    clock = Clock()
    contenders = {name: clock.spends(name, 1.0) for name in "abc"}
    seconds = take_turns(contenders, turns=4, least=0.5, clock=clock)
    warm_up = 2 * 3  # the first call, and one that was long enough
    assert "".join(clock.log[warm_up:]) == "abc" + "bca" + "cab" + "abc"
    assert seconds == {name: [1.0] * 4 for name in "abc"}


def test_a_first_call_that_is_slow_is_not_measured():
    """tinybench#46, matcha#22: what the first call prepares belongs to no result."""
    clock = Clock()
    contenders = {"a": clock.spends("a", 100.0, 1.0), "b": clock.spends("b", 2.0)}
    seconds = take_turns(contenders, turns=3, least=0.5, clock=clock)
    assert seconds == {"a": [1.0] * 3, "b": [2.0] * 3}


def test_short_calls_are_repeated_until_they_can_be_timed():
    clock = Clock()
    contenders = {"short": clock.spends("s", 0.001), "long": clock.spends("l", 0.3)}
    seconds = take_turns(contenders, turns=2, least=0.02, clock=clock)
    assert seconds["short"] == pytest.approx([0.001] * 2)
    assert seconds["long"] == pytest.approx([0.3] * 2)
    assert repeats_for(clock.spends("s", 0.001), 0.02, clock) >= 20
    assert repeats_for(clock.spends("l", 0.3), 0.02, clock) == 1


def test_a_clock_too_coarse_to_see_one_call():
    clock = Clock()
    run = clock.spends("s", 0.001)
    coarse = lambda: math.floor(clock() / 0.0156) * 0.0156  # Windows' process time
    repeats = repeats_for(run, 0.05, coarse)
    assert 20 <= repeats <= 1000


def test_what_is_no_measurement_is_refused():
    with pytest.raises(ValueError, match="needs contenders and turns, got 0 turns"):
        take_turns({"a": lambda: None}, turns=0)
    with pytest.raises(ValueError, match="needs contenders"):
        take_turns({})


def test_ratios_are_taken_within_a_turn():
    """A machine that slows down threefold half way changes times, not ratios."""
    base = [1.0, 1.0, 3.0, 3.0, 3.0]
    low, middle, high = paired_ratio([2 * s for s in base], base)
    assert low == middle == high == 2.0
    assert paired_ratio([1.0, 2.0, 3.0, 4.0, 50.0], [1.0] * 5) == (2.0, 3.0, 4.0)
    assert paired_ratio([6.0], [4.0]) == (1.5, 1.5, 1.5)
    with pytest.raises(ValueError, match="zip|strict|shorter|longer"):
        paired_ratio([1.0], [1.0, 2.0])


@pytest.mark.parametrize("power", [0, 1, 1.5, 2])
def test_exponent_of_a_power_law(power):
    sizes = [16, 64, 128, 1000]
    assert exponent(sizes, [3e-4 * n**power for n in sizes]) == pytest.approx(power)


# --- benchmarks/ ----------------------------------------------------------------------


@pytest.fixture
def benchmarks(request, monkeypatch):
    """The folder of benchmarks on the path, and the environment put back afterwards."""
    before = dict(os.environ)
    monkeypatch.syspath_prepend(request.config.rootpath / "benchmarks")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    os.environ.clear()
    os.environ.update(before)


def test_a_record_and_its_table(benchmarks, tmp_path):
    import measure

    clock = Clock()
    contenders = lambda n: {
        "ours": clock.spends("ours", n),
        "theirs": clock.spends("theirs", 2.0 * n),
    }
    cases = [({"batch": 1, "n": n}, contenders(n)) for n in (1, 1000)]
    settings = {"title": "One call.", "base": "ours"}
    found = measure.record(settings, cases, turns=3, clock=clock)
    assert found["rows"] == [
        {
            "batch": 1,
            "n": n,
            "seconds": {"ours": n, "theirs": 2 * n},
            "ratio to ours": {"theirs": [2.0, 2.0, 2.0]},
        }
        for n in (1, 1000)
    ]
    assert found["threads"] == 1
    assert {"date", "machine", "torch", "load before and after"} <= found.keys()

    (tmp_path / "some_times.json").write_text(json.dumps(found))
    (tmp_path / "other.json").write_text("{}")  # of something else
    measure.write_tables(tmp_path, tmp_path / "RESULTS.md")
    table = (tmp_path / "RESULTS.md").read_text()
    assert "## some" in table
    assert "| batch | n | ours, ms | theirs |" in table
    assert "| 1 | 1,000 | 1e+06 | 2.00 (2.00–2.00) |" in table


def test_numbers_are_stored_with_three_digits(benchmarks):
    import measure

    assert [measure.rounded(x) for x in (0.00123456, 123456.0, 0.5)] == [
        0.00123,
        123000.0,
        0.5,
    ]


def test_the_committed_table_shows_the_committed_records(request, benchmarks, tmp_path):
    import measure

    measure.write_tables(target=tmp_path / "RESULTS.md")
    committed = request.config.rootpath / "benchmarks" / "RESULTS.md"
    assert committed.read_text() == (tmp_path / "RESULTS.md").read_text()


def test_layers_compute_what_they_are_named_for(benchmarks):
    import layers

    found = layers.layers(d_model=8)
    x = torch.randn(2, 5, 8, generator=seeded(), requires_grad=True)
    for layer in found.values():
        assert layer(x).shape == x.shape
    loop, lstm = found["LSTM, step by step"], torch.nn.LSTM(8, 8, batch_first=True)
    weight_ih, weight_hh, bias = loop.weights
    for name, weight in (("weight_ih", weight_ih), ("weight_hh", weight_hh)):
        getattr(lstm, f"{name}_l0").data.copy_(weight)
    lstm.bias_ih_l0.data.copy_(bias)
    torch.nn.init.zeros_(lstm.bias_hh_l0)
    torch.testing.assert_close(loop(x), lstm(x)[0])

    (_, steps), *_ = layers.cases({2: (3,)})
    for step in steps.values():
        step()
