"""Writing T tokens: with a cache, without one, and with a peer's (chapters 9 and 10).

    python benchmarks/decoding.py            measure and store
    python benchmarks/decoding.py --quick    two lengths, nothing stored

One call encodes a source of 32 tokens and writes T tokens greedily, batch 1. The peer
is x-transformers, with its own `generate` and its cache: `pip install
x-transformers==2.31.10`. Without it nothing is stored.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from measure import record, store  # sets the environment, so before torch

# isort: split
import torch
from torch import Tensor

from aiayn import (
    BOS,
    DecoderCache,
    GroupedQueryAttention,
    Transformer,
    TransformerConfig,
    greedy_decode,
)

SIZES = {"d_model": 256, "n_layers": 3, "n_heads": 8, "d_ff": 1024}
VOCAB, N_SOURCE, LENGTHS = 1000, 32, (32, 64, 128, 256, 512)
NEVER = VOCAB - 1  # stands for EOS, and is never written: every call writes T tokens


def model(attention=None, **changes) -> Transformer:
    """Our model, untrained: what it writes does not matter, how long it takes does."""
    config = TransformerConfig(
        VOCAB, VOCAB, **SIZES, dropout=0.0, tie_embeddings=False, **changes
    )
    seam = {} if attention is None else {"attention": attention}
    made = Transformer(config, generator=torch.Generator().manual_seed(0), **seam)
    return made.eval().requires_grad_(False)


def peer() -> torch.nn.Module:
    """x-transformers at the same sizes, with its fast attention."""
    from x_transformers import XTransformer

    side = {
        "num_tokens": VOCAB,
        "max_seq_len": 1024,
        "depth": SIZES["n_layers"],
        "heads": SIZES["n_heads"],
        "attn_dim_head": SIZES["d_model"] // SIZES["n_heads"],
        "attn_flash": True,
    }
    both = {f"{part}_{name}": x for part in ("enc", "dec") for name, x in side.items()}
    torch.manual_seed(0)
    return XTransformer(dim=SIZES["d_model"], **both).eval().requires_grad_(False)


def writers(with_peer: bool = True) -> dict[str, Callable[[Tensor, int], Tensor]]:
    """The contenders: from a source and a length to so many tokens."""

    def ours(made, source, n, *, cached):
        cache = DecoderCache(SIZES["n_layers"]) if cached else None
        return greedy_decode(made, source, max_len=n, eos_id=NEVER, cache=cache)

    plain = model()
    grouped = model(GroupedQueryAttention, n_kv_heads=2)
    found = {
        "cache": partial(ours, plain, cached=True),
        "no cache": partial(ours, plain, cached=False),
        "cache, 2 of 8 key heads": partial(ours, grouped, cached=True),
    }
    if with_peer:
        other, start = peer(), torch.full((1, 1), BOS)
        found["x-transformers, cache"] = lambda source, n: other.generate(
            source, start, n, temperature=0.0
        )
    return found


def cases(lengths=LENGTHS, with_peer: bool = True) -> Iterator[tuple[dict, dict]]:
    """Every length with its contenders."""
    found = writers(with_peer)
    source = torch.randint(
        3, VOCAB, (1, N_SOURCE), generator=torch.Generator().manual_seed(1)
    )
    assert torch.equal(found["cache"](source, 128), found["no cache"](source, 128))
    for n in lengths:
        for name, write in found.items():
            if name != "no cache":
                assert write(source, n).shape == (1, n), name
        contenders = {name: partial(write, source, n) for name, write in found.items()}
        yield {"T": n}, contenders


def has_peer() -> bool:
    try:
        import x_transformers  # noqa: F401
    except ImportError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="try it; store nothing")
    quick, with_peer = parser.parse_args().quick, has_peer()
    settings = {
        "title": "T tokens written greedily, batch 1, by d_model 256, 3 + 3 layers, "
        "8 heads.",
        "base": "cache",
        **SIZES,
    }
    if quick:
        record(settings, cases((32, 128), with_peer), turns=3)
    elif not with_peer:
        raise SystemExit("nothing stored: pip install x-transformers==2.31.10 first")
    else:
        store("decoding_times", record(settings, cases(), turns=7))


if __name__ == "__main__":
    main()
