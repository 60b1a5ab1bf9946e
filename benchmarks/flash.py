"""Attention in tiles beside the equation and torch's kernel, and tiles of every size.

    python benchmarks/flash.py            measure and store (chapter 11)
    python benchmarks/flash.py --quick    a few lengths, nothing stored
    python benchmarks/flash.py --lengths  store the lengths, not the sweep

Eight heads of width 64, one sequence, float32: forward, and forward with backward.
Beside each time stands the peak memory of a call, as torch's profiler saw it. Forward,
a fourth contender is the equation in memory that it is given: what it lacks of the
equation's time is what fresh memory for n × n numbers costs.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import record, store  # sets the environment, so before torch

# isort: split
import torch

from aiayn import attention, flash_attention, fused_attention

N_HEADS, D_K = 8, 64
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
SWEEP = 2048
QUERIES, KEYS = (16, 32, 64, 128, 256, 512), (64, 256, 512, 1024, 2048)
ATTENDS = {"tiles": flash_attention, "equation": attention, "fused": fused_attention}
REUSED = "equation, memory reused"


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory that ``run`` held at once beyond what was there before."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        found = run()
        del found
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    events = [e for e in events if e.get("name") == "[memory]"]
    events.sort(key=lambda e: e["ts"])
    held = peak = 0
    for event in events:
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def call(attend, inputs, *, backward: bool, causal: bool) -> Callable[[], object]:
    """One call of a contender."""
    if not backward:
        return lambda: attend(*inputs, causal=causal)
    upstream = torch.ones_like(inputs[2])

    def there_and_back():
        mixed = attend(*inputs, causal=causal)
        return torch.autograd.grad(mixed, inputs, upstream)

    return there_and_back


def equation_in_place(inputs, *, causal: bool) -> Callable[[], torch.Tensor]:
    """The steps of `attention`, each into memory that was made once for all calls."""
    query, key, value = inputs
    n, d_k = query.shape[-2:]
    scores, weights = torch.empty(2, *query.shape[:-1], n).unbind()
    allowed, hidden = torch.empty(2, n, n, dtype=torch.bool).unbind()
    blind = torch.empty(n, 1, dtype=torch.bool)
    output, place = torch.empty_like(value), torch.arange(n)

    def plain():
        torch.matmul(query * d_k**-0.5, key.mT, out=scores)
        torch.softmax(scores, dim=-1, out=weights)
        return torch.matmul(weights, value, out=output)

    def masked():
        torch.matmul(query * d_k**-0.5, key.mT, out=scores)
        torch.le(place, place.unsqueeze(-1), out=allowed)
        torch.any(allowed, dim=-1, keepdim=True, out=blind)
        torch.logical_not(blind, out=blind)
        torch.logical_or(allowed, blind, out=hidden)
        torch.logical_not(hidden, out=hidden)
        weights.copy_(scores).masked_fill_(hidden, -torch.inf)
        torch.softmax(weights, dim=-1, out=scores)
        weights.copy_(scores).masked_fill_(blind, 0.0)
        return torch.matmul(weights, value, out=output)

    return masked if causal else plain


def cases(lengths=LENGTHS) -> Iterator[tuple[dict, dict]]:
    """Every length with its contenders; they agree."""
    torch.manual_seed(0)
    for backward in (False, True):
        for causal in (False, True):
            for n in lengths:
                inputs = torch.randn(3, 1, N_HEADS, n, D_K).unbind()
                inputs = [x.requires_grad_(backward) for x in inputs]
                found = {
                    name: call(attend, inputs, backward=backward, causal=causal)
                    for name, attend in ATTENDS.items()
                }
                if not backward:
                    found[REUSED] = equation_in_place(inputs, causal=causal)
                results = [run() for run in found.values()]
                for other in results[1:]:
                    torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-5)
                del results
                case = {
                    "n": n,
                    "causal": causal,
                    "backward": backward,
                    "peak MiB": {
                        name: round(peak_bytes(run) / 2**20, 2)
                        for name, run in found.items()
                        if name != REUSED
                    },
                }
                yield case, found


def tile_cases(n=SWEEP, queries=QUERIES, keys=KEYS) -> Iterator[tuple[dict, dict]]:
    """The sweep: a row for each number of queries, a contender for each of keys."""
    torch.manual_seed(0)
    inputs = torch.randn(3, 1, N_HEADS, n, D_K).unbind()
    for causal in (False, True):
        plain = call(attention, inputs, backward=False, causal=causal)
        for n_queries in queries:
            found = {"equation": plain}
            for n_keys in keys:
                found[f"{n_keys} keys"] = lambda size=(n_queries, n_keys): (
                    flash_attention(*inputs, causal=causal, block_size=size)  # noqa: B023
                )
            yield {"queries": n_queries, "causal": causal}, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="try it; store nothing")
    parser.add_argument("--lengths", action="store_true", help="leave the sweep out")
    arguments = parser.parse_args()
    quick = arguments.quick
    common = {"n_heads": N_HEADS, "d_k": D_K}
    title = f"Attention of {N_HEADS} heads of width {D_K}, float32"
    times = {"title": f"{title}.", "base": "tiles", **common}
    sweep = {
        "title": f"{title}, {SWEEP:,} queries and keys, forward: sizes of a tile.",
        "base": "equation", "n": SWEEP, **common,
    }  # fmt: skip
    if quick:
        record(times, cases((256, 1024)), turns=3)
        with torch.no_grad():
            record(sweep, tile_cases(512, (64,), (64, 512)), turns=3)
        return
    store("flash_times", record(times, cases(), turns=9))
    if arguments.lengths:
        return
    with torch.no_grad():
        store("flash_tile_times", record(sweep, tile_cases(), turns=7))


if __name__ == "__main__":
    main()
