"""Pool the key heads of trained copy models, train them on, and store the record.

    python tools/pooled_seeds.py            train, if what the record rests on changed
    python tools/pooled_seeds.py --force    train in any case
    python tools/pooled_seeds.py --check    fail if the record is out of date

The record is src/aiayn/book/data/pooled_seeds.json, which chapter 10 shows. Like that
of copy_seeds.py it holds a hash of the code and the pins that its numbers depend on.
"""

import ast
import copy
import hashlib
import itertools
import json
import os
import sys
from pathlib import Path

import copy_seeds
import records
from environment import FIXED

SEEDS = range(5)
KEY_HEADS = (2, 1)
UPDATES = (0, 5, 10, 20, 40, 80)  # after which sequences are counted
RATE, BATCH_SIZE, TESTED, MAX_LENGTH = 1e-3, 64, 1000, 5
RECORD = records.DATA / "pooled_seeds.json"


def inputs(root: Path) -> str:
    """A hash of everything that the record's numbers depend on."""
    digest = hashlib.sha256(copy_seeds.inputs(root).encode())
    for path in (root / "src" / "aiayn" / "grouped_query.py", Path(__file__)):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.name == Path(__file__).name:
            tree.body = [n for n in tree.body if getattr(n, "name", "") in MEASURED]
        digest.update(records.essence(tree).encode())
    settings = list(SEEDS), KEY_HEADS, UPDATES, RATE, BATCH_SIZE, TESTED, MAX_LENGTH
    digest.update(repr(settings).encode())
    return digest.hexdigest()


def ways() -> dict:
    """How a group of key heads can become one: called with (attention, n_kv_heads)."""
    import torch

    from aiayn.grouped_query import align_heads, pool_heads

    @torch.no_grad()
    def first(attention, n_kv_heads):
        pooled = pool_heads(attention, n_kv_heads)
        for name, width in (("key", attention.d_k), ("value", attention.d_v)):
            given = getattr(attention, f"{name}_projection")
            taken = getattr(pooled, f"{name}_projection")
            for old, new in zip(given.parameters(), taken.parameters(), strict=True):
                heads = old.unflatten(0, (n_kv_heads, -1, width))
                new.copy_(heads[:, 0].flatten(0, 1))
        return pooled

    @torch.no_grad()
    def fresh(attention, n_kv_heads):
        pooled = pool_heads(attention, n_kv_heads)
        generator = torch.Generator().manual_seed(0)
        for projection in (pooled.key_projection, pooled.value_projection):
            torch.nn.init.xavier_uniform_(projection.weight, generator=generator)
            torch.nn.init.zeros_(projection.bias)
        return pooled

    def aligned(attention, n_kv_heads):
        return pool_heads(align_heads(attention, n_kv_heads), n_kv_heads)

    return {"aligned mean": aligned, "mean": pool_heads, "first": first, "fresh": fresh}


def recovery(model, task, held_out) -> list[int]:
    """How many sequences come back after each number of updates."""
    import torch

    from aiayn.copy_task import exact_match, training_batches
    from aiayn.training import train

    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    batches = training_batches(task, BATCH_SIZE, generator, torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    copied = []
    for before, after in itertools.pairwise((0, *UPDATES)):
        if after > before:
            some = itertools.islice(batches, after - before)
            train(model, some, optimizer=optimizer)
        copied.append(int(exact_match(model, task, held_out).sum()))
    return copied


def measure(seed: int) -> dict:
    """Train chapter 10's model from one seed, pool it in every way, train it on."""
    import torch

    from aiayn.copy_task import CopyTask, exact_match, held_out_set, train_copy_model
    from aiayn.grouped_query import pool_model
    from aiayn.transformer import TransformerConfig

    torch.set_num_threads(1)
    task = CopyTask(max_length=MAX_LENGTH)
    config = TransformerConfig.toy(task.vocab_size, d_model=32, n_layers=1, d_ff=128)
    run = train_copy_model(
        task, config, seed=seed, batch_size=BATCH_SIZE, n_validation=200,
        validate_every=25, device=torch.device("cpu"),
    )  # fmt: skip
    held_out = held_out_set(task, TESTED)
    return {
        "seed": seed,
        "steps": len(run.losses),
        "copied": int(exact_match(run.model, task, held_out).sum()),
        "pooled": {
            str(n_kv_heads): {
                name: recovery(
                    pool_model(run.model, n_kv_heads, pool=way), task, held_out
                )
                for name, way in ways().items()
            }
            for n_kv_heads in KEY_HEADS
        },
    }


MEASURED = ("ways", "recovery", "measure")


def make(root: Path) -> dict:
    """Every seed."""
    os.environ.update(FIXED)  # before torch is loaded, as for the notebooks
    sys.path.insert(0, str(root / "src"))
    rows = []
    for seed in SEEDS:
        rows.append(measure(seed))
        print(json.dumps(rows[-1]), flush=True)
    return {
        **records.circumstances(),
        "updates": list(UPDATES),
        "tested": TESTED,
        "seeds": rows,
    }


if __name__ == "__main__":
    record = records.Record(RECORD, inputs, make, chapter=10)
    record.main(__doc__.splitlines()[0])
