"""Train the copy task's model and ship it with the package.

    python tools/ship_copy_model.py            train, if what it rests on changed
    python tools/ship_copy_model.py --force    train in any case
    python tools/ship_copy_model.py --check    fail if it, or its hash, is out of date

The weights are src/aiayn/book/data/copy_model.safetensors, in float32; copy_model.json
beside them holds their SHA-256 and how they were trained and tested. Trained is seed 0
of the book's recipe, the run that chapter 14 shows.
"""

import hashlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import copy_seeds
import records
from environment import FIXED

SEED, MOST_BYTES = 0, 1_500_000
BANDS = ((1, 5), (6, 10), (11, 15), (16, 20))  # of lengths
RECORD = records.DATA / "copy_model.json"
WEIGHTS = records.DATA / "copy_model.safetensors"
MODULES = (*copy_seeds.MODULES, "grouped_query")


def measure(path: Path) -> dict:
    """Train, test and save the model: what its record says of it."""
    import torch

    from aiayn.copy_task import CopyTask, exact_match, held_out_set, train_copy_model
    from aiayn.training import load_checkpoint, save_checkpoint

    torch.set_num_threads(1)
    torch.manual_seed(SEED)  # the file also holds the state of torch's own generator
    task = CopyTask()
    start = time.process_time()
    run = train_copy_model(task, seed=SEED, device=torch.device("cpu"))
    seconds = time.process_time() - start
    steps = len(run.losses)
    extra = {"task": asdict(task), "seed": SEED}
    save_checkpoint(path, run.model, step=steps, extra=extra)
    tests = held_out_set(task)
    right = exact_match(load_checkpoint(path).model, task, tests).tolist()
    lengths = [len(symbols) for symbols in tests]
    bands = {
        f"{low}-{high}": [
            sum(r for r, n in zip(right, lengths, strict=True) if low <= n <= high),
            sum(low <= n <= high for n in lengths),
        ]
        for low, high in BANDS
    }
    if not (run.finished and all(right)):
        raise SystemExit(f"not shipped: {sum(right)} of {len(right)} copied")
    return {
        "seed": SEED,
        "config": asdict(run.model.config),
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "updates": steps,
        "validation": run.validation,
        "training_cpu_seconds": round(seconds, 1),
        "tested": len(right),
        "copied": sum(right),
        "copied by length": bands,
    }


def inputs(root: Path) -> str:
    """A hash of everything that the weights depend on."""
    return records.code_hash(root, MODULES, Path(__file__), ("measure",), (SEED, BANDS))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make(root: Path) -> dict:
    """Train, and say of the file what it is."""
    os.environ.update(FIXED)  # before torch is loaded, as for the notebooks
    sys.path.insert(0, str(root / "src"))
    path = root / WEIGHTS
    found = measure(path)
    path.chmod(0o644)  # whatever the folder's default: it is installed with the package
    if (size := path.stat().st_size) >= MOST_BYTES:
        raise SystemExit(f"{WEIGHTS.as_posix()} has {size:,} bytes: too many to ship")
    file = {"file": path.name, "bytes": size, "sha256": sha256(path)}
    return {**records.circumstances(), **file, **found}


@dataclass(frozen=True)
class Shipped(records.Record):
    """A record that is current only if the file beside it is the one it names."""

    def is_current(self, root: Path) -> bool:
        if not super().is_current(root) or not (root / WEIGHTS).exists():
            return False
        found = json.loads((root / self.path).read_text(encoding="utf-8"))
        return found["sha256"] == sha256(root / WEIGHTS)


if __name__ == "__main__":
    record = Shipped(RECORD, inputs, make, chapter=14)
    record.main(__doc__.splitlines()[0])
