"""Serving the trained copy model: the same tokens, several ways (chapter 14).

    python benchmarks/serving.py            measure and store
    python benchmarks/serving.py --quick    one batch, nothing stored

One call encodes sources of 20 symbols and writes 21 tokens for each. All ways serve the
weights that come with the package; the grouped model has other, untrained ones, since
only its time is looked at.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from measure import record, store  # sets the environment, so before torch

# isort: split
import torch

from aiayn import (
    EOS,
    BlockAllocator,
    DecoderCache,
    GroupedQueryAttention,
    PagedKVCache,
    Transformer,
    TransformerConfig,
    attention,
    flash_attention,
    fused_attention,
    greedy_decode,
)
from aiayn.copy_task import load_copy_model

BATCHES, N_SYMBOLS, BLOCK_SIZE = (1, 16, 64), 20, 4


def served(attend: Callable) -> Transformer:
    """The shipped model behind another ``attend``."""
    shipped = load_copy_model()
    model = Transformer(shipped.config, attend=attend)
    model.load_state_dict(shipped.state_dict())
    return model.eval().requires_grad_(False)


def grouped(n_kv_heads: int) -> Transformer:
    """A model of the same sizes whose query heads share keys, untrained."""
    config = TransformerConfig.toy(13, n_kv_heads=n_kv_heads)
    generator = torch.Generator().manual_seed(0)
    model = Transformer(config, attention=GroupedQueryAttention, generator=generator)
    return model.eval().requires_grad_(False)


def blocks(batch: int) -> DecoderCache:
    """A cache in blocks, with room for every row and one block more."""
    n_blocks = batch * (N_SYMBOLS // BLOCK_SIZE + 2)
    return DecoderCache(
        2, make=lambda: PagedKVCache(BlockAllocator(n_blocks, BLOCK_SIZE))
    )


def writers(batch: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The contenders: from sources to what they write."""

    def write(model, make, source):
        # no token ends a row early: all write as many as the longest
        never = len(model.target_embedding.weight) - 1
        limit = {"max_len": N_SYMBOLS + 1, "eos_id": never}
        return greedy_decode(model, source, cache=make(), **limit)

    grow, paged = partial(DecoderCache, 2), partial(blocks, batch)
    return {
        "cached": partial(write, served(fused_attention), grow),
        "recomputed": partial(write, served(attention), lambda: None),
        "cached, tiles": partial(write, served(flash_attention), grow),
        "cached, blocks": partial(write, served(fused_attention), paged),
        "cached, 1 of 4 key heads": partial(write, grouped(1), grow),
    }


def cases(batches=BATCHES) -> Iterator[tuple[dict, dict]]:
    """Every batch size with its contenders, four of which write the same."""
    for batch in batches:
        generator = torch.Generator().manual_seed(batch)
        symbols = torch.randint(3, 12, (batch, N_SYMBOLS), generator=generator)
        source = torch.cat((symbols, torch.full((batch, 1), EOS)), dim=1)
        found = writers(batch)
        for name, write in found.items():
            same = name.endswith("key heads") or torch.equal(write(source), source)
            assert same, name
        yield {"batch": batch}, {n: partial(f, source) for n, f in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="try it; store nothing")
    quick = parser.parse_args().quick
    settings = {
        "title": f"Copying {N_SYMBOLS} symbols with the shipped model: "
        f"{N_SYMBOLS + 1} tokens for each row of a batch.",
        "base": "cached",
        "tokens": N_SYMBOLS + 1,
    }
    if quick:
        record(settings, cases((16,)), turns=3)
    else:
        store("serving_times", record(settings, cases(), turns=9))


if __name__ == "__main__":
    main()
