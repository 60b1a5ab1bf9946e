"""Train the copy task's model with one thing changed at a time, and store the record.

    python tools/ablations.py            train the rows that are missing or out of date
    python tools/ablations.py --force    train every row anew
    python tools/ablations.py --check    fail if the record is out of date

The record is src/aiayn/book/data/copy_ablations.json, which chapter 14 shows. Each row
is stored when it is finished, so that a run that is stopped goes on where it was. When
the code changed, a row is trained anew only if its first updates, repeated, no longer
give the same losses to the last bit: a change of wording costs two minutes, not forty.
"""

import hashlib
import itertools
import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import records
from environment import FIXED

MODULES = (
    *("tokens", "recurrence", "scaled_dot_product", "multi_head"),
    *("positional_encoding", "sublayers", "transformer", "decoding"),
    *("grouped_query", "training", "copy_task"),
)
SEEDS = range(3)
MOST = 500  # updates; a run that has not validated by then counts as failed
TESTED = 2000  # held-out sequences
BANDS = ((1, 5), (6, 10), (11, 15), (16, 20))  # of lengths
REPEATED = 25  # updates that must repeat bit for bit when the code has changed
SMALLEST_SEEDS = range(5)
RECORD = records.DATA / "copy_ablations.json"
MEASURED = (
    *("variants", "train_transformer", "train_lstm", "train_smallest"),
    *("by_band", "teacher_forced", "measure"),
)


def variants() -> dict:
    """Name of each row to (changes of the configuration, of the training, a patch)."""
    from aiayn import sublayers
    from aiayn.multi_head import MultiHeadAttention
    from aiayn.scaled_dot_product import fused_attention

    def unscaled(query, key, value, mask=None, *, causal=False):
        return fused_attention(query, key, value, mask, causal=causal, scale=1.0)

    class Peeking(MultiHeadAttention):
        """Attention that forgets to hide the future."""

        def mix(self, query, key, value, mask=None, *, causal=False):
            return super().mix(query, key, value, mask)

    def no_residual():
        return patch.object(sublayers, "residual", lambda x, change: change)

    return {
        "base": ({}, {}, nullcontext),
        "no positions": ({"positions": "none"}, {}, nullcontext),
        "learned positions": (
            {"positions": "learned", "max_len": 22}, {}, nullcontext
        ),
        "no scaling": ({}, {"attend": unscaled}, nullcontext),
        "one head": ({"n_heads": 1}, {}, nullcontext),
        "no residuals": ({}, {}, no_residual),
        "no causal mask": ({}, {"attention": Peeking}, nullcontext),
        "pre-norm": ({"norm_first": True}, {}, nullcontext),
        "tied embeddings": ({"tie_embeddings": True}, {}, nullcontext),
        "embeddings of variance 1/d": ({"embedding_std": None}, {}, nullcontext),
        "one layer": ({"n_layers": 1}, {}, nullcontext),
        "one key head": ({"n_kv_heads": 1}, {}, nullcontext),
        "two key heads": ({"n_kv_heads": 2}, {}, nullcontext),
    }  # fmt: skip


def train_transformer(name: str, seed: int, most: int):
    """One row's model, its losses and its validations."""
    import torch

    from aiayn.copy_task import CopyTask, train_copy_model
    from aiayn.transformer import TransformerConfig

    changes, settings, changed = variants()[name]
    task = CopyTask()
    config = TransformerConfig.toy(task.vocab_size, **changes)
    torch.manual_seed(seed)  # what dropout draws from
    with changed():
        run = train_copy_model(
            task, config, seed=seed, max_steps=most, device=torch.device("cpu"),
            **settings,
        )  # fmt: skip
    return task, run.model, run.losses, run.validation, changed


def train_lstm(peak_rate: float, seed: int, most: int):
    """The LSTM of chapter 1, as large, on the same batches, with the same recipe."""
    import torch

    from aiayn.copy_task import (
        CopyTask,
        copy_optimizer,
        exact_match,
        training_batches,
        validation_set,
    )
    from aiayn.recurrence import RecurrentSeq2Seq
    from aiayn.training import train

    task = CopyTask()
    generator = torch.Generator().manual_seed(seed)
    held_out = validation_set(task, 500, generator)
    sizes = task.vocab_size, task.vocab_size, 120
    model = RecurrentSeq2Seq(*sizes, dropout=0.0, generator=generator)
    optimizer, schedule = copy_optimizer(model, peak_rate, 100)
    validation = []

    def after_step(step, loss):
        if step % 100 == 0:
            share = exact_match(model, task, held_out).double().mean().item()
            validation.append((step, share))
        return step >= most

    losses = train(
        model, training_batches(task, 128, generator, torch.device("cpu")),
        optimizer=optimizer, schedule=schedule, after_step=after_step,
    )  # fmt: skip
    return task, model.eval(), losses, validation, nullcontext


def train_smallest(seed: int, most: int, validate_every: int = 10):
    """One layer, one head, width 32, up to ten symbols: how little is enough."""
    import torch

    from aiayn.copy_task import CopyTask, train_copy_model
    from aiayn.transformer import TransformerConfig

    task = CopyTask(max_length=10)
    config = TransformerConfig.toy(
        task.vocab_size, d_model=32, n_layers=1, n_heads=1, d_ff=128
    )
    run = train_copy_model(
        task, config, seed=seed, batch_size=64, peak_rate=5e-3, warmup=50,
        validate_every=validate_every, max_steps=most, device=torch.device("cpu"),
    )  # fmt: skip
    return task, run.model, run.losses, run.validation, nullcontext


def by_band(model, task, sequences) -> dict:
    """Sequences copied exactly, and how many there are, by length."""
    from aiayn.copy_task import exact_match

    right = exact_match(model, task, sequences).tolist()
    return {
        f"{low}-{high}": [
            sum(r for r, s in zip(right, sequences, strict=True) if len(s) in band),
            sum(len(s) in band for s in sequences),
        ]
        for low, high in BANDS
        if (band := range(low, high + 1))[0] <= task.max_length
    }


def teacher_forced(model, task, sequences) -> dict:
    """Loss, and share of tokens right, when the true past is read and not the own."""
    import torch

    from aiayn.copy_task import to_tensors
    from aiayn.tokens import PAD
    from aiayn.training import label_smoothed_loss

    source, target = to_tensors(task, sequences)
    with torch.no_grad():
        logits = model(source, target[:, :-1])
    labels = target[:, 1:]
    right = (logits.argmax(dim=-1) == labels)[labels != PAD].double().mean()
    loss = label_smoothed_loss(logits, labels)
    return {"loss": round(loss.item(), 4), "tokens right": round(right.item(), 4)}


def measure(name: str, seed: int, most: int | None = None) -> dict:
    """Train one row and test it; with ``most``, only that many updates and no test."""
    import torch

    from aiayn.copy_task import held_out_set

    torch.set_num_threads(1)
    start = time.process_time()
    if name.startswith("LSTM"):
        train_row, which = train_lstm, float(name.split()[-1])
        found = train_row(which, seed, most or MOST)
    elif name == "smallest":
        found = train_smallest(seed, most or MOST)
    else:
        found = train_transformer(name, seed, most or MOST)
    task, model, losses, validation, changed = found
    seconds = time.process_time() - start
    first = ",".join(float(loss).hex() for loss in losses[:REPEATED])
    row = {
        "name": name,
        "seed": seed,
        "first losses": hashlib.sha256(first.encode()).hexdigest(),
    }
    if most is not None:
        return row
    if name == "smallest":  # the same updates again, without a validation
        start = time.process_time()
        again = train_smallest(seed, len(losses), validate_every=10 * MOST)
        assert again[2] == losses
        row["updates_cpu_seconds"] = round(time.process_time() - start, 2)
    tests = held_out_set(task, 10_000 if name == "smallest" else TESTED)
    with changed():
        bands = by_band(model, task, tests)
        forced = teacher_forced(model, task, tests[-500:])
    return row | {
        "parameters": sum(p.numel() for p in model.parameters()),
        "updates": len(losses),
        "validated": [share for _, share in validation[-3:]] == [1.0] * 3,
        "validation": validation,
        "training_cpu_seconds": round(seconds, 1),
        "copied by length": bands,
        "teacher forced": forced,
    }


def wanted() -> list[tuple[str, int]]:
    """Every row: what the chapter leans on first, and the first seed of all of that."""
    names = list(variants())
    first = [*names[:10], "LSTM 0.0025", "LSTM 0.01"]
    rows = [("smallest", seed) for seed in SMALLEST_SEEDS]
    rows += [(name, seed) for seed in SEEDS for name in first]
    return rows + [(name, seed) for seed in SEEDS for name in names[10:]]


def inputs(root: Path) -> str:
    """A hash of everything that the record's numbers depend on."""
    settings = list(SEEDS), MOST, TESTED, BANDS, REPEATED, list(SMALLEST_SEEDS)
    return records.code_hash(root, MODULES, Path(__file__), MEASURED, settings)


def repeats(row: dict) -> bool:
    """Whether a stored row still begins with the same losses."""
    again = measure(row["name"], row["seed"], REPEATED)
    return again["first losses"] == row["first losses"]


def kept(root: Path, path: Path) -> list[dict]:
    """The stored rows that the present code would give again."""
    if "--force" in sys.argv or not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in found["rows"] if (row["name"], row["seed"]) in wanted()]
    if found["code"] == inputs(root):
        return rows
    return [row for row in rows if repeats(row)]


def make(root: Path) -> dict:
    """Train what is missing, storing each row as it is finished."""
    os.environ.update(FIXED)  # before torch is loaded, as for the notebooks
    sys.path.insert(0, str(root / "src"))
    code, path = inputs(root), root / RECORD
    rows = kept(root, path)
    done = {(row["name"], row["seed"]) for row in rows}
    head = {
        **records.circumstances(), "code": code, "most": MOST,
        "repeated": REPEATED, "bands": [list(band) for band in BANDS],
    }  # fmt: skip
    for name, seed in itertools.filterfalse(done.__contains__, wanted()):
        rows.append(row := measure(name, seed))
        print({k: v for k, v in row.items() if k != "validation"}, flush=True)
        if inputs(root) != code:
            raise SystemExit("the code changed meanwhile: the row was not stored")
        records.write(path, {"inputs": "unfinished", **head, "rows": rows})
    order = {row: i for i, row in enumerate(wanted())}
    rows.sort(key=lambda row: order[row["name"], row["seed"]])
    return {**head, "rows": rows}


if __name__ == "__main__":
    record = records.Record(RECORD, inputs, make, chapter=14)
    record.main(__doc__.splitlines()[0])
