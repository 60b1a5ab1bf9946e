"""Train the copy task's model from five seeds, test each, and store the record.

    python tools/copy_seeds.py            train, if what the record rests on changed
    python tools/copy_seeds.py --force    train in any case
    python tools/copy_seeds.py --check    fail if the record is out of date

The record is src/aiayn/book/data/copy_seeds.json, which chapter 14 shows. It holds a
hash of its inputs, as records.py says.
"""

import os
import sys
import time
from pathlib import Path

import records
from environment import FIXED

MODULES = (
    "tokens",
    "scaled_dot_product",
    "multi_head",
    "positional_encoding",
    "sublayers",
    "transformer",
    "decoding",
    "training",
    "copy_task",
)
SEEDS = range(5)
BEYOND = (20, 21, 22, 23, 24, 25, 30)  # lengths; training ends at 20
SAMPLES = 200  # sequences of each of these lengths
PAPER_BETA2 = 0.98  # trained too, for comparison
RECORD = records.DATA / "copy_seeds.json"


def measure(seed: int) -> dict:
    """Train from one seed and test: what a row of the record holds."""
    import torch

    from aiayn.copy_task import CopyTask, exact_match, held_out_set, train_copy_model

    torch.set_num_threads(1)
    task, cpu = CopyTask(), torch.device("cpu")
    start = time.process_time()
    run = train_copy_model(task, seed=seed, device=cpu)
    trained = time.process_time()
    right = exact_match(run.model, task, held_out_set(task))
    tested = time.process_time()
    beyond = {}
    for length in BEYOND:
        generator = torch.Generator().manual_seed(length)
        drawn = torch.randint(3, 13, (SAMPLES, length), generator=generator).tolist()
        beyond[str(length)] = int(exact_match(run.model, task, drawn).sum())
    paper = train_copy_model(task, seed=seed, beta2=PAPER_BETA2, device=cpu)
    also_right = exact_match(paper.model, task, held_out_set(task))
    return {
        "seed": seed,
        "steps": len(run.losses),
        "validated": run.finished,
        "validation": run.validation,
        "training_cpu_seconds": round(trained - start, 1),
        "test_cpu_seconds": round(tested - trained, 1),
        "tested": len(right),
        "copied": int(right.sum()),
        "copied_by_length": beyond,
        "with_paper_beta2": {
            "steps": len(paper.losses),
            "validated": paper.finished,
            "validation": paper.validation,
            "copied": int(also_right.sum()),
        },
    }


def inputs(root: Path) -> str:
    """A hash of everything that the record's numbers depend on."""
    settings = list(SEEDS), BEYOND, SAMPLES, PAPER_BETA2
    return records.code_hash(root, MODULES, Path(__file__), ("measure",), settings)


def make(root: Path) -> dict:
    """Train and test every seed."""
    # before torch is loaded: one thread and one instruction set, as for the notebooks
    os.environ.update(FIXED)
    sys.path.insert(0, str(root / "src"))
    rows = []
    for seed in SEEDS:
        rows.append(row := measure(seed))
        print(
            f"seed {seed}: {row['steps']} updates in {row['training_cpu_seconds']} CPU "
            f"seconds, {row['copied']:,} of {row['tested']:,} copied; with the paper's "
            f"beta2: {row['with_paper_beta2']['copied']:,}",
            flush=True,
        )
    return {**records.circumstances(), "samples_by_length": SAMPLES, "seeds": rows}


if __name__ == "__main__":
    record = records.Record(RECORD, inputs, make, chapter=14)
    record.main(__doc__.splitlines()[0])
