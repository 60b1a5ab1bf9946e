"""Decoding through blocks beside decoding from one tensor (chapter 12).

    python benchmarks/paged.py            measure and store
    python benchmarks/paged.py --quick    one case, nothing stored

One call writes 16 tokens, one by one, from 16 before the length named to there: a whole
decoder of three layers, d_model 256, 8 heads. The caches hold a prefix of that length.
``scattered`` has its blocks in an order that random rows left behind.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from measure import record, store  # sets the environment, so before torch

# isort: split
import torch

from aiayn import (
    BlockAllocator,
    DecoderCache,
    PagedKVCache,
    Transformer,
    TransformerConfig,
)

N_STEPS, BLOCK_SIZES = 16, (8, 16, 32, 64)
CASES = tuple((batch, length) for batch in (1, 8) for length in (128, 512, 1024))
SHAPE = {"d_model": 256, "n_layers": 3, "n_heads": 8, "d_ff": 1024}


def paged(batch: int, length: int, block_size: int) -> DecoderCache:
    """A cache whose layers have a pool each, with room for twice the tokens."""
    n_blocks = 2 * batch * (length // block_size + 1)
    return DecoderCache(
        SHAPE["n_layers"],
        make=lambda: PagedKVCache(BlockAllocator(n_blocks, block_size)),
    )


def scatter(cache: DecoderCache) -> None:
    """Move every layer's rows to blocks in random order, by the cache's own means."""
    for layer in cache.layers:
        paged = layer.self_attention
        allocator, tables = paged.allocator, paged.tables
        n = len(tables) * len(tables[0])
        old = [block for blocks in tables for block in blocks]
        fresh = allocator.allocate(n)
        new = [fresh[i] for i in torch.randperm(n).tolist()]
        for pool in (allocator.keys, allocator.values):
            pool[new] = pool[old]
        blocks, length = iter(new), len(paged)
        paged.reset()
        paged.adopt([[next(blocks) for _ in row] for row in tables])
        paged.crop(length)


def contenders(batch: int, length: int) -> dict[str, Callable]:
    """A cache of each kind behind the same decoder, all holding the same tokens."""
    config = TransformerConfig(1000, 1000, **SHAPE)
    model = Transformer(config, generator=torch.Generator().manual_seed(0))
    model = model.eval().requires_grad_(False)
    source = torch.randint(3, 1000, (batch, 16))
    memory = model.encode(source)
    target = torch.randint(3, 1000, (batch, length))
    past, new = target.split((length - N_STEPS, N_STEPS), dim=1)
    caches = {"one tensor": DecoderCache(SHAPE["n_layers"])}
    for size in BLOCK_SIZES:
        caches[f"blocks of {size}"] = paged(batch, length, size)
    caches["scattered 32"] = paged(batch, length, 32)
    for cache in caches.values():
        model.decode(past, memory, source, cache=cache)
    scatter(caches["scattered 32"])

    def write(cache):
        steps = new.split(1, dim=1)
        logits = [model.decode(x, memory, source, cache=cache) for x in steps]
        cache.crop(length - N_STEPS)
        return torch.cat(logits, dim=1)

    return {name: partial(write, cache) for name, cache in caches.items()}


def cases(chosen=CASES) -> Iterator[tuple[dict, dict]]:
    """Every batch and length with its contenders, which agree."""
    torch.manual_seed(0)
    for batch, length in chosen:
        found = contenders(batch, length)
        first, *others = (run() for run in found.values())
        for other in others:
            torch.testing.assert_close(other, first, rtol=1e-3, atol=1e-3)
        yield {"batch": batch, "tokens": length}, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="try it; store nothing")
    quick = parser.parse_args().quick
    settings = {
        "title": f"Writing {N_STEPS} tokens up to the length named, with a decoder of "
        f"{SHAPE['n_layers']} layers, d_model {SHAPE['d_model']}, "
        f"{SHAPE['n_heads']} heads; caches in one tensor and in blocks.",
        "base": "one tensor",
        "n_steps": N_STEPS,
        **SHAPE,
    }
    with torch.no_grad():
        if quick:
            record(settings, cases(((1, 512), (8, 512))), turns=5)
        else:
            store("paged_times", record(settings, cases(), turns=11))


if __name__ == "__main__":
    main()
