"""Attention, Line by Line: the Transformer of "Attention Is All You Need" as a package.

The modules are exported from the notebooks of the book, one chapter each. The names
below are loaded when they are first used, so that importing the package is quick and one
broken chapter does not take the others with it.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "tokens": ("BOS", "EOS", "PAD", "device"),
    "recurrence": ("RecurrentCache", "RecurrentSeq2Seq", "lstm_step"),
    "scaled_dot_product": (
        "attention",
        "attention_weights",
        "causal_mask",
        "fused_attention",
        "padding_mask",
    ),
    "multi_head": ("MultiHeadAttention",),
    "positional_encoding": (
        "LearnedPositionalEncoding",
        "PositionalEncoding",
        "shift_matrix",
        "sinusoidal_encoding",
    ),
    "sublayers": ("PositionwiseFeedForward", "Sublayer", "TokenEmbedding"),
    "transformer": (
        "DecoderLayer",
        "EncoderLayer",
        "Transformer",
        "TransformerConfig",
        "assert_causal",
        "assert_padding_invariant",
        "load_torch_transformer",
        "parameter_count",
        "record_attention",
    ),
    "decoding": (
        "Hypothesis",
        "Seq2Seq",
        "beam_search",
        "greedy_decode",
        "length_penalty",
    ),
    "cost": (
        "LayerCost",
        "attention_flops",
        "layer_cost",
        "path_length",
        "training_flops",
    ),
    "kv_cache": ("DecoderCache", "FrozenKVCache", "KVCache", "kv_cache_bytes"),
    "grouped_query": (
        "GroupedQueryAttention",
        "align_heads",
        "pool_heads",
        "pool_model",
    ),
    "flash": (
        "PartialAttention",
        "flash_attention",
        "merge_partial_attention",
        "online_softmax",
        "partial_attention",
    ),
    "paged": (
        "BlockAllocator",
        "OutOfBlocks",
        "PagedKVCache",
        "PrefixCache",
        "paged_attention",
    ),
    "training": (
        "Checkpoint",
        "NoamSchedule",
        "TokenBatches",
        "average_checkpoints",
        "label_smoothed_loss",
        "load_checkpoint",
        "noam_rate",
        "read_checkpoint",
        "save_checkpoint",
        "train",
    ),
    "copy_task": ("CopyTask", "exact_match", "load_copy_model", "train_copy_model"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'aiayn' has no attribute {name!r}")
    value = getattr(import_module(f"aiayn.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
