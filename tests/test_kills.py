"""``kill -9`` at random moments: what was saved loads, and the run loses nothing.

A run is started, killed at a moment that nothing announces, started again with
``--resume``, killed again, until it comes to its end. Every checkpoint that is there
after a kill has to load, none may be older than the one before, and at the end weights
and metrics have to be those of a run that was left alone.
"""

import json
import multiprocessing
import os
import random
import sys
import time
from functools import cache
from pathlib import Path

import pytest
import torch

from aiayn.__main__ import main
from aiayn.training import load_checkpoint, read_checkpoint

ARGUMENTS = (
    *("train", "copy", "--preset", "small", "--device", "cpu", "--no-plot"),
    *("--no-progress", "--held-out", "20", "--save-every", "1", "--max-steps"),
)
UPDATES = 80
FILES = {"checkpoint.safetensors", "config.json", "metrics.jsonl", "result.json"}


@cache
def context():
    """Starts processes in milliseconds where the system can: torch is loaded once."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["aiayn.copy_task"])
    return found


def child(arguments: list[str]) -> None:
    """The command line in a process of its own, without a word."""
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sys.exit(main(arguments))


def run(folder: Path, updates: int, seconds: float | None = None) -> int | None:
    """Start or continue; killed after some seconds, if it still runs. The exit code."""
    arguments = [*ARGUMENTS, str(updates), "--output", str(folder), "--resume"]
    process = context().Process(target=child, args=(arguments,))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def saved(folder: Path) -> int:
    """The update of the last checkpoint, which has to load; 0 where there is none."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return 0
    found = load_checkpoint(path)  # as anybody would
    assert len(found.extra["losses"]) == found.step
    assert all(weight.isfinite().all() for weight in found.model.parameters())
    return found.step


def metrics(folder: Path) -> list[dict]:
    """All lines, without how long they took."""
    text = (folder / "metrics.jsonl").read_text()
    return [{**json.loads(line), "seconds": 0} for line in text.splitlines()]


def survive(folder: Path, updates: int, rng: random.Random, most: float) -> int:
    """Run to the end through kills at random moments; how many there were."""
    kills, before = 0, 0
    for _ in range(500):
        code = run(folder, updates, rng.uniform(0.02, most))
        step = saved(folder)
        assert step >= before
        before = step
        if code == 0:
            return kills
        assert code == -9 or sys.platform == "win32", code
        kills += 1
    raise AssertionError(f"{kills} kills, and still at update {before}")


def assert_same_run(one: Path, two: Path) -> None:
    """Weights, optimiser, place in the data, losses and metrics: bit for bit."""
    first, second = (read_checkpoint(x / "checkpoint.safetensors") for x in (one, two))
    assert first.step == second.step
    assert first.extra == second.extra
    assert first.weights.keys() == second.weights.keys()
    for name, weight in first.weights.items():
        assert torch.equal(weight, second.weights[name]), name
    assert flat(first.parts) == flat(second.parts)
    assert metrics(one) == metrics(two)
    assert {file.name for file in two.iterdir()} == FILES


def flat(value) -> object:
    """A nested state with its tensors as lists, to be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: flat(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [flat(x) for x in value]
    return value


def told(folder: Path) -> int:
    """How many updates the metrics tell of."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """A run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("alone")
    assert run(folder, UPDATES) == 0
    return folder


def test_three_kills(alone, tmp_path):
    """The kills come in the middle of training: a killed start would prove little."""
    rng, at = random.Random(2017), []
    for update in (3, 20, 40):
        arguments = [*ARGUMENTS, str(UPDATES), "--output", str(tmp_path), "--resume"]
        process = context().Process(target=child, args=(arguments,))
        process.start()
        deadline = time.monotonic() + 120
        while told(tmp_path) < update and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))  # computing, saving or telling of it
        process.kill()
        process.join()
        assert process.exitcode == -9 or sys.platform == "win32"
        at.append(saved(tmp_path))
    assert 0 < at[0] < at[1] < at[2] < UPDATES
    assert run(tmp_path, UPDATES) == 0
    assert_same_run(alone, tmp_path)


@pytest.mark.slow
def test_fifty_kills(alone, tmp_path):
    rng, kills, rounds = random.Random(1706), 0, 0
    start = time.monotonic()
    assert run(tmp_path / "timed", UPDATES) == 0
    most = (time.monotonic() - start) / 2
    while kills < 50:
        folder = tmp_path / str(rounds)
        kills += survive(folder, UPDATES, rng, most)
        assert_same_run(alone, folder)
        rounds += 1
    print(f"{kills} kills in {rounds} runs")
