"""One query a head against keys that groups of heads share (chapter 10).

    python benchmarks/grouped.py            measure and store
    python benchmarks/grouped.py --quick    a few lengths, nothing stored

One call is what a layer does between its projections in a step of decoding: eight heads
attend with one query each, to the keys and values that a cache holds.
"""

import argparse
from collections.abc import Iterator

from measure import record, store  # sets the environment, so before torch

# isort: split
import torch
import torch.nn.functional as F

from aiayn import GroupedQueryAttention, MultiHeadAttention

N_HEADS, N_KV_HEADS, D_K, BATCH = 8, 2, 64, 8
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)


def contenders(n_keys: int) -> dict:
    """Ways to attend, each with the keys and values that its cache would hold."""
    width = N_HEADS * D_K
    plain = MultiHeadAttention(width, N_HEADS)
    grouped = GroupedQueryAttention(width, N_HEADS, n_kv_heads=N_KV_HEADS)
    multi_query = GroupedQueryAttention(width, N_HEADS, n_kv_heads=1)
    query = torch.randn(BATCH, N_HEADS, 1, D_K)
    key, value = torch.randn(2, BATCH, N_KV_HEADS, n_keys, D_K)
    every = [x.repeat_interleave(N_HEADS // N_KV_HEADS, dim=1) for x in (key, value)]
    one = [x[:, :1].contiguous() for x in (key, value)]

    def repeated():
        copies = (
            x.repeat_interleave(N_HEADS // N_KV_HEADS, dim=1) for x in (key, value)
        )
        return plain.mix(query, *copies)

    return {
        "multi-head": lambda: plain.mix(query, *every),
        "grouped, keys repeated": repeated,
        "grouped, torch's flag": lambda: F.scaled_dot_product_attention(
            query, key, value, enable_gqa=True
        ),
        "grouped": lambda: grouped.mix(query, key, value),
        "multi-query": lambda: multi_query.mix(query, *one),
    }


def cases(lengths=LENGTHS) -> Iterator[tuple[dict, dict]]:
    """Every length with its contenders; the grouped ones agree."""
    torch.manual_seed(0)
    for n_keys in lengths:
        found = contenders(n_keys)
        with torch.no_grad():
            results = [run() for name, run in found.items() if name != "multi-query"]
        for other in results[1:]:
            torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-5)
        yield {"keys": n_keys}, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="try it; store nothing")
    quick = parser.parse_args().quick
    settings = {
        "title": f"Attention of one new token of each of {BATCH} sequences: {N_HEADS} "
        f"heads of width {D_K}, sharing {N_KV_HEADS} key heads where grouped.",
        "base": "multi-head",
        "batch": BATCH,
        "n_heads": N_HEADS,
        "n_kv_heads": N_KV_HEADS,
        "d_k": D_K,
    }
    with torch.no_grad():
        if quick:
            record(settings, cases((128, 1024)), turns=3)
        else:
            store("grouped_times", record(settings, cases(), turns=15))


if __name__ == "__main__":
    main()
