"""A table of bad inputs: every public name has a row, and each error says what to do.

A row is a call, the type of the error and a pattern of its message: which argument,
what came, what was expected. Around every call the state of everything shared (weights,
optimiser, schedule, cache, generators, modes) is compared: an error comes before a
change. The shape checks of the other tests are off: their message would hide ours.
"""

import dataclasses
import functools
import importlib
import inspect
import itertools
import math
import pkgutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import normal, seeded, small_config, small_model, tokens
from seams import DecoderStore
from torch import nn

import aiayn
from aiayn import (
    copy_task,
    cost,
    decoding,
    multi_head,
    paged,
    positional_encoding,
    recurrence,
    training,
)
from aiayn import tokens as roles

INTEGERS = torch.zeros(2, 3, dtype=torch.long)
FLOATS = torch.zeros(2, 3)
LINEAR = nn.Linear(2, 2)
NAN, INF = math.nan, math.inf
NOISE = seeded(1)


def part(*sizes: int, dtype=torch.float32) -> aiayn.PartialAttention:
    """A partial attention without content, (…, n_queries, d_v)."""
    numbers = torch.zeros(sizes[:-1], dtype=dtype)
    return aiayn.PartialAttention(numbers, numbers, torch.zeros(sizes, dtype=dtype))


PART = part(2, 3)


@functools.cache
def world() -> SimpleNamespace:
    """What the rows share; nothing in it may be changed by a refused call."""
    torch.manual_seed(0)
    model = small_model(dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = aiayn.NoamSchedule(optimizer, 16, 4)
    source, target = tokens(2, 4), tokens(2, 5, seed=1)
    aiayn.train(model, [(source, target)], optimizer=optimizer, schedule=schedule)
    model.eval()
    memory = model.encode(source).detach()
    cache = DecoderStore(2)
    with torch.no_grad():
        model.decode(target[:, :3], memory, source, cache=cache)
    return SimpleNamespace(
        model=model,
        training=small_model(dropout=0.5).train(),
        untied=small_model(tie_embeddings=False),
        optimizer=optimizer,
        schedule=schedule,
        source=source,
        target=target,
        memory=memory,
        cache=cache,
        generator=seeded(0),
        stream=batches_of(),
        task=aiayn.CopyTask(),
        attention=aiayn.MultiHeadAttention(8, 2),
        grouped=aiayn.GroupedQueryAttention(8, 4, n_kv_heads=2),
        layer=aiayn.EncoderLayer(small_config()).double().eval(),
        decoder_layer=aiayn.DecoderLayer(small_config()).double().eval(),
        feed_forward=aiayn.PositionwiseFeedForward(8, 16),
        sublayer=aiayn.Sublayer(8, 0.0),
        embedding=aiayn.TokenEmbedding(11, 8),
        positions=aiayn.PositionalEncoding(8, max_len=4),
        learned=aiayn.LearnedPositionalEncoding(8, max_len=4),
        x=torch.zeros(2, 3, 8),
        **recurrent_world(source, target),
        **cached_world(model, source, target, memory),
    )


def cached_world(model, source, target, memory) -> dict:
    """The stores of chapter 9, each with something in it."""
    kept = aiayn.DecoderCache(2, make=functools.partial(aiayn.KVCache, 8))
    store, frozen, crossed = (
        aiayn.KVCache(8),
        aiayn.FrozenKVCache(),
        aiayn.FrozenKVCache(),
    )
    attend_with(store, 3)
    attend_with(frozen, 3)
    x = torch.zeros(2, 3, 8)
    with torch.no_grad():
        model.decode(target[:, :3], memory, source, cache=kept)
        crossing = aiayn.MultiHeadAttention(8, 2)
        crossing(x, x, x, cache=crossed)
    graph = torch.zeros(2, 2, 1, 4, requires_grad=True)
    pool = aiayn.BlockAllocator(9, 4)
    paged_store, shelf = aiayn.PagedKVCache(pool), aiayn.PrefixCache(pool)
    attend_with(paged_store, 3)
    return {
        "pool": pool, "paged": paged_store, "shelf": shelf,
        "kept": kept, "store": store, "frozen": frozen, "crossed": crossed, "graph": graph,
    }  # fmt: skip


def recurrent_world(source, target) -> dict:
    """A recurrent model, what it made of the source, and its cache."""
    model = aiayn.RecurrentSeq2Seq(11, 11, 8, 2, generator=seeded(0)).eval()
    with torch.no_grad():
        memory = model.encode(source)
        cache = aiayn.RecurrentCache()
        model.decode(target[:, :3], memory, source, cache=cache)
    return {
        "recurrent": model,
        "recurrent_memory": memory,
        "recurrent_cache": cache,
        "narrow": small_model(pad_id=299, source_vocab_size=300, target_vocab_size=300),
        "gates": [torch.zeros(16, 3), torch.zeros(16, 4), torch.zeros(16)],
    }


def state() -> dict:
    """Everything in the world that a call could have changed."""
    w = world()
    found = {"global": torch.get_rng_state(), "generator": w.generator.get_state()}
    for name, thing in vars(w).items():
        if isinstance(thing, nn.Module):
            found[f"{name} mode"] = thing.training
            found |= {f"{name}.{k}": v.clone() for k, v in thing.state_dict().items()}
            for k, parameter in thing.named_parameters():
                if parameter.grad is not None:
                    found[f"{name}.{k}.grad"] = parameter.grad.clone()
            found[f"{name} keys"] = sorted(vars(thing))
    for i, moments in enumerate(w.optimizer.state.values()):
        found |= {f"optimizer.{i}.{k}": v.clone() for k, v in moments.items()}
    found["rates"] = [group["lr"] for group in w.optimizer.param_groups]
    found["schedule"] = w.schedule.state_dict()
    found |= {f"stream.{name}": x for name, x in w.stream.state_dict().items()}
    found["cache"] = (len(w.cache), w.cache.is_token.tolist())
    found["recurrent cache"] = len(w.recurrent_cache)
    for kind, part in zip(("hidden", "cell"), w.recurrent_cache.state, strict=True):
        found[f"recurrent cache.{kind}"] = part.clone()
    for i, layer in enumerate(w.cache.layers):
        for kind in ("self", "cross"):
            store = getattr(layer, f"{kind}_attention")
            found[f"cache.{i}.{kind}.keys"] = store.keys.clone()
            found[f"cache.{i}.{kind}.values"] = store.values.clone()
    found["pool"] = [w.pool.references(i) for i in range(9)], w.paged.tables
    found["shelf"] = dict(w.shelf._block_of)
    for name in ("kept", "store", "frozen", "crossed", "paged"):
        found |= {f"{name} {what}": of for what, of in contents(vars(w)[name]).items()}
    return found


def contents(cache) -> dict:
    """What a cache of chapter 9 holds, or all of a decoder's."""
    if isinstance(cache, aiayn.DecoderCache):
        layers = [(x.self_attention, x.cross_attention) for x in cache.layers]
        stores = [contents(store) for layer in layers for store in layer]
        found = {f"{i}.{k}": v for i, s in enumerate(stores) for k, v in s.items()}
        return found | {"length": len(cache)}
    return {"length": len(cache), "keys": cache.keys, "values": cache.values}


def assert_unchanged(before: dict, after: dict) -> None:
    assert before.keys() == after.keys()
    for name, old in before.items():
        new = after[name]
        same = torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new
        assert same, f"{name} was changed by a call that was refused"


# --- the table ------------------------------------------------------------------------

Type, Value = TypeError, ValueError


def attention_rows(call):
    """What the three functions of chapter 2 refuse in the same words."""
    q, k = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4)
    ones = torch.ones(3, 5)
    return [
        (lambda w: call(q.long(), k, k), Type, "query .*floating.*torch.int64"),
        (lambda w: call([[1.0]], k, k), Type, "query .*floating.*list"),
        (lambda w: call(q, k.double(), k), Type, "key is torch.float64.*torch.float32"),
        (lambda w: call(q[0, 0], k, k), Value, r"query .*length, width.*\(4,\)"),
        (lambda w: call(q[..., :3], k, k), Value, "query and key .*3 and 4"),
        (lambda w: call(q[..., :0], k[..., :0], k), Value, "at least 1.*0 and 0"),
        (lambda w: call(q, k.expand(3, 2, 5, 4)[:, :1].expand(3, 3, 5, 4), k), Value,
         r"query, key and value must broadcast.*\(2, 3, 4\)"),
        (lambda w: call(q, k, k, ones), Type, "mask must be a boolean.*torch.float32"),
        (lambda w: call(q, k, k, ones.long()), Type, "mask .*boolean.*torch.int64"),
        (lambda w: call(q, k, k, [[True]]), Type, "mask .*boolean.*list"),
        (lambda w: call(q, k, k, ones.bool().T), Value,
         r"mask of shape \(5, 3\) .*n_queries, n_keys\) = \(2, 3, 5\)"),
        (lambda w: call(q, k, k, ones[0].bool()), Value, r"mask of shape \(5,\)"),
        (lambda w: call(q, k, k, ones.bool().expand(3, 3, 5)), Value, "mask of shape"),
        (lambda w: call(q, k, k, ones.bool().expand(1, 2, 3, 5)), Value, "mask of shape"),
        (lambda w: call(q, k, k, scale=NAN), Value, "scale must be a finite.*nan"),
        (lambda w: call(q, k, k, scale=-INF), Value, "scale must be a finite.*-inf"),
        (lambda w: call(q, k, k, scale="1"), Type, "scale must be a.*number.*'1'"),
    ]  # fmt: skip


def mixing_rows(call):
    q, k = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4)
    return [
        *attention_rows(call),
        (lambda w: call(q, k, k.long()), Type, "value .*floating.*torch.int64"),
        (lambda w: call(q, k, k[:, :3]), Value, "n_keys=5 keys and 3 values"),
    ]


def config(**changes):
    return lambda w: dataclasses.replace(small_config(), **changes)


def new(cls, *args, **settings):
    return lambda w: cls(*args, **settings)


def size_rows(make, **good):
    """Every size of a constructor: not whole, not a number, below 1."""
    rows = []
    for name in good:
        for wrong, error, message in (
            (0, Value, f"{name} must be at least 1, got 0"),
            (-3, Value, f"{name} must be at least 1, got -3"),
            (2.5, Type, f"{name} must be an integer, got 2.5"),
            ("8", Type, f"{name} must be an integer, got '8'"),
            (True, Type, f"{name} must be an integer, got True"),
        ):
            settings = {**good, name: wrong}
            call = lambda w, settings=settings: make(**settings)
            rows.append((call, error, message))
    return rows


def of(w, value):
    """A setting as it is, or what a function makes of the world."""
    return value(w) if inspect.isfunction(value) else value


def train(**changes):
    """A call of ``train`` on the shared model with one thing wrong."""

    def call(w):
        settings = {
            "batches": [(w.source, w.target)],
            "optimizer": w.optimizer,
            "schedule": w.schedule,
            **{k: of(w, v) for k, v in changes.items()},
        }
        batches = settings.pop("batches")
        return aiayn.train(w.model, batches, **settings)

    return call


PAIRS = [([3, 4, 2], [1, 3, 2]), ([5, 2], [1, 6, 7, 8, 2])]
NOWHERE = Path("nowhere") / "checkpoint"


def batches_of(**changes):
    """A stream of two pairs with one thing wrong."""
    settings = {"pairs": PAIRS, "max_tokens": 20, "generator": seeded(0), **changes}
    return aiayn.TokenBatches(
        settings.pop("pairs"), settings.pop("max_tokens"), **settings
    )


def with_rate(rate):
    """``train`` with an optimiser of another rate: the shared one must not be touched."""

    def call(w):
        optimizer = torch.optim.SGD(w.model.parameters(), lr=0.1)
        optimizer.param_groups[0]["lr"] = rate
        return aiayn.train(w.model, [(w.source, w.target)], optimizer=optimizer)

    return call


def greedy(**changes):
    def call(w):
        settings = {"model": w.model, "source": w.source, "max_len": 3}
        settings |= {k: of(w, v) for k, v in changes.items()}
        model, source = settings.pop("model"), settings.pop("source")
        return aiayn.greedy_decode(model, source, **settings)

    return call


def beams(**changes):
    def call(w):
        settings = {"model": w.model, "source": w.source, "max_len": 3}
        settings |= {k: of(w, v) for k, v in changes.items()}
        model, source = settings.pop("model"), settings.pop("source")
        return aiayn.beam_search(model, source, **settings)

    return call


def recipe(**settings):
    return lambda w: aiayn.train_copy_model(**settings)


def drawn_from_a_seed(config, *, generator=None, **seams):
    """With a generator: without one, a constructor's draws are seen outside it."""
    generator = seeded(0) if generator is None else generator
    return aiayn.Transformer(config, generator=generator, **seams)


def torch_model(**changes):
    settings = {"d_model": 16, "nhead": 4, "dim_feedforward": 24, "batch_first": True}
    settings |= {"num_encoder_layers": 2, "num_decoder_layers": 2}
    with torch.random.fork_rng():
        model = nn.Transformer(**{**settings, **changes}, dtype=torch.float64)
    model.encoder.norm = model.decoder.norm = None
    return model


def attend_with(store, length, *, batch=2, heads=2, width=4, dtype=None):
    """A call of a store with keys and values of these sizes."""
    x = torch.zeros(batch, heads, length, width, dtype=dtype)
    return store.attend(aiayn.attention, x, lambda: (x, x), causal=True)


def row_rows(of_world):
    """Rows for ``reorder`` of something with two rows."""
    cases = [
        ([0, 2], Value, r"0 to 1, got \[0, 2\]"),
        ([-1], Value, r"0 to 1, got \[-1\]"),
        (torch.tensor([2], dtype=torch.uint8), Value, "0 to 1, got torch.uint8"),
        ([[0]], Value, "rows must be a list"),
        (1, Value, "rows must be a list.*got 1"),
        ([0.5], Type, "rows must hold integers"),
        ([True, False], Type, "rows must hold integers"),
        (None, Type, "rows must hold .*got None"),
        ("ab", Type, "rows must hold .*got 'ab'"),
        ([[1], [0, 1]], Type, "rows must hold integers, in one list"),
    ]
    return [
        (lambda w, rows=rows: of_world(w).reorder(rows), error, message)
        for rows, error, message in cases
    ]


def assertion_rows(check):
    call = lambda source, target: normal(*target.shape, 11)
    return [
        (lambda w: check(call, w.source, w.target.to(torch.int8), vocab_size=300,
                         pad_id=299), Value, "pad_id=299 does not fit .*torch.int8"),
        (lambda w: check(3), Type, "model must be a function.*got 3"),
        (lambda w: check(w.training), Value, "model.eval"),
        (lambda w: check(w.model, w.source), Value, "source and target.*both"),
        (lambda w: check(w.model, target=w.target), Value, "source and target.*both"),
        (lambda w: check(call, w.source, w.target), Value, "vocab_size"),
        (lambda w: check(call), Value, "source, target and vocab_size"),
        (lambda w: check(w.model, FLOATS, w.target), Type, "source .*float32"),
        (lambda w: check(w.model, w.source, FLOATS), Type, "target .*float32"),
        (lambda w: check(call, w.source, w.target, vocab_size=2), Value,
         "vocab_size must be at least 3, got 2"),
        (lambda w: check(call, w.source, w.target, vocab_size=9.0), Type,
         "vocab_size must be an integer, got 9.0"),
        (lambda w: check(lambda s, t: (call(s, t),), w.source, w.target, vocab_size=11),
         Type, "model must return a tensor of logits, got .*tuple.*takes them out"),
        (lambda w: check(lambda s, t: t, w.source, w.target, vocab_size=11), Type,
         "model must return a tensor of logits, got torch.int64"),
        (lambda w: check(lambda s, t: call(s, t).mT, w.source, w.target, vocab_size=11),
         Value, r"logits of shape .*= \(2, 5\), got \(2, 11, 5\)"),
        (lambda w: check(lambda s, t: torch.rand(*t.shape, 11, generator=NOISE),
                         w.source, w.target, vocab_size=11), Value,
         "other logits for the same tokens"),
    ]  # fmt: skip


def recorded(model, *inputs):
    with aiayn.record_attention(model):
        model(*inputs)


def recurrent(source_vocab_size=11, target_vocab_size=11, **settings):
    """With a generator: without one, a constructor's draws are seen outside it."""
    sizes = (source_vocab_size, target_vocab_size)
    return recurrence.RecurrentSeq2Seq(*sizes, **{"generator": seeded(0), **settings})


def recurrent_decode(**changes):
    """A call of the recurrent model's ``decode`` with one thing wrong."""

    def call(w):
        settings = {"target": w.target[:, 3:], "memory": w.recurrent_memory}
        settings |= {"source": w.source, "cache": w.recurrent_cache}
        settings |= {k: of(w, v) for k, v in changes.items()}
        return w.recurrent.decode(**settings)

    return call


def lstm_step(**changes):
    """A step of width 4 with one thing wrong."""

    def call(w):
        settings = {"x": w.x[..., :3], "hidden": w.x[..., :4], "cell": w.x[..., :4]}
        names = ("input_weight", "hidden_weight", "bias")
        settings |= zip(names, w.gates, strict=True)
        settings |= {k: of(w, v) for k, v in changes.items()}
        return aiayn.lstm_step(**settings)

    return call


def recurrent_rows(make):
    """What the configuration refuses, and so the model."""
    return [
        *size_rows(
            make, source_vocab_size=11, target_vocab_size=11, d_model=8, n_layers=2
        ),
        (new(make, 11, 11, dropout=-0.5), Value, "dropout must be between 0 and 1.*-0.5"),
        (new(make, 11, 11, dropout="0.1"), Type, "dropout must be a number, got '0.1'"),
        (new(make, 11, 11, forget_bias="1"), Type, "forget_bias must be a number, got '1'"),
        (new(make, 11, 11, forget_bias=True), Type, "forget_bias must be a number.*True"),
        (new(make, 11, 11, forget_bias=NAN), Value, "forget_bias must be a finite.*nan"),
        (new(make, 11, 11, forget_bias=INF), Value, "forget_bias must be a finite.*inf"),
        (new(make, 11, 11, forget_bias=1e39), Value, r"forget_bias .*float32.*1e\+39"),
        (new(make, 11, 11, forget_bias=-1e39), Value, r"forget_bias .*float32.*-1e\+39"),
        (new(make, 11, 11, forget_bias=10**400), Value, "forget_bias .*float32.* a int$"),
        (new(make, 11, 11, pad_id=None), Type, "pad_id must be an integer token id"),
        (new(make, 11, 11, pad_id=-1), Value, "pad_id=-1 is not a token id"),
        (new(make, 11, 9, pad_id=9), Value, "pad_id=9 is outside the vocabulary of 9"),
    ]  # fmt: skip


def masked_with(store, mask):
    """One more token of a store with two rows, under a mask."""
    x = torch.zeros(2, 2, 1, 4)
    return store.attend(aiayn.attention, x, lambda: (x, x), mask)


def block_rows(name):
    """Lists of blocks that nobody may share or free; two of the nine are in use."""
    return [
        (lambda w: getattr(w.pool, name)([0, 8]), Value, f"cannot {name} block 8"),
        (lambda w: getattr(w.pool, name)([9]), Value, "block 9 is not in the pool"),
        (lambda w: getattr(w.pool, name)([-1]), Value, "block must be at least 0, got -1"),
        (lambda w: getattr(w.pool, name)(["0"]), Type, "block must be an integer, got '0'"),
    ]  # fmt: skip


def prefix_rows(call):
    """Tokens and contexts that are none."""
    return [
        (lambda w: call(w, [[1, 2]]), Value, "tokens must be those of one sequence, got"),
        (lambda w: call(w, [0.5, 1.0]), Type, "tokens must hold integers, got"),
        (lambda w: call(w, "ab"), Type, "tokens must hold integers, in one list, got 'ab'"),
        (lambda w: call(w, [1], context=[1]), Type, "context must be .*hashed.*got"),
        (lambda w: call(w, [1], context=FLOATS[0]), Type, "context must hold integers"),
        (lambda w: call(w, [1], context=INTEGERS), Value, "context must be one sequence"),
        (lambda w: call(w, [1], context=(INTEGERS,)), Type, "context .* by value"),
    ]  # fmt: skip


def unwritten(tables):
    """A cache takes on blocks of a pool without a key."""
    pool = aiayn.BlockAllocator(4, 2)
    pool.allocate(2)
    aiayn.PagedKVCache(pool).adopt(tables)


def paged_rows():
    """What ``paged_attention`` cannot mean."""
    x, blocks = torch.zeros(2, 4, 1, 3), torch.zeros(5, 2, 2, 3)
    table, lengths = torch.tensor([[0, 1], [2, -1]]), torch.tensor([3, 2])
    good = [x, blocks, blocks, table, lengths]

    def row(place, wrong, error, message, **options):
        given = [wrong if i == place else y for i, y in enumerate(good)]
        return lambda w: aiayn.paged_attention(*given, **options), error, message

    return [
        row(0, x.long(), Type, "query must be floating point, got torch.int64"),
        row(1, blocks.half(), Type, "key_blocks is torch.float16 but query is"),
        row(2, blocks[0], Value, r"value_blocks must have four axes.*\(2, 2, 3\)"),
        row(2, blocks[:4], Value, "must be alike but for the width"),
        row(0, x[:, :3], Value, "n_heads=3 is not divisible by n_kv_heads=2"),
        row(0, x[..., :2], Value, "one width d_k of at least 1, got 2 and 3"),
        row(3, table.float(), Type, "table must hold integers, got torch.float32"),
        row(3, table[:1], Value, r"table must be \(batch, n_columns\) with batch=2"),
        row(4, lengths[:1], Value, r"lengths must be \(batch,\) with batch=2"),
        row(4, torch.tensor([5, 2]), Value, "lengths must be 0 to 4.*got 5 in row 0"),
        row(4, torch.tensor([3, 3]), Value, "table must .*got -1 in row 1, column 1"),
        row(3, table + 4, Value, "table must hold a block, 0 to 4.*got 5"),
        row(9, None, Type, "mask must be a boolean", mask=torch.ones(1, 3)),
        row(9, None, Value, "mask of shape", mask=torch.ones(1, 2).bool()),
        row(9, None, Value, "scale must be a finite number, got nan", scale=math.nan),
        row(9, None, Type, "scale must be a finite number, got '1'", scale="1"),
        row(9, None, Type, "scale must be a finite number, got True", scale=True),
    ]


ROWS = {
    # chapter 1
    "lstm_step": [
        (lstm_step(cell=lambda w: w.x), Value, r"cell must .*width 4.*\(2, 3, 8\)"),
        (lstm_step(hidden=lambda w: w.x, cell=lambda w: w.x), Value,
         r"hidden must end in .*width 4.*\(2, 3, 8\)"),
        (lstm_step(x=lambda w: w.x), Value, r"x must end .*width 3.*\(2, 3, 8\)"),
        (lstm_step(hidden=torch.tensor(1.0)), Value, r"hidden must .*width 4.*\(\)"),
        (lstm_step(x=torch.tensor(1.0)), Value, r"x must .*width 3.*\(\)"),
        (lstm_step(input_weight=torch.zeros(4, 3), hidden_weight=torch.zeros(4, 4),
                   bias=torch.zeros(4)), Value,
         r"must be \(4 d_model, d_input\).*\[\(4, 3\), \(4, 4\), \(4,\)\]"),
        (lstm_step(bias=torch.zeros(1)), Value, r"\(4 d_model,\), got .*\(1,\)\]"),
        (lstm_step(bias=torch.zeros(16, 1)), Value, r"\(4 d_model,\), got .*\(16, 1\)\]"),
        (lstm_step(bias=torch.tensor(1.0)), Value, r"\(4 d_model,\), got .*\(\)\]"),
        (lstm_step(input_weight=torch.zeros(12, 3)), Value, r"input_weight.*\[\(12, 3\)"),
        (lstm_step(hidden_weight=torch.zeros(4, 16)), Value, r"hidden_weight.*\(4, 16\)"),
        (lstm_step(hidden_weight=torch.tensor(1.0)), Value, r"hidden_weight.*\(\)"),
        (lstm_step(x=lambda w: w.x[:1, :, :3]), Value,
         r"one batch.*\(1, 3, 3\), \(2, 3, 4\) and \(2, 3, 4\)"),
        (lstm_step(cell=lambda w: w.x[:, :1, :4]), Value, r"one batch.*\(2, 1, 4\)"),
        (lstm_step(hidden=lambda w: w.x[0, 0, :4], cell=lambda w: w.x[0, 0, :4]), Value,
         r"one batch.*\(2, 3, 3\), \(4,\) and \(4,\)"),
        (lstm_step(x=[1.0, 2.0, 3.0]), Type, r"x must be a floating.*got \[1.0, 2.0, 3.0"),
        (lstm_step(hidden=[1.0]), Type, "hidden must be a floating.*list"),
        (lstm_step(bias=None), Type, "bias must be a floating.*None"),
        (lstm_step(cell=torch.zeros(2, 3, 4, dtype=torch.long)), Type,
         "cell must be a floating.*int64"),
        (lstm_step(x=torch.zeros(2, 3, 3, dtype=torch.long)), Type, "x must .*int64"),
        (lstm_step(cell=torch.zeros(2, 3, 4).double()), Type,
         "one dtype: x is torch.float32, cell torch.float64"),
        (lstm_step(x=torch.zeros(2, 3, 3).half()), Type,
         "one dtype: x is torch.float16, hidden torch.float32"),
        (lstm_step(input_weight=torch.zeros(16, 3).double()), Type,
         "one dtype: x is torch.float32, input_weight torch.float64"),
    ],
    "RecurrentConfig": recurrent_rows(recurrence.RecurrentConfig),
    "RecurrentSeq2Seq": [
        *recurrent_rows(recurrent),
        (new(recurrent, generator=0), Type, "generator must be a torch.Gen.*got 0"),
    ],
    "RecurrentSeq2Seq.reset_parameters": [
        (lambda w: w.recurrent.reset_parameters(3), Type, "generator .*Generator.*got 3"),
    ],
    "RecurrentSeq2Seq.forward": [
        (lambda w: w.recurrent(FLOATS, w.target), Type, "source .*integers.*float32"),
        (lambda w: w.recurrent(w.source, FLOATS.bool()), Type, "target .*integers.*bool"),
        (lambda w: w.recurrent([[3, 4]], w.target), Type, "source .*integers.*list"),
        (lambda w: w.recurrent(w.source[0], w.target), Value, r"source must .*\(4,\)"),
        (lambda w: w.recurrent(w.source[:, :0], w.target), Value, "source .*at least 1"),
        (lambda w: w.recurrent(w.source, w.target[:, :0]), Value, "target .*at least 1"),
        (lambda w: w.recurrent(w.source[:1], w.target), Value,
         r"belong together.*\(2, 5\), \(1, 2, 8\), \(1, 4\)"),
    ],
    "RecurrentSeq2Seq.encode": [
        (lambda w: w.recurrent.encode(FLOATS), Type, "source .*integers.*float32"),
        (lambda w: w.recurrent.encode(w.source[:, :0]), Value, "source .*at least 1"),
        (lambda w: w.recurrent.encode(w.source[0]), Value, r"source must .*\(4,\)"),
    ],
    "RecurrentSeq2Seq.decode": [
        (recurrent_decode(memory=lambda w: w.recurrent_memory[0]), Type,
         r"memory must be the pair \(hidden, cell\), got torch.float32 of shape"),
        (recurrent_decode(memory=lambda w: w.recurrent_memory[:1]), Type,
         r"memory must be the pair \(hidden, cell\)"),
        (recurrent_decode(memory=lambda w: (w.source, w.source)), Type,
         "memory must hold floating-point.*int64"),
        (recurrent_decode(memory=([1.0], [2.0])), Type,
         r"memory must hold floating-point.*\[1.0\] \(list"),
        (recurrent_decode(memory=lambda w: (w.recurrent_memory[0], None)), Type,
         "memory must hold floating-point.*None"),
        (recurrent_decode(memory=lambda w: [m.double() for m in w.recurrent_memory]),
         Type, "memory must hold torch.float32 on cpu.*got torch.float64 on cpu"),
        (recurrent_decode(
            memory=lambda w: (w.recurrent_memory[0], w.recurrent_memory[1].half())),
         Type, "memory must hold torch.float32 on cpu.*got torch.float16 on cpu"),
        (recurrent_decode(memory=lambda w: [m.to("meta") for m in w.recurrent_memory]),
         Type, "memory must hold torch.float32 on cpu.*got torch.float32 on meta"),
        (recurrent_decode(memory=lambda w: tuple(m[:1] for m in w.recurrent_memory)),
         Value, r"belong together.*\(1, 2, 8\).*2 layers of width 8"),
        (recurrent_decode(memory=lambda w: tuple(m[:, :1] for m in w.recurrent_memory)),
         Value, r"belong together.*\(2, 1, 8\).*2 layers of width 8"),
        (recurrent_decode(target=lambda w: w.target[:1, 3:]), Value, "belong together"),
        (recurrent_decode(target=lambda w: w.target[:, :0]), Value, "target .*at least 1"),
        (recurrent_decode(target=FLOATS), Type, "target .*integers.*float32"),
        (recurrent_decode(source=FLOATS), Type, "source .*integers.*float32"),
        (recurrent_decode(cache=lambda w: w.cache), Type,
         "cache must be a RecurrentCache, got .*DecoderStore"),
        (recurrent_decode(
            target=tokens(3, 1), source=tokens(3, 4),
            memory=lambda w: tuple(m[[0, 1, 1]] for m in w.recurrent_memory)),
         Value, r"cache holds .*\(2, 2, 8\) on cpu, expected .*\(2, 3, 8\) on cpu.*reset"),
        (recurrent_decode(
            target=tokens(1, 1), source=tokens(1, 4),
            memory=lambda w: tuple(m[:1] for m in w.recurrent_memory)),
         Value, r"cache holds .*\(2, 2, 8\) on cpu, expected .*\(2, 1, 8\) on cpu"),
    ],
    "RecurrentCache.reorder": [
        (lambda w: w.recurrent_cache.reorder([0, 2]), Value, r"0 to 1, got \[0, 2\]"),
        (lambda w: w.recurrent_cache.reorder([-1]), Value, r"0 to 1, got \[-1\]"),
        (lambda w: w.recurrent_cache.reorder([[0]]), Value, "rows must be a list"),
        (lambda w: w.recurrent_cache.reorder(1), Value, "rows must be a list.*got 1"),
        (lambda w: w.recurrent_cache.reorder(torch.tensor([[0, 1]])), Value,
         r"rows must be a list of rows.*int64 of shape \(1, 2\)"),
        (lambda w: aiayn.RecurrentCache().reorder([[0]]), Value, "rows must be a list"),
        (lambda w: w.recurrent_cache.reorder([[]]), Value, "rows must be a list"),
        (lambda w: w.recurrent_cache.reorder(list(range(500))), Value,
         "0 to 1, got a list$"),
        (lambda w: w.recurrent_cache.reorder(torch.tensor([2], dtype=torch.uint8)), Value,
         r"0 to 1, got torch.uint8 of shape \(1,\)"),
        (lambda w: w.recurrent_cache.reorder(None), Type, "rows must hold .*got None"),
        (lambda w: aiayn.RecurrentCache().reorder(None), Type, "rows must hold .*None"),
        (lambda w: w.recurrent_cache.reorder("ab"), Type, "rows must hold .*got 'ab'"),
        (lambda w: w.recurrent_cache.reorder([[1], [0, 1]]), Type,
         r"rows must hold integers, in one list, got \[\[1\], \[0, 1\]\]"),
        (lambda w: w.recurrent_cache.reorder([2**70]), Type, "rows must hold integers"),
        (lambda w: w.recurrent_cache.reorder(torch.tensor([])), Type,
         r"rows must hold integers.*float32 of shape \(0,\)"),
        (lambda w: w.recurrent_cache.reorder([0.5]), Type, "rows must hold integers"),
        (lambda w: w.recurrent_cache.reorder(torch.tensor([True, False])), Type,
         "rows must hold integers.*torch.bool"),
    ],
    "RecurrentCache.crop": [
        (lambda w: w.recurrent_cache.crop(2), Value, "cannot crop to n=2 of 3 tokens"),
        (lambda w: w.recurrent_cache.crop(4), Value, "cannot crop to n=4 of 3 tokens"),
        (lambda w: w.recurrent_cache.crop(-1), Value, "n must be at least 0, got -1"),
        (lambda w: w.recurrent_cache.crop(1.0), Type, "n must be an integer, got 1.0"),
    ],
    # chapter 2
    "causal_mask": [
        (new(aiayn.causal_mask, -1), Value, "n_queries.*-1"),
        (new(aiayn.causal_mask, 3, -2), Value, "n_keys.*-2"),
        (new(aiayn.causal_mask, 2.5), Type, "n_queries must be an integer, got 2.5"),
        (new(aiayn.causal_mask, 2, "3"), Type, "n_keys must be an integer, got '3'"),
    ],
    "padding_mask": [
        (new(aiayn.padding_mask, FLOATS), Type, "tokens .*integer.*torch.float32"),
        (new(aiayn.padding_mask, FLOATS.bool()), Type, "tokens .*integer.*torch.bool"),
        (new(aiayn.padding_mask, [[1, 2]]), Type, "tokens .*integer.*list"),
        (new(aiayn.padding_mask, INTEGERS[0]), Value, r"tokens .*\(3,\)"),
        (new(aiayn.padding_mask, INTEGERS, None), Type, "pad_id .*integer.*None"),
        (new(aiayn.padding_mask, INTEGERS, 0.0), Type, "pad_id .*integer.*0.0"),
        (new(aiayn.padding_mask, INTEGERS.to(torch.int8), 299), Value,
         "pad_id=299 does not fit tokens of torch.int8: convert them with .long"),
        (new(aiayn.padding_mask, INTEGERS.to(torch.uint8), -1), Value,
         "pad_id=-1 does not fit tokens of torch.uint8"),
    ],
    "attention_weights": attention_rows(
        lambda q, k, v, *a, **b: aiayn.attention_weights(q, k, *a, **b)
    ),
    "attention": mixing_rows(aiayn.attention),
    "fused_attention": mixing_rows(aiayn.fused_attention),
    # chapter 3
    "split_heads": [
        (new(multi_head.split_heads, torch.zeros(2, 3, 8), 3), Value, "8 .*n_heads=3"),
        (new(multi_head.split_heads, torch.zeros(2, 3, 8), 0), Value, "n_heads=0"),
    ],
    "head_widths": [
        (new(multi_head.head_widths, 10, 4, None, None), Value, "=10 .*n_heads=4"),
    ],
    "MultiHeadAttention": [
        *size_rows(aiayn.MultiHeadAttention, d_model=8, n_heads=2, d_k=4, d_v=4),
        (new(aiayn.MultiHeadAttention, 10, 4), Value,
         "d_model=10 is not divisible by n_heads=4"),
        (new(aiayn.MultiHeadAttention, 10, 4, d_k=3), Value,
         "d_model=10 is not divisible by n_heads=4"),
        (new(aiayn.MultiHeadAttention, 2, 4), Value, "d_model=2 .*n_heads=4"),
        (new(aiayn.MultiHeadAttention, 8, 2, attend=None), Type,
         "attend must be a function, got None"),
    ],
    "MultiHeadAttention.forward": [
        (lambda w: w.attention(w.x.long(), w.x, w.x), Type, "query .*float.*int64"),
        (lambda w: w.attention([1.0], w.x, w.x), Type, "query .*float.*list"),
        (lambda w: w.attention(w.x, w.x[..., :4], w.x), Value, r"key .*8.*\(2, 3, 4\)"),
        (lambda w: w.attention(w.x, w.x, w.x[:1]), Value, r"value .*\(2, .*\(1, 3, 8\)"),
        (lambda w: w.attention(w.x[0], w.x, w.x), Value, r"query .*got.*\(3, 8\)"),
        (lambda w: w.attention(w.x, w.x, w.x[:, :2]), Value, "n_keys=3 keys and 2"),
        (lambda w: w.attention(w.x, w.x, w.x, torch.ones(3, 3)), Type, "mask .*float32"),
        (lambda w: w.attention(w.x, w.x, w.x, torch.ones(2, 3, 3).bool()[:, :2]), Value,
         r"mask of shape \(2, 2, 3\)"),
    ],
    "MultiHeadAttention.weights": [
        (lambda w: w.attention.weights(w.x, w.x[..., :4]), Value, r"key .*8.*\(2, 3, 4\)"),
        (lambda w: w.attention.weights(w.x, w.x[:1]), Value, r"key .*\(1, 3, 8\)"),
        (lambda w: w.attention.weights(w.x, w.x, torch.ones(3, 3)), Type, "mask .*float32"),
    ],
    # chapter 4
    "frequencies": size_rows(positional_encoding.frequencies, d_model=8),
    "as_positions": [
        (new(positional_encoding.as_positions, 2.0), Type, "positions .*integers.*float"),
    ],
    "sinusoidal_encoding": [
        *size_rows(lambda d_model: aiayn.sinusoidal_encoding(3, d_model), d_model=8),
        (new(aiayn.sinusoidal_encoding, -1, 8), Value, "positions .*at least 0.*-1"),
        (new(aiayn.sinusoidal_encoding, 2.5, 8), Type, "positions .*integers"),
        (new(aiayn.sinusoidal_encoding, FLOATS, 8), Type, "positions .*integers.*float32"),
        (new(aiayn.sinusoidal_encoding, FLOATS.bool(), 8), Type, "positions .*torch.bool"),
        (new(aiayn.sinusoidal_encoding, [0, 1], 8), Type, "positions .*integers.*list"),
    ],
    "shift_matrix": [
        *size_rows(lambda d_model: aiayn.shift_matrix(1, d_model), d_model=8),
        (new(aiayn.shift_matrix, 1, 7), Value, "d_model must be even.*got 7"),
        (new(aiayn.shift_matrix, 0.5, 8), Type, "offset must be an integer, got 0.5"),
        (new(aiayn.shift_matrix, NAN, 8), Type, "offset must be an integer, got nan"),
    ],
    "PositionalEncoding": size_rows(aiayn.PositionalEncoding, d_model=8, max_len=4),
    "LearnedPositionalEncoding": size_rows(
        aiayn.LearnedPositionalEncoding, d_model=8, max_len=4
    ),
    "PositionalEncoding.forward": [
        (lambda w: w.positions(torch.zeros(1, 5, 8)), Value, "length 5 .*max_len=4"),
        (lambda w: w.positions(w.x[..., :6]), Value, r"x must .*8.*\(2, 3, 6\)"),
        (lambda w: w.positions(w.x[0]), Value, r"x must .*\(3, 8\)"),
        (lambda w: w.positions(w.x.long()), Type, "x must .*float.*int64"),
        (lambda w: w.positions(w.x, FLOATS), Type, "positions .*integers.*float32"),
        (lambda w: w.positions(w.x, INTEGERS[:, :1]), Value,
         r"positions must .*\(2, 3\).*\(2, 1\)"),
        (lambda w: w.positions(w.x, INTEGERS[0]), Value, r"positions must .*\(3,\)"),
        (lambda w: w.learned(w.x, FLOATS), Type, "positions .*integers.*float32"),
        (lambda w: w.learned(torch.zeros(1, 5, 8)), Value, "length 5 .*max_len=4"),
    ],
    "LearnedPositionalEncoding.reset_parameters": [
        (lambda w: w.learned.reset_parameters(3), Type, "generator .*Generator.*got 3"),
    ],
    # chapter 5
    "PositionwiseFeedForward": size_rows(
        aiayn.PositionwiseFeedForward, d_model=8, d_ff=16
    ),
    "PositionwiseFeedForward.forward": [
        (lambda w: w.feed_forward(w.x[..., :4]), Value, r"x must .*8.*\(2, 3, 4\)"),
        (lambda w: w.feed_forward(w.x.long()), Type, "x must .*float.*int64"),
    ],
    "Sublayer": [
        *size_rows(lambda d_model: aiayn.Sublayer(d_model, 0.1), d_model=8),
        (new(aiayn.Sublayer, 8, -0.1), Value, "dropout must be between 0 and 1.*-0.1"),
        (new(aiayn.Sublayer, 8, 1.5), Value, "dropout must be between 0 and 1.*1.5"),
        (new(aiayn.Sublayer, 8, NAN), Value, "dropout must be between 0 and 1.*nan"),
        (new(aiayn.Sublayer, 8, "0.1"), Type, "dropout must be a number, got '0.1'"),
    ],
    "Sublayer.forward": [
        (lambda w: w.sublayer(w.x[..., :4], torch.sin), Value, r"x must .*8.*\(2, 3, 4\)"),
        (lambda w: w.sublayer(w.x.long(), torch.sin), Type, "x must .*float.*int64"),
        (lambda w: w.sublayer(w.x, lambda x: x[:, :1]), Value,
         r"sublayer must .*\(2, 3, 8\).*\(2, 1, 8\)"),
    ],
    "TokenEmbedding": [
        *size_rows(aiayn.TokenEmbedding, vocab_size=11, d_model=8),
        (new(aiayn.TokenEmbedding, 11, 8, std=0.0), Value, "std must be a positive.*0.0"),
        (new(aiayn.TokenEmbedding, 11, 8, std=-1), Value, "std must be a positive.*-1"),
        (new(aiayn.TokenEmbedding, 11, 8, std=INF), Value, "std must be a positive.*inf"),
        (new(aiayn.TokenEmbedding, 11, 8, std="1"), Type, "std must be a number, got '1'"),
    ],
    "TokenEmbedding.forward": [
        (lambda w: w.embedding(FLOATS), Type, "tokens .*integers.*float32"),
        (lambda w: w.embedding(FLOATS.bool()), Type, "tokens .*integers.*torch.bool"),
        (lambda w: w.embedding([1, 2]), Type, "tokens .*integers.*list"),
    ],
    "TokenEmbedding.reset_parameters": [
        (lambda w: w.embedding.reset_parameters(3), Type, "generator .*Generator.*got 3"),
    ],
    # chapter 6
    "TransformerConfig": [
        *itertools.chain.from_iterable(
            size_rows(
                lambda **changes: dataclasses.replace(small_config(), **changes),
                **{name: 8},
            )
            for name in (
                "source_vocab_size", "target_vocab_size", "d_model", "n_layers",
                "n_heads", "d_ff", "d_k", "d_v", "n_kv_heads", "max_len",
            )
        ),
        (config(d_model=None), Type, "d_model must be an integer, got None"),
        (config(d_model=10), Value, "d_model=10 is not divisible by n_heads=4"),
        (config(n_heads=6), Value, "d_model=16 is not divisible by n_heads=6"),
        (config(n_kv_heads=3), Value, "n_heads=4 is not divisible by n_kv_heads=3"),
        (config(n_kv_heads=8), Value, "n_heads=4 is not divisible by n_kv_heads=8"),
        (config(dropout=-0.5), Value, "dropout must be between 0 and 1, got -0.5"),
        (config(dropout=NAN), Value, "dropout must be between 0 and 1, got nan"),
        (config(dropout="0.1"), Type, "dropout must be a number, got '0.1'"),
        (config(positions="rotary"), Value,
         'positions must be "sinusoidal", "learned" or "none", got \'rotary\''),
        (config(norm_first="False"), Type, "norm_first must be True or False, got 'Fa"),
        (config(tie_embeddings=1), Type, "tie_embeddings must be True or False, got 1"),
        (config(bias=None), Type, "bias must be True or False, got None"),
        (config(target_vocab_size=12), Value,
         "one vocabulary.*source_vocab_size=11 .*target_vocab_size=12.*tie_embeddings"),
        (config(embedding_std=0.0), Value, "embedding_std must be a positive.*0.0"),
        (config(embedding_std=NAN), Value, "embedding_std must be a positive.*nan"),
        (config(pad_id=None), Type, "pad_id must be an integer token id, got None"),
        (config(pad_id=-1), Value, "pad_id=-1 is not a token id"),
        (config(pad_id=11), Value, "pad_id=11 is outside the vocabulary of 11"),
    ],
    "TransformerConfig.from_json": [
        (new(aiayn.TransformerConfig.from_json, "{oops"), Value, "text .*JSON.*{oops"),
        (new(aiayn.TransformerConfig.from_json, "[1, 2]"), Value, r"text .*JSON.*\[1, 2"),
        (new(aiayn.TransformerConfig.from_json, "{}"), Value, "lacks.*source_vocab_size"),
        (new(aiayn.TransformerConfig.from_json, '{"width": 3}'), Value, r"\['width'\]"),
        (new(aiayn.TransformerConfig.from_json, small_config().to_json().replace(
            '"n_heads": 4', '"n_heads": 5')), Value, "d_model=16 .*n_heads=5"),
        (new(aiayn.TransformerConfig.from_json, None), Type, "text|JSON"),
    ],
    "TransformerConfig.base": size_rows(
        lambda source_vocab_size: aiayn.TransformerConfig.base(source_vocab_size),
        source_vocab_size=11,
    ),
    "TransformerConfig.big": [
        (new(aiayn.TransformerConfig.big, 0), Value, "source_vocab_size .*1, got 0"),
        (new(aiayn.TransformerConfig.big, 11, n_heads=7), Value, "=1024 .*n_heads=7"),
    ],
    "TransformerConfig.toy": [
        (new(aiayn.TransformerConfig.toy, 0), Value, "source_vocab_size .*1, got 0"),
        (new(aiayn.TransformerConfig.toy, 11, depth=2), Type, "depth"),
    ],
    "EncoderLayer": [
        (new(aiayn.EncoderLayer, {"d_model": 8}), Type, "config .*TransformerConfig.*d_mod"),
        (new(aiayn.EncoderLayer, small_config(), attention=None), Type, "attention .*None"),
        (new(aiayn.EncoderLayer, small_config(), attend=3), Type, "attend .*got 3"),
        (new(aiayn.EncoderLayer, small_config(n_kv_heads=2)), Value,
         "n_kv_heads=2 .*GroupedQueryAttention"),
    ],
    "EncoderLayer.forward": [
        (lambda w: w.layer(w.memory[..., :8]), Value, r"x must .*16.*\(2, 4, 8\)"),
        (lambda w: w.layer(w.memory, torch.ones(2, 1, 1, 4)), Type, "mask .*float32"),
        (lambda w: w.layer(w.memory, torch.ones(2, 1, 1, 3).bool()), Value,
         r"mask of shape \(2, 1, 1, 3\)"),
        (lambda w: w.layer(w.source), Type, "x must .*float.*int64"),
    ],
    "DecoderLayer": [
        (new(aiayn.DecoderLayer, 512), Type, "config .*TransformerConfig.*512"),
        (new(aiayn.DecoderLayer, small_config(), attention=3), Type, "attention .*got 3"),
        (new(aiayn.DecoderLayer, small_config(), attend=None), Type, "attend .*None"),
    ],
    "DecoderLayer.forward": [
        (lambda w: w.decoder_layer(w.memory[..., :8], w.memory), Value, "x must .*16"),
        (lambda w: w.decoder_layer(w.memory, w.memory[..., :8]), Value,
         r"key must .*16.*\(2, 4, 8\)"),
        (lambda w: w.decoder_layer(w.memory, w.memory[:1]), Value, r"key must .*\(1, 4"),
        (lambda w: w.decoder_layer(w.memory, w.memory, torch.ones(2, 1, 1, 4)), Type,
         "mask .*float32"),
        (lambda w: w.decoder_layer(
            w.memory, w.memory, None, torch.ones(2, 1, 1, 9).bool()), Value,
         r"mask of shape \(2, 1, 1, 9\)"),
    ],
    "Transformer": [
        (new(drawn_from_a_seed, "base"), Type, "config .*TransformerConfig.*'base'"),
        (new(drawn_from_a_seed, small_config(), attention="mha"), Type, "attention .*'mha'"),
        (new(drawn_from_a_seed, small_config(), attend=None), Type, "attend .*None"),
        (new(drawn_from_a_seed, small_config(), generator=0), Type,
         "generator must be a torch.Generator.*got 0"),
        (new(drawn_from_a_seed, small_config(n_kv_heads=2)), Value,
         "n_kv_heads=2 .*GroupedQueryAttention"),
    ],
    "Transformer.reset_parameters": [
        (lambda w: w.model.reset_parameters(3), Type, "generator .*Generator.*got 3"),
    ],
    "Transformer.load_state_dict": [
        (lambda w: w.model.load_state_dict([1]), Type,
         "state_dict must be a dictionary of tensors.*list"),
        (lambda w: w.model.load_state_dict(None), Type, "state_dict must .*None"),
        (lambda w: w.model.load_state_dict(w.model.state_dict() | {
            "target_embedding.weight": torch.zeros(11, 16)}), Value,
         "source_embedding.weight and target_embedding.weight of state_dict differ"),
        (lambda w: w.model.load_state_dict(w.model.state_dict() | {
            "output_projection.weight": torch.zeros(11, 16)}), Value,
         "output_projection.weight, which a tied model has not.*tie_embeddings=False"),
        (lambda w: w.untied.load_state_dict(w.model.state_dict()), Value,
         "of a tied model, it lacks output_projection.weight: .*tie_embeddings=True"),
    ],
    "Transformer.forward": [
        (lambda w: w.model(FLOATS, w.target), Type, "source .*integers.*float32"),
        (lambda w: w.model(w.source, FLOATS.bool()), Type, "target .*integers.*torch.bool"),
        (lambda w: w.model([[3, 4]], w.target), Type, "source .*integers.*list"),
        (lambda w: w.model(w.source[0], w.target), Value, r"source must .*\(4,\)"),
        (lambda w: w.model(w.source[:, :0], w.target), Value, r"source .*at least 1.*0\)"),
        (lambda w: w.model(w.source, w.target[:, :0]), Value, r"target .*at least 1.*0\)"),
        (lambda w: w.model(w.source[:1], w.target), Value, r"belong together.*\(1, 4\)"),
        (lambda w: w.model(tokens(2, 33), w.target), Value, "length 33 .*max_len=32"),
        (lambda w: w.model(w.source, tokens(2, 33)), Value, "length 33 .*max_len=32"),
    ],
    "Transformer.encode": [
        (lambda w: w.model.encode(FLOATS), Type, "source .*integers.*float32"),
        (lambda w: w.model.encode(w.source[:, :0]), Value, "source .*at least 1"),
        (lambda w: w.model.encode(tokens(2, 33)), Value, "length 33 .*max_len=32"),
        (lambda w: w.narrow.encode(w.source.to(torch.int8)), Value,
         "pad_id=299 does not fit tokens of torch.int8"),
    ],
    "Transformer.decode": [
        (lambda w: w.model.decode(w.target, w.memory[:, :2], w.source), Value,
         r"belong together.*\(2, 5\), \(2, 2, 16\), \(2, 4\)"),
        (lambda w: w.model.decode(w.target, w.memory[..., :8], w.source), Value,
         r"memory must .*16.*\(2, 4, 8\)"),
        (lambda w: w.model.decode(w.target, (w.memory,), w.source), Type,
         "memory must be .*tuple"),
        (lambda w: w.model.decode(w.target, w.memory, w.source.double()), Type,
         "source .*integers.*float64"),
        (lambda w: w.model.decode(w.target[:1], w.memory, w.source), Value, "together"),
        (lambda w: w.model.decode(tokens(2, 30), w.memory, w.source, cache=w.cache), Value,
         "length 33 .*max_len=32"),
        (lambda w: w.model.decode(w.target[:, :0], w.memory, w.source, cache=w.cache),
         Value, "target .*at least 1"),
        (lambda w: w.model.decode(w.target[:, 3:], w.memory[:1], w.source, cache=w.cache),
         Value, "together"),
        (lambda w: w.model.decode(w.target, w.memory, w.source, cache=DecoderStore(3)),
         Value, "cache must have 2 layers.*got 3"),
        (lambda w: w.narrow.decode(w.target.to(torch.int8), w.memory, w.source), Value,
         "pad_id=299 does not fit tokens of torch.int8"),
        (lambda w: w.narrow.decode(w.target, w.memory, w.source.to(torch.int8)), Value,
         "pad_id=299 does not fit tokens of torch.int8"),
    ],
    "parameter_count": [
        (new(aiayn.parameter_count, 512), Type, "config .*TransformerConfig.*512"),
    ],
    "record_attention": [
        (lambda w: aiayn.record_attention(3).__enter__(), Type, "model .*module.*got 3"),
        (lambda w: recorded(w.feed_forward, w.x), Value,
         "without an attention.*PositionwiseFeedForward calls neither MultiHeadAttention"),
    ],
    "assert_causal": [
        *assertion_rows(aiayn.assert_causal),
        (lambda w: aiayn.assert_causal(
            lambda s, t: torch.zeros(*t.shape, 11), w.source, w.target, vocab_size=11),
         Value, "nothing is tested: .*position 0"),
    ],
    "assert_padding_invariant": [
        *assertion_rows(aiayn.assert_padding_invariant),
        (lambda w: aiayn.assert_padding_invariant(
            w.recurrent, w.source.to(torch.int8), w.target, vocab_size=300, pad_id=299),
         Value, "pad_id=299 does not fit tokens of torch.int8"),
    ],
    "load_torch_transformer": [
        (lambda w: aiayn.load_torch_transformer(w.model, LINEAR), Type,
         "theirs must be an nn.Transformer, got Linear"),
        (lambda w: aiayn.load_torch_transformer(LINEAR, torch_model()), Type,
         "model must be a Transformer, got Linear"),
        (lambda w: aiayn.load_torch_transformer(w.model, torch_model(d_model=32)), Value,
         r"expected shape .*16.*got .*32"),
        (lambda w: aiayn.load_torch_transformer(w.model, torch_model(nhead=2)), Value,
         "n_heads=4 .*got 2"),
        (lambda w: aiayn.load_torch_transformer(
            w.model, torch_model(num_decoder_layers=3)), Value, "decoder: .*2.* got 3"),
        (lambda w: aiayn.load_torch_transformer(w.model, torch_model(bias=False)), Value,
         "must both have biases"),
        (lambda w: aiayn.load_torch_transformer(w.model, torch_model(activation="gelu")),
         Value, "activation.*relu.*gelu"),
    ],
    # chapter 7
    "most_likely": [
        (new(decoding.most_likely, torch.full((1, 3), NAN)), Value, "logits hold NaN"),
    ],
    "greedy_decode": [
        (greedy(model=LINEAR), Type, "model must have encode.*got Linear"),
        (greedy(source=FLOATS), Type, "source .*integers.*float32"),
        (greedy(source=FLOATS.bool()), Type, "source .*integers.*torch.bool"),
        (greedy(source=[[3, 4]]), Type, "source .*integers.*list"),
        (greedy(source=INTEGERS[0] + 3), Value, r"source must .*\(3,\)"),
        (greedy(source=INTEGERS[:, :0]), Value, "source .*at least 1"),
        (greedy(source=INTEGERS + 11), Value, "source holds token id 11, expected 0 to 10"),
        (greedy(source=INTEGERS - 1), Value, "source holds token id -1, expected 0 to 10"),
        (greedy(max_len=-1), Value, "max_len must be at least 0, got -1"),
        (greedy(max_len=2.5), Type, "max_len must be an integer, got 2.5"),
        (greedy(max_len="3"), Type, "max_len must be an integer, got '3'"),
        (greedy(max_len=None), Type, "max_len must be an integer, got None"),
        (greedy(max_len=torch.tensor([1.5, 2.0])), Type, "max_len .*integers.*float32"),
        (greedy(max_len=torch.tensor([1, 2, 3])), Value, r"max_len .*2 rows.*\(3,\)"),
        (greedy(max_len=torch.tensor([1, -2])), Value, "max_len must be at least 0"),
        (greedy(bos_id=2), Value, "eos_id and bos_id are both 2"),
        (greedy(pad_id=1), Value, "bos_id and pad_id are both 1"),
        (greedy(eos_id=0), Value, "eos_id and pad_id are both 0"),
        (greedy(pad_id=None), Type, "pad_id must be an integer token id, got None"),
        (greedy(bos_id=-1), Value, "bos_id=-1 is not a token id"),
        (greedy(eos_id=11), Value, "token id 11, expected 0 to 10"),
        (greedy(cache=lambda w: w.cache), Value, "cache must be empty, it holds 3"),
    ],
    "beam_search": [
        (beams(model=LINEAR), Type, "model must have encode.*got Linear"),
        (beams(source=FLOATS), Type, "source .*integers.*float32"),
        (beams(source=FLOATS.bool()), Type, "source .*integers.*torch.bool"),
        (beams(source=[[3, 4]]), Type, "source .*integers.*list"),
        (beams(source=INTEGERS[0] + 3), Value, r"source must .*\(3,\)"),
        (beams(source=INTEGERS[:, :0]), Value, "source .*at least 1"),
        (beams(source=INTEGERS + 11), Value, "source holds token id 11, expected 0 to 10"),
        (beams(source=INTEGERS - 1), Value, "source holds token id -1, expected 0 to 10"),
        (beams(max_len=-1), Value, "max_len must be at least 0, got -1"),
        (beams(max_len=2.5), Type, "max_len must be an integer, got 2.5"),
        (beams(max_len="3"), Type, "max_len must be an integer, got '3'"),
        (beams(max_len=None), Type, "max_len must be an integer, got None"),
        (beams(max_len=torch.tensor([1.5, 2.0])), Type, "max_len .*integers.*float32"),
        (beams(max_len=torch.tensor([1, 2, 3])), Value, r"max_len .*2 rows.*\(3,\)"),
        (beams(max_len=torch.tensor([1, -2])), Value, "max_len must be at least 0"),
        (beams(bos_id=2), Value, "eos_id and bos_id are both 2"),
        (beams(pad_id=1), Value, "bos_id and pad_id are both 1"),
        (beams(eos_id=0), Value, "eos_id and pad_id are both 0"),
        (beams(pad_id=None), Type, "pad_id must be an integer token id, got None"),
        (beams(bos_id=-1), Value, "bos_id=-1 is not a token id"),
        (beams(eos_id=11), Value, "token id 11, expected 0 to 10"),
        (beams(cache=lambda w: w.cache), Value, "cache must be empty, it holds 3"),
        (beams(beam_size=0), Value, "beam_size must be at least 1, got 0"),
        (beams(beam_size=2.0), Type, "beam_size must be an integer, got 2.0"),
        (beams(beam_size=True), Type, "beam_size must be an integer, got True"),
        (beams(beam_size=None), Type, "beam_size must be an integer, got None"),
        (beams(n_best=0), Value, "n_best must be at least 1, got 0"),
        (beams(n_best="1"), Type, "n_best must be an integer, got '1'"),
        (beams(n_best=5), Value, "n_best=5 is more than beam_size=4"),
        (beams(alpha=None), Type, "alpha must be a number, got None"),
        (beams(alpha=True), Type, "alpha must be a number, got True"),
        (beams(alpha=torch.tensor(0.6)), Type, "alpha must be a number, got torch.float"),
        (beams(alpha=NAN), Value, "alpha must be a finite number, got nan"),
        (beams(alpha=-INF), Value, "alpha must be a finite number, got -inf"),
        (beams(alpha=1e5), Value, "alpha=100000.0 makes .* of the penalty at length"),
        (beams(alpha=-1e5), Value, "alpha=-100000.0 makes .* of the penalty at length"),
        (beams(alpha=10**400), Value, "alpha=10+ makes inf of the penalty at length"),
        (beams(alpha=400, max_len=50), Value, "alpha=400 makes .* at length 50"),
        (beams(max_len=10**400), Value, "max_len must be at most 9,223,372"),
        (beams(eos_id=10**400), Value, "eos_id=10,000.* no tensor holds it"),
    ],
    "length_penalty": [
        (new(aiayn.length_penalty, -1, 0.6), Value, "length must be at least 0, got -1"),
        (new(aiayn.length_penalty, 2.0, 0.6), Type, "length must be an integer, got 2.0"),
        (new(aiayn.length_penalty, True, 0.6), Type, "length must be an integer"),
        (new(aiayn.length_penalty, 3, "0.6"), Type, "alpha must be a number, got '0.6'"),
        (new(aiayn.length_penalty, 3, NAN), Value, "alpha must be a finite number"),
        (new(aiayn.length_penalty, 1, NAN), Value, "alpha must be a finite number"),
        (new(aiayn.length_penalty, 50, 400), Value, "alpha=400 makes inf of .* length 50"),
        (new(aiayn.length_penalty, 50, -400), Value, "alpha=-400 makes 0.0 of the pen"),
    ],
    # chapter 8
    "attention_flops": [
        *size_rows(
            lambda **sizes: aiayn.attention_flops(3, 4, **sizes), n_heads=2, d_k=4, d_v=4
        ),
        (new(aiayn.attention_flops, -1, 4, d_k=2), Value, "n_queries must be .*0, got -1"),
        (new(aiayn.attention_flops, 3, 4.0, d_k=2), Type, "n_keys must be an integer.*4.0"),
    ],
    "attention_layer": size_rows(cost.attention_layer, n=3, d_model=8),
    "recurrent_layer": size_rows(cost.recurrent_layer, n=3, d_model=8, n_maps=4),
    "convolution_layer": size_rows(cost.convolution_layer, n=3, d_model=8, width=3),
    "restricted_layer": size_rows(cost.restricted_layer, n=3, d_model=8, width=3),
    "layers_to_connect": [
        (new(cost.layers_to_connect, 0, 3), Value, "n must be at least 1, got 0"),
        (new(cost.layers_to_connect, 4.0, 3), Type, "n must be an integer, got 4.0"),
        (new(cost.layers_to_connect, 9, 1), Value, "width must be at least 2, got 1"),
        (new(cost.layers_to_connect, 9, 2.5), Type, "width must be an integer, got 2.5"),
    ],
    "path_length": [
        (new(aiayn.path_length, {}, []), Value, "pairs must name at least one.*none"),
        (new(aiayn.path_length, [(1, 2)], [(1, 2)]), Type, r"graph must map.*\(list\)"),
    ],
    "layer_cost": [
        *size_rows(functools.partial(aiayn.layer_cost, "attention"), n=3, d_model=8),
        (new(aiayn.layer_cost, "lstmn", 3, 8), Value, "layer must be one of .*'lstmn'"),
        (new(aiayn.layer_cost, None, 3, 8), Value, "layer must be one of .*None"),
        (new(aiayn.layer_cost, "lstm", 3, 8, width=3), Value, "width is for .*3 for lstm"),
        (new(aiayn.layer_cost, "dilated", 3, 8), Value, "width is for .*None for dilated"),
        (new(aiayn.layer_cost, "convolution", 3, 8, width=1), Value, "width .*2, got 1"),
        (new(aiayn.layer_cost, "restricted", 3, 8, width="4"), Type, "width .*integer.*'4'"),
    ],
    "training_flops": [
        (new(aiayn.training_flops, {"d_model": 8}, 3, 3), Type, "config must be a Transf"),
        *size_rows(
            lambda **sizes: aiayn.training_flops(small_config(), **sizes),
            n_source=3, n_target=3,
        ),
    ],
    # chapter 9
    "KVCache": [
        (new(aiayn.KVCache, 0), Value, "capacity must be at least 1, got 0"),
        (new(aiayn.KVCache, 2.0), Type, "capacity must be an integer, got 2.0"),
        (new(aiayn.KVCache, True), Type, "capacity must be an integer, got True"),
    ],
    "KVCache.attend": [
        (lambda w: attend_with(w.store, 5, batch=3), Value, r"keys must be .*\(3, "),
        (lambda w: attend_with(w.store, 1, heads=1), Value, r"\(2, 2, …, 4\), as held"),
        (lambda w: attend_with(w.store, 1, width=5), Value, r"got shape \(2, 2, 1, 5\)"),
        (lambda w: attend_with(w.store, 1, dtype=torch.half), Type,
         "keys are torch.float16 on cpu, the cache holds torch.float32 on cpu"),
        (lambda w: attend_with(w.store, 6), Value,
         "cache holds 3 tokens and has capacity=8: no room for 6 more"),
        (lambda w: w.store.attend(aiayn.attention, w.x, lambda: (w.x, w.x)), Value,
         r"keys and values must be .*got shapes \(2, 3, 8\)"),
        (lambda w: w.store.attend(aiayn.attention, w.x, lambda: (w.graph, w.graph)),
         Value, "keys require gradients, which no cache keeps"),
    ],
    "KVCache.check_room": [
        (lambda w: w.store.check_room(6), Value, "capacity=8: no room for 6 more"),
    ],
    "KVCache.crop": [
        (lambda w: w.store.crop(4), Value, "crop to n=4: the cache holds 3 tokens"),
        (lambda w: w.store.crop(-1), Value, "n must be at least 0, got -1"),
        (lambda w: w.store.crop(1.0), Type, "n must be an integer, got 1.0"),
    ],
    "KeyValueStore.reorder": row_rows(lambda w: w.store),
    "FrozenKVCache.attend": [
        (lambda w: attend_with(w.frozen, 3, batch=1), Value,
         r"a source of 2 rows and 3 tokens, got shape \(1, 2, 3, 4\): reset it"),
        (lambda w: w.attention(w.x, w.x + 1, w.x, cache=w.crossed), Value,
         "keys and values of another source: reset it"),
        (lambda w: w.attention(w.x, w.x[:, :2], w.x[:, :2], cache=w.crossed), Value,
         r"a source of 2 rows and 3 tokens, got shape \(2, 2, 8\): reset it"),
        (lambda w: aiayn.FrozenKVCache().attend(aiayn.attention, w.x,
                                                lambda: (w.graph, w.graph)),
         Value, "keys require gradients"),
    ],
    "FrozenKVCache.reorder": row_rows(lambda w: w.frozen),
    "DecoderCache": [
        *size_rows(lambda n_layers: aiayn.DecoderCache(n_layers), n_layers=2),
        (new(aiayn.DecoderCache, 2, make=8), Type, "make must make a store.*got 8"),
        (lambda w: aiayn.DecoderCache(2, make=lambda: w.store), Value,
         "make must make a new store each time, it gave one twice"),
    ],
    "DecoderCache.begin": [
        (lambda w: w.kept.begin(w.target), Type, "is_token must be boolean, got .*int64"),
        (lambda w: w.kept.begin([[True]]), Type, "is_token must be boolean, got"),
        (lambda w: w.kept.begin(w.target[0] > 0), Value,
         r"is_token must be \(batch, n_new\), got shape \(5,\)"),
        (lambda w: w.kept.begin(w.target[:1] > 0), Value, "cache holds 2 rows, got 1"),
        (lambda w: w.kept.begin(torch.ones(2, 6, dtype=torch.bool)), Value,
         "cache holds 3 tokens and has capacity=8: no room for 6 more"),
    ],
    "DecoderCache.crop": [
        (lambda w: w.kept.crop(4), Value, "crop to n=4: the cache holds 3 tokens"),
        (lambda w: w.kept.crop(-1), Value, "n must be at least 0, got -1"),
        (lambda w: w.kept.crop("1"), Type, "n must be an integer, got '1'"),
    ],
    "DecoderCache.reorder": row_rows(lambda w: w.kept),
    "kv_cache_bytes": [
        *size_rows(
            lambda **sizes: aiayn.kv_cache_bytes(length=1, batch=1, **sizes),
            n_layers=2, n_kv_heads=2, d_k=4, bytes_per_element=4, d_v=4,
        ),
        (new(aiayn.kv_cache_bytes, 1, 1, 1, -1, 1, 4), Value, "length must be at least 0"),
        (new(aiayn.kv_cache_bytes, 1, 1, 1, 1, -1, 4), Value, "batch must be at least 0"),
        (new(aiayn.kv_cache_bytes, 1, 1, 1, 1, 1, 0.5), Type,
         "bytes_per_element must be an integer, got 0.5"),
    ],
    # chapter 10
    "GroupedQueryAttention": [
        *size_rows(
            aiayn.GroupedQueryAttention, d_model=8, n_heads=2, n_kv_heads=1, d_k=4, d_v=4
        ),
        (new(aiayn.GroupedQueryAttention, 12, 6, n_kv_heads=4), Value,
         "n_heads=6 is not divisible by n_kv_heads=4"),
        (new(aiayn.GroupedQueryAttention, 8, 2, n_kv_heads=4), Value,
         "n_heads=2 is not divisible by n_kv_heads=4"),
        (new(aiayn.GroupedQueryAttention, 10, 4, n_kv_heads=2), Value,
         "d_model=10 is not divisible by n_heads=4"),
        (new(aiayn.GroupedQueryAttention, 8, 2, n_kv_heads=1, attend=None), Type,
         "attend must be a function, got None"),
        (new(aiayn.GroupedQueryAttention, 8, 2), Type, "n_kv_heads"),
    ],
    "GroupedQueryAttention.mix": [
        (lambda w: w.grouped(w.x, w.x, w.x, torch.ones(3, 3)), Type, "mask .*float32"),
        (lambda w: w.grouped(w.x, w.x, w.x, torch.ones(2, 2, 3, 3).bool()), Value,
         r"mask of shape \(2, 2, 3, 3\).*\(2, 4, 3, 3\)"),
        (lambda w: w.grouped(w.x[:, :1], w.x, w.x, torch.ones(2, 2, 1, 3).bool()), Value,
         r"mask of shape \(2, 2, 1, 3\).*\(2, 4, 1, 3\)"),
    ],
    "pool_heads": [
        (lambda w: aiayn.pool_heads(w.attention, 3), Value,
         "2 key heads cannot be pooled to n_kv_heads=3"),
        (lambda w: aiayn.pool_heads(w.grouped, 4), Value,
         "2 key heads cannot be pooled to n_kv_heads=4"),
        (lambda w: aiayn.pool_heads(w.attention, 0), Value, "n_kv_heads must be .*got 0"),
        (lambda w: aiayn.pool_heads(w.attention, 1.0), Type, "n_kv_heads must .*got 1.0"),
        (lambda w: aiayn.pool_heads(w.feed_forward, 1), Type,
         "attention must be a MultiHeadAttention, got "),
    ],
    "align_heads": [
        (lambda w: aiayn.align_heads(w.attention, 3), Value,
         "2 key heads cannot be pooled to n_kv_heads=3"),
        (lambda w: aiayn.align_heads(w.attention, 1, rounds=0), Value,
         "rounds must be at least 1, got 0"),
        (lambda w: aiayn.align_heads(w.model, 1), Type, "attention must be a MultiHead"),
    ],
    "pool_model": [
        (lambda w: aiayn.pool_model(w.model, 3), Value,
         "4 key heads cannot be pooled to n_kv_heads=3"),
        (lambda w: aiayn.pool_model(w.model, "2"), Type, "n_kv_heads must .*got '2'"),
        (lambda w: aiayn.pool_model(w.recurrent, 1), Type, "model must be a Transformer"),
        (lambda w: aiayn.pool_model(w.model, 2, pool=None), Type, "pool must be a function"),
    ],
    # chapter 11
    "flash_attention": [
        *mixing_rows(aiayn.flash_attention),
        *size_rows(functools.partial(aiayn.flash_attention, *[FLOATS] * 3), block_size=2),
        (new(aiayn.flash_attention, FLOATS, FLOATS, FLOATS, block_size=(2, 0)), Value,
         "block_size must be at least 1, got 0"),
        (new(aiayn.flash_attention, FLOATS, FLOATS, FLOATS, block_size=(1, 2, 3)), Value,
         r"block_size .*pair.*got \(1, 2, 3\)"),
        (new(aiayn.flash_attention, FLOATS, FLOATS, FLOATS, block_size=None), Type,
         "block_size must be an integer, got None"),
    ],
    "partial_attention": mixing_rows(aiayn.partial_attention),
    "online_softmax": [
        *size_rows(functools.partial(aiayn.online_softmax, FLOATS), block_size=2),
        (new(aiayn.online_softmax, INTEGERS, 2), Type, "scores .*floating.*int64"),
        (new(aiayn.online_softmax, [1.0], 2), Type, "scores .*floating.*list"),
        (new(aiayn.online_softmax, torch.tensor(1.0), 2), Value, "scores .*n_keys"),
    ],
    "merge_partial_attention": [
        (new(aiayn.merge_partial_attention, PART, tuple(PART)), Type,
         "b must be a PartialAttention"),
        (new(aiayn.merge_partial_attention, 1.0, PART), Type,
         "a must be a PartialAttention, got 1.0"),
        (new(aiayn.merge_partial_attention, PART, PART._replace(maximum=FLOATS)), Value,
         r"b needs one maximum for each row.*\(2, 3\), \(2,\), \(2, 3\)"),
        (new(aiayn.merge_partial_attention, PART._replace(denominator=FLOATS[0, :1]),
             PART), Value, r"a needs .* one denominator, .*\(2,\), \(1,\), \(2, 3\)"),
        (new(aiayn.merge_partial_attention, aiayn.PartialAttention(1.0, 2.0, 3.0), PART),
         Type, "a.maximum must be floating point, got 1.0"),
        (new(aiayn.merge_partial_attention, PART,
             PART._replace(maximum=PART.maximum.double())), Type,
         "b must have one dtype, got .*float64"),
        (new(aiayn.merge_partial_attention, PART, part(2, 3, dtype=torch.float64)), Type,
         "one dtype, got torch.float32 and torch.float64"),
        (new(aiayn.merge_partial_attention, PART, part(2, 1)), Value,
         r"same queries and d_v.*\(2, 3\) and \(2, 1\)"),
        (new(aiayn.merge_partial_attention, PART, part(1, 3)), Value,
         r"same queries and d_v.*\(2, 3\) and \(1, 3\)"),
        (new(aiayn.merge_partial_attention, part(3, 2, 3), part(2, 2, 3)), Value,
         r"leading dimensions.*\(3, 2, 3\) and \(2, 2, 3\)"),
    ],
    # chapter 12
    "blocks_needed": [
        *size_rows(functools.partial(paged.blocks_needed, 3), block_size=2),
        (new(paged.blocks_needed, -1, 2), Value, "n_tokens must be at least 0, got -1"),
        (new(paged.blocks_needed, 1.0, 2), Type, "n_tokens must be an integer, got 1.0"),
    ],
    "slot": [
        *size_rows(functools.partial(paged.slot, [7, 2], 1), block_size=2),
        (new(paged.slot, [7, 2], 4, 2), Value,
         "position=4 is beyond 2 blocks of 2 tokens"),
        (new(paged.slot, [7, 2], -1, 2), Value, "position must be at least 0, got -1"),
        (new(paged.slot, [7, 2], 1.0, 2), Type, "position must be an integer, got 1.0"),
    ],
    "OutOfBlocks": [],  # an error itself
    "BlockAllocator": size_rows(aiayn.BlockAllocator, n_blocks=4, block_size=2),
    "BlockAllocator.allocate": [
        (lambda w: w.pool.allocate(99), aiayn.OutOfBlocks, "99 blocks needed, 7 free"),
        (lambda w: w.pool.allocate(-1), Value, "n must be at least 0, got -1"),
        (lambda w: w.pool.allocate(1.0), Type, "n must be an integer, got 1.0"),
    ],
    "BlockAllocator.share": block_rows("share"),
    "BlockAllocator.free": [
        *block_rows("free"),
        (lambda w: w.pool.free([0, 0]), Value,
         "cannot free block 0 2×: it has 1 references"),
    ],
    "BlockAllocator.references": [
        (lambda w: w.pool.references(9), Value, "block 9 is not in the pool: .*0 to 8"),
        (lambda w: w.pool.references(-1), Value, "block must be at least 0, got -1"),
        (lambda w: w.pool.references(True), Type, "block must be an integer, got True"),
    ],
    "PagedKVCache": [
        (new(aiayn.PagedKVCache, 4), Type, "allocator must be a BlockAllocator, got 4"),
    ],
    "PagedKVCache.attend": [
        (lambda w: attend_with(w.paged, 5, batch=3), Value, r"keys must be .*\(3, "),
        (lambda w: attend_with(w.paged, 1, heads=1), Value, r"\(2, 2, …, 4\), as held"),
        (lambda w: attend_with(w.paged, 1, dtype=torch.half), Type,
         "keys are torch.float16 on cpu, the cache holds torch.float32 on cpu"),
        (lambda w: attend_with(w.paged, 17), aiayn.OutOfBlocks, "8 blocks needed, 7 free"),
        (lambda w: w.paged.attend(aiayn.attention, FLOATS[None, None, :1, :1].expand(
            2, 2, 1, 4), lambda: (w.graph, w.graph)), Value, "keys require gradients"),
        (lambda w: masked_with(w.paged, torch.ones(2, 1, 1, 4)), Type,
         "mask must be a boolean tensor"),
        (lambda w: masked_with(w.paged, torch.ones(2, 1, 1, 5).bool()), Value,
         r"mask of shape \(2, 1, 1, 5\) does not broadcast"),
    ],
    "GrowingTables.check_room": [
        (lambda w: w.paged.check_room(17), aiayn.OutOfBlocks, "8 blocks needed, 7 free"),
        (lambda w: w.paged.check_room(-1), Value, "n_new must be at least 0, got -1"),
        (lambda w: w.paged.check_room(1.0), Type, "n_new must be an integer, got 1.0"),
    ],
    "BlockTables.crop": [
        (lambda w: w.paged.crop(4), Value, "crop to n=4: the cache holds 3 tokens"),
        (lambda w: w.paged.crop(-1), Value, "n must be at least 0, got -1"),
    ],
    "BlockTables.reorder": row_rows(lambda w: w.paged),
    "BlockTables.adopt": [
        (lambda w: w.paged.adopt([[0]]), Value, "cache must be empty, it holds 3 tokens"),
        (lambda w: aiayn.PagedKVCache(w.pool).adopt([[0], [0, 1]]), Value,
         r"equally many in each, got \[1, 2\] blocks"),
        (lambda w: aiayn.PagedKVCache(w.pool).adopt([[8]]), Value,
         "block 8 is named 1× and has 0"),
        (lambda w: aiayn.PagedKVCache(w.pool).adopt([[0, 0]]), Value,
         "block 0 is named 2× and has 1"),
        (lambda w: aiayn.PagedKVCache(w.pool).adopt([["0"]]), Type,
         "block must be an integer, got '0'"),
        (lambda w: unwritten([[0]]), Value, "with keys, the pool holds none yet"),
    ],
    "PrefixCache": [
        (new(aiayn.PrefixCache, 4), Type, "allocator must be a BlockAllocator, got 4"),
    ],
    "PrefixCache.match": prefix_rows(lambda w, *a, **k: w.shelf.match(*a, **k)),
    "PrefixCache.insert": [
        *prefix_rows(lambda w, x, **k: w.shelf.insert(x, [0], **k)),
        (lambda w: w.shelf.insert(range(8), [0]), Value,
         "blocks must be the 2 that the tokens fill, got 1"),
        (lambda w: w.shelf.insert(range(4), [8]), Value, "cannot share block 8"),
        (lambda w: w.shelf.insert(range(8), [0, 8]), Value, "cannot share block 8"),
        (lambda w: w.shelf.insert(range(8), [0, 0]), Value, r"for two: \[0\]"),
    ],
    "PrefixCache.evict": [
        (lambda w: w.shelf.evict(-1), Value, "n must be at least 0, got -1"),
        (lambda w: w.shelf.evict(1.5), Type, "n must be an integer, got 1.5"),
    ],
    "paged_attention": paged_rows(),
    # chapter 13
    "label_smoothed_loss": [
        (new(aiayn.label_smoothed_loss, INTEGERS, INTEGERS[:, 0]), Type,
         "logits .*float.*int64"),
        (new(aiayn.label_smoothed_loss, [[0.0]], INTEGERS), Type, "logits .*float.*list"),
        (new(aiayn.label_smoothed_loss, FLOATS, FLOATS[:, 0]), Type,
         "targets .*integers.*float32"),
        (new(aiayn.label_smoothed_loss, FLOATS, INTEGERS), Value,
         r"logits \(2, 3\) and targets \(2, 3\)"),
        (new(aiayn.label_smoothed_loss, FLOATS, INTEGERS[:, 0], smoothing=1.5), Value,
         "smoothing must be between 0 and 1, got 1.5"),
        (new(aiayn.label_smoothed_loss, FLOATS, INTEGERS[:, 0], smoothing=-0.1), Value,
         "smoothing must be between 0 and 1, got -0.1"),
        (new(aiayn.label_smoothed_loss, FLOATS, INTEGERS[:, 0], smoothing=NAN), Value,
         "smoothing must be between 0 and 1, got nan"),
        (new(aiayn.label_smoothed_loss, FLOATS, INTEGERS[:, 0], smoothing="0"), Type,
         "smoothing must be a number, got '0'"),
        (new(aiayn.label_smoothed_loss, FLOATS, INTEGERS[:, 0], pad_id=None), Type,
         "pad_id must be an integer token id, got None"),
        (new(aiayn.label_smoothed_loss, FLOATS, INTEGERS[:, 0], count=0), Value,
         "count must be at least 1, got 0"),
        (new(aiayn.label_smoothed_loss, FLOATS, INTEGERS[:, 0], count=1.5), Type,
         "count must be an integer, got 1.5"),
    ],
    "teacher_forcing": [
        (new(training.teacher_forcing, INTEGERS[:, :1]), Value, r"target .*\(2, 1\)"),
        (new(training.teacher_forcing, INTEGERS[0]), Value, r"target .*\(3,\)"),
        (new(training.teacher_forcing, FLOATS), Type, "target .*integers.*float32"),
    ],
    "noam_rate": [
        *size_rows(
            lambda d_model, warmup: aiayn.noam_rate(1, d_model, warmup),
            d_model=16, warmup=4,
        ),
        (new(aiayn.noam_rate, -1, 16), Value, "step must be at least 0, got -1"),
        (new(aiayn.noam_rate, 1.5, 16), Type, "step must be an integer, got 1.5"),
        (new(aiayn.noam_rate, NAN, 16), Type, "step must be an integer, got nan"),
        (new(aiayn.noam_rate, 1, 16, factor=NAN), Value, "factor must be a positive.*nan"),
        (new(aiayn.noam_rate, 1, 16, factor=INF), Value, "factor must be a positive.*inf"),
        (new(aiayn.noam_rate, 1, 16, factor=0), Value, "factor must be a positive.*0"),
        (new(aiayn.noam_rate, 1, 16, factor="1"), Type, "factor must be a number, got '1'"),
    ],
    "NoamSchedule": [
        (lambda w: aiayn.NoamSchedule(w.optimizer, 0), Value, "d_model must be at least 1"),
        (lambda w: aiayn.NoamSchedule(w.optimizer, 16, 0), Value, "warmup .*1, got 0"),
        (lambda w: aiayn.NoamSchedule(w.optimizer, 16, 2.5), Type, "warmup .*got 2.5"),
        (lambda w: aiayn.NoamSchedule(w.optimizer, 16, factor=NAN), Value, "factor .*nan"),
        (lambda w: aiayn.NoamSchedule(w.model, 16), Type, "optimizer must be .*got"),
    ],
    "NoamSchedule.load_state_dict": [
        (lambda w, name=name: w.schedule.load_state_dict(
            {**w.schedule.state_dict(), name: 7}), Value,
         f"the state is of {name}=7, not {name}=")
        for name in ("d_model", "warmup", "factor")
    ] + [
        (lambda w: w.schedule.load_state_dict({}), Value, "d_model=None, not d_model=16"),
    ],
    "TokenBatches": [
        *size_rows(batches_of, max_tokens=20, pool=10),
        (new(batches_of, pairs=[]), Value, "pairs is empty"),
        (new(batches_of, pairs=[([3], [1, 3, 2], [4])]), Value, r"pairs\[0\] .*3 parts"),
        (new(batches_of, pairs=[*PAIRS, ([], [1, 2])]), Value,
         r"source of pairs\[2\] must have 1 to max_tokens=20 tokens, got 0"),
        (new(batches_of, pairs=[*PAIRS, ([3], [1])]), Value, r"target of pairs\[2\] .*got 1"),
        (new(batches_of, max_tokens=4), Value,
         r"target of pairs\[1\] must have 2 to max_tokens=4 tokens, got 5"),
        (new(batches_of, pairs=[([3, 0, 4], [1, 2])]), Value, r"pairs\[0\] holds pad_id=0"),
        (new(batches_of, pad_id=None), Type, "pad_id .*integer.*None"),
        (new(batches_of, generator=7), Type, "generator must be a torch.Generator, got 7"),
    ],
    "TokenBatches.load_state_dict": [
        (lambda w, name=name: w.stream.load_state_dict(
            {**w.stream.state_dict(), name: 7}), Value,
         f"the state is of {name}=7, not {name}=")
        for name in ("pairs", "max_tokens", "pool")
    ] + [
        (lambda w: w.stream.load_state_dict({}), Value, "the state lacks "),
    ],
    "train": [
        (train(smoothing=1.5), Value, "smoothing must be between 0 and 1, got 1.5"),
        (train(smoothing=1.5, batches=[]), Value, "smoothing must be between 0 and 1"),
        (train(pad_id=None), Type, "pad_id must be an integer token id, got None"),
        (train(optimizer=None), Type, "optimizer must be .*got None"),
        (train(batches=lambda w: [(w.source + 11, w.target)]), Value,
         r"source holds token id \d+, expected 0 to 10"),
        (train(batches=lambda w: [(w.source, w.target + 11)]), Value,
         r"target holds token id \d+, expected 0 to 10"),
        (train(batches=lambda w: [(w.source, w.target - 20)]), Value,
         r"target holds token id -\d+, expected 0 to 10"),
        (train(batches=lambda w: [(w.source.double(), w.target)]), Type,
         "source .*integers.*float64"),
        (train(batches=lambda w: [(w.source, w.target.double())]), Type,
         "target .*integers.*float64"),
        (train(batches=lambda w: [(w.source, w.target[:, :1])]), Value,
         r"target must .*\(2, 1\)"),
        (with_rate(INF), Value, "learning rate must be finite, got inf"),
        (with_rate(NAN), Value, "learning rate must be finite, got nan"),
        (train(accumulate=0), Value, "accumulate must be at least 1, got 0"),
        (train(accumulate=1.5), Type, "accumulate must be an integer, got 1.5"),
        (train(start=-1), Value, "start must be at least 0, got -1"),
        (train(start=None), Type, "start must be an integer, got None"),
        (train(accelerator="cuda"), Type,
         "accelerator must be an accelerate.Accelerator, got 'cuda'"),
        (train(accelerator=SimpleNamespace(**vars(training.OneProcess),
                                           gradient_accumulation_steps=4)), Value,
         "divides by gradient_accumulation_steps=4: leave it at 1 and pass accumulate"),
    ],
    "pack": [
        (new(training.pack, {"a": [1, {3}]}, "extra", {}), Type,
         r"extra\.a\.1 must be numbers, .*got \{3\}"),
    ],
    "save_checkpoint": [
        (lambda w: aiayn.save_checkpoint(None, w.model), Type, "path must be .*got None"),
        (lambda w: aiayn.save_checkpoint(NOWHERE, 3), Type, "model must be .*got 3"),
        (lambda w: aiayn.save_checkpoint(NOWHERE, w.model, step=-1), Value,
         "step must be at least 0, got -1"),
        (lambda w: aiayn.save_checkpoint(NOWHERE, w.model, step=1.5), Type,
         "step must be an integer, got 1.5"),
        (lambda w: aiayn.save_checkpoint(NOWHERE, w.model, config={}), Type,
         "config must be a TransformerConfig"),
        (lambda w: aiayn.save_checkpoint(NOWHERE, w.model, extra=[1]), Type,
         r"extra must be a dictionary, got \[1\]"),
        (lambda w: aiayn.save_checkpoint(NOWHERE, w.model, optimizer="adam"), Type,
         "optimizer must have state_dict.*got 'adam'"),
        (lambda w: aiayn.save_checkpoint(NOWHERE, w.model, batches=[]), Type,
         r"batches must have state_dict.*got \[\]"),
        (lambda w: aiayn.save_checkpoint(NOWHERE, w.model), FileNotFoundError,
         "nowhere is no folder"),
    ],
    "load_checkpoint": [
        (lambda w: aiayn.load_checkpoint(3, w.model), Type, "path must be .*got 3"),
        (lambda w: aiayn.load_checkpoint(NOWHERE, w.model), FileNotFoundError, "nowhere"),
        (lambda w: aiayn.load_checkpoint(NOWHERE, 3), Type, "model must be .*got 3"),
        (lambda w: aiayn.load_checkpoint(NOWHERE, w.model, schedule=3), Type,
         "schedule must have state_dict.*got 3"),
        (lambda w: aiayn.load_checkpoint(NOWHERE, optimizer=w.optimizer), Type,
         "optimizer needs the model"),
        (lambda w: aiayn.load_checkpoint(__file__, w.model), Value,
         "test_bad_inputs.py is no complete safetensors file"),
    ],
    "read_checkpoint": [
        (new(aiayn.read_checkpoint, None), Type, "path must be .*got None"),
        (new(aiayn.read_checkpoint, NOWHERE), FileNotFoundError, "nowhere"),
        (new(aiayn.read_checkpoint, __file__), Value, "no complete safetensors file"),
    ],
    "average_checkpoints": [
        (new(aiayn.average_checkpoints, []), Value, "paths is empty"),
        (new(aiayn.average_checkpoints, "x"), Type, "paths must be a list .*got 'x'"),
        (new(aiayn.average_checkpoints, [3]), Type, "path must be .*got 3"),
        (new(aiayn.average_checkpoints, [__file__]), Value, "no complete safetensors"),
    ],
    # chapter 14
    "part_of": [
        (new(copy_task.part_of, [3, 300]), Value, "300|range"),
    ],
    "CopyTask": [
        *size_rows(aiayn.CopyTask, n_symbols=10, max_length=20),
        (new(aiayn.CopyTask, 254), Value, "n_symbols must be at most 253, got 254"),
    ],
    "CopyTask.draw": [
        (lambda w: w.task.draw("train", 3, w.generator), Value,
         'part must be "training", "validation" or "test", got \'train\''),
        (lambda w: w.task.draw("test", -1, w.generator), Value, "count .*0, got -1"),
        (lambda w: w.task.draw("test", 1.5, w.generator), Type, "count .*integer, got 1.5"),
        (lambda w: aiayn.CopyTask(1, 1).draw("test", 1, seeded(0)), Value,
         'part.*"?test"?'),
        (lambda w: aiayn.CopyTask(1, 1).draw("validation", 1, seeded(0)), Value,
         'part.*"?validation"?'),
    ],
    "to_tensors": [
        (lambda w: copy_task.to_tensors(w.task, []), Value, "sequences .*empty|at least"),
        (lambda w: copy_task.to_tensors(w.task, [(3,), ()]), Value, r"3 to 12.*\(\)"),
        (lambda w: copy_task.to_tensors(w.task, [(3, 13)]), Value, r"3 to 12.*\(3, 13\)"),
        (lambda w: copy_task.to_tensors(w.task, [(2,)]), Value, r"3 to 12.*\(2,\)"),
        (lambda w: copy_task.to_tensors(w.task, [(3.5,)]), Value, r"3 to 12.*3.5"),
    ],
    "training_batches": [
        (lambda w: copy_task.training_batches(w.task, 0, w.generator, "cpu"), Value,
         "batch_size must be at least 1, got 0"),
        (lambda w: copy_task.training_batches(w.task, 2.5, w.generator, "cpu"), Type,
         "batch_size must be an integer, got 2.5"),
    ],
    "CopyBatches": [
        *size_rows(lambda **sizes: copy_task.CopyBatches(
            aiayn.CopyTask(), generator=seeded(0), **{"batch_size": 4, **sizes}
        ), batch_size=4, n_processes=2),
        (lambda w: copy_task.CopyBatches(w.task, 4, w.generator, process=-1), Value,
         "process must be at least 0, got -1"),
        (lambda w: copy_task.CopyBatches(w.task, 4, w.generator, process=2, n_processes=2),
         Value, "process must be below n_processes=2, got 2"),
        (lambda w: copy_task.CopyBatches(w.task, 2, w.generator, n_processes=3), Value,
         "batch_size=2 leaves some of n_processes=3"),
    ],
    "CopyBatches.load_state_dict": [
        (lambda w: copy_task.CopyBatches(w.task, 2, w.generator).load_state_dict({}),
         Value, "state must be .*got None"),
        (lambda w: copy_task.CopyBatches(w.task, 2, w.generator).load_state_dict(3),
         Value, "state must be .*got 3"),
        (lambda w: copy_task.CopyBatches(w.task, 2, w.generator).load_state_dict(
            {"generator": torch.zeros(3, dtype=torch.uint8)}),
         Value, r"state must be .*got torch.uint8 of shape \(3,\)"),
    ],
    "short_sequences": [
        (lambda w: copy_task.short_sequences(w.task, "all"), Value, "part must be .*'all'"),
    ],
    "held_out_set": [
        (lambda w: copy_task.held_out_set(w.task, 0), Value, "count .*at least 1.*0"),
        (lambda w: copy_task.held_out_set(w.task, 1.5), Type, "count .*integer, got 1.5"),
        (lambda w: copy_task.held_out_set(aiayn.CopyTask(2, 3), 10), Value,
         "14 sequences.*10|10.*14"),
    ],
    "exact_match": [
        (lambda w: aiayn.exact_match(w.training, w.task, []), Value, "sequences is empty"),
        (lambda w: aiayn.exact_match(w.training, w.task, [(3, 99)]), Value,
         r"3 to 12.*\(3, 99\)"),
        (lambda w: aiayn.exact_match(w.training, w.task, [(12,)]), Value,
         "token id 12, expected 0 to 10"),
        (lambda w: aiayn.exact_match(w.training, w.task, [(3,)], batch_size=0), Value,
         "batch_size must be at least 1, got 0"),
        (lambda w: aiayn.exact_match(w.training, w.task, [(3,)], batch_size="5"), Type,
         "batch_size must be an integer, got '5'"),
        (lambda w: aiayn.exact_match(w.training, w.task, [(3,) * 40]), Value, "max_len=32"),
    ],
    "train_copy_model": [
        (recipe(config=aiayn.TransformerConfig.toy(9)), Value, "13 .*config.* 9|9.* 13"),
        (recipe(config=aiayn.TransformerConfig.toy(13, max_len=21)), Value,
         "max_len.*22.*21|max_len=21.*22"),
        (recipe(config=aiayn.TransformerConfig.toy(13, pad_id=3)), Value, "pad_id.*3.*0"),
        (recipe(peak_rate=NAN), Value, "peak_rate must be a positive number, got nan"),
        (recipe(peak_rate=INF), Value, "peak_rate must be a positive number, got inf"),
        (recipe(peak_rate=0.0), Value, "peak_rate must be a positive number, got 0.0"),
        (recipe(peak_rate="1"), Type, "peak_rate must be a number, got '1'"),
        (recipe(smoothing=1.5), Value, "smoothing must be between 0 and 1, got 1.5"),
        *size_rows(
            aiayn.train_copy_model, batch_size=4, warmup=4, validate_every=2, max_steps=1,
            save_every=2,
        ),
        (recipe(attention=3), Type, "attention must be a class, got 3"),
        (recipe(attend=3), Type, "attend must be a function, got 3"),
        (recipe(device=torch.device("cpu"), accelerator=training.OneProcess()), Value,
         "accelerator brings its own device: leave out .*cpu"),
        (recipe(checkpoint=3), Type, "checkpoint must be a path, got 3"),
        (recipe(after_step=3), Type, "after_step must be a function, got 3"),
        (recipe(checkpoint=__file__), Value, "test_bad_inputs.py is no complete"),
    ],
    "copy_optimizer": [
        (lambda w: copy_task.copy_optimizer(w.model, 0.1, 0), Value, "warmup .*got 0"),
    ],
    # what every chapter shares
    "device": [],  # test_a_device_that_does_not_exist, below
    "draw_into": [
        (lambda w: roles.draw_into(torch.zeros(2), nn.init.normal_, 3), Type,
         "generator must be a torch.Generator.*got 3"),
    ],
    "check_representable": [
        (new(roles.check_representable, INTEGERS.to(torch.int8), pad_id=128), Value,
         "pad_id=128 does not fit tokens of torch.int8"),
        (new(roles.check_representable, INTEGERS, eos_id=2**63), Value, "eos_id=9.*int64"),
    ],
    "check_token_ids": [
        (new(roles.check_token_ids, INTEGERS + 11, 11), Value, "tokens .*11.*0 to 10"),
        (new(roles.check_token_ids, INTEGERS - 2, 11), Value, "tokens .*-2.*0 to 10"),
        (new(roles.check_token_ids, FLOATS, 11, "source"), Type, "source .*float32"),
    ],
    "check_token_roles": [
        (lambda w: roles.check_token_roles(pad_id=0, eos_id=0), Value,
         "eos_id and pad_id are both 0"),
        (lambda w: roles.check_token_roles(pad_id=-100), Value, "pad_id=-100 .*start at 0"),
        (lambda w: roles.check_token_roles(pad_id=None), Type, "pad_id .*integer.*None"),
        (lambda w: roles.check_token_roles(pad_id=0.0), Type, "pad_id .*integer.*0.0"),
        (lambda w: roles.check_token_roles(pad_id=True), Type, "pad_id .*integer.*True"),
    ],
}  # fmt: skip

# What has no bad input of its own, and why.
EXEMPT = {
    "__version__": "a constant",
    "BOS": "a constant",
    "EOS": "a constant",
    "PAD": "a constant",
    "Seq2Seq": "a protocol: greedy_decode refuses what does not follow it",
    "Seq2Seq.encode": "a protocol has no body",
    "Seq2Seq.decode": "a protocol has no body",
    "Hypothesis": "a record that beam_search fills",
    "Continuation": "a record that best_continuations fills",
    "best_tokens": "called by beam_search with scores that it computed",
    "best_continuations": "called by beam_search with what it computed",
    "finish_or_keep": "called by beam_search with candidates that it ordered",
    "score_bound": "called by Ranking with sizes that were checked",
    "Ranking": "called by beam_search with settings that were checked",
    "Ranking.add": "called by beam_search with what it found",
    "Ranking.is_final": "called by beam_search with what it found",
    "next_logits": "called by greedy_decode and beam_search, which have their rows",
    "log_distribution": "called by beam_search, which has its rows",
    "take": "called by beam_search with rows that exist",
    "describe": "shows any value",
    "RecurrentCache": "takes no argument",
    "RecurrentCache.keep": "called by RecurrentSeq2Seq.decode with a state it made",
    "leading_shape": "called by the attentions inside their check of shapes",
    "unless_idle": "called by Transformer.decode and DecoderCache with masks they made",
    "undone_on_error": "called by Transformer.decode with a cache it has looked at",
    "as_row_index": "called by the caches' reorder, which has its rows",
    "with_room": "called by the caches with keys and values that were checked",
    "KeyValueStore": "a base class without arguments",
    "FrozenKVCache": "takes no argument",
    "LayerCache": "a record that DecoderCache fills",
    "LayerCaches": "a base class: DecoderCache has its rows",
    "read_tokens": "called by RecurrentSeq2Seq, which checks",
    "initialise_lstm": "called by RecurrentSeq2Seq with settings that were checked",
    "residual": "called by Sublayer.forward, which has its rows",
    "merge_heads": "undoes split_heads on what the module itself made",
    "mixing_weights": "calls mix, whose attend checks",
    "MultiHeadAttention.project": "called by forward and weights, which check",
    "MultiHeadAttention.mix": "hands everything to attend, which checks",
    "GroupedQueryAttention.project": "called by forward and weights, which check",
    "group_mask": "called by GroupedQueryAttention.mix, which checks",
    "as_float64": "called by align_heads, which checks",
    "best_turns": "called by align_heads, which checks",
    "turn_rows": "called by align_heads, which checks",
    "PartialAttention": "a record that partial_attention fills",
    "over_zero": "called by PartialAttention.normalise, which checks",
    "finite_shift": "called by merge_partial_attention, which checks",
    "part_of_tile": "called by partial_attention, which checks",
    "tile_scores": "called by partial_attention, which checks",
    "empty_part": "called by flash_attention, which checks",
    "for_sums": "called by flash_attention, which checks",
    "without_autocast": "called by flash_attention, which checks",
    "cut": "called by flash_attention, which checks",
    "key_tiles": "called by flash_attention, which checks",
    "tile_mask": "called by flash_attention, which checks",
    "flash_forward": "called by flash_attention, which checks",
    "flash_backward": "called by flash_attention, which checks",
    "mapped_axis_first": "called by flash_attention, which checks",
    "FlashAttention": "called by flash_attention, which checks",
    "FlashGradient": "called by flash_attention, which checks",
    "checked_block_size": "called by flash_attention, which checks",
    "FlashAttention.forward": "called by autograd for flash_attention",
    "FlashAttention.setup_context": "called by autograd for flash_attention",
    "FlashAttention.backward": "called by autograd for flash_attention",
    "FlashAttention.vmap": "called by autograd for flash_attention",
    "FlashGradient.forward": "called by autograd for flash_attention",
    "FlashGradient.setup_context": "called by autograd for flash_attention",
    "FlashGradient.backward": "called by autograd for flash_attention",
    "FlashGradient.vmap": "called by autograd for flash_attention",
    "AT_ONCE": "a constant",
    "BlockMemory": "a base class: BlockAllocator has its rows",
    "BlockMemory.reserve": "called by PagedKVCache.attend, which has its rows",
    "BlockTables": "a base class: PagedKVCache has its rows",
    "GrowingTables": "a base class: PagedKVCache has its rows",
    "pick": "called by the cache and paged_attention with blocks that exist",
    "block_scores": "called by partial_blocks",
    "block_sums": "called by partial_blocks",
    "partial_blocks": "called by attend_blocks",
    "read_blocks": "called by attend_blocks with a table that was checked",
    "rows_seen": "called by attend_blocks with a mask that was checked",
    "attend_blocks": "called by paged_attention and PagedKVCache, which check",
    "computes_the_same": "looks at any function",
    "PositionalEncoding.rows": "called by forward, which checks",
    "LearnedPositionalEncoding.rows": "called by forward, which checks",
    "LayerCost": "a record that layer_cost fills",
    "JsonFields": "a base class: TransformerConfig.from_json has its rows",
    "JsonFields.from_json": "see TransformerConfig.from_json",
    "TransformerParts": "the constructor of Transformer, which has its rows",
    "TransformerParts.reset_parameters": "see Transformer.reset_parameters",
    "NoPositions": "takes no argument",
    "NoPositions.forward": "returns what it got",
    "build_attention": "called by the layers, which have its rows",
    "build_sublayer": "called by the layers with a configuration that was checked",
    "build_positions": "called by Transformer with a configuration that was checked",
    "build_embeddings": "called by Transformer with a configuration that was checked",
    "initialise": "called by Transformer.reset_parameters, which has its rows",
    "begin_step": "called by Transformer.decode, which has its rows",
    "count_positions": "called by the model with a mask that it made",
    "torch_layer_pairs": "called by load_torch_transformer, which checks",
    "TransformerParts.load_state_dict": "see Transformer.load_state_dict",
    "plain_names": "called by Transformer.load_state_dict, which has its rows",
    "same_numbers": "called by Transformer.load_state_dict with two tensors",
    "kernel_weights": "called by record_attention with what torch's kernel got",
    "packed_weights": "called by record_attention with what torch's function got",
    "KernelCalls": "made by record_attention, which has its rows",
    "mix_recorded": "called by record_attention with a module that it found",
    "names_of_running": "called by record_attention, which checks",
    "cut_by_tokens": "called by TokenBatches with pairs that were checked",
    "TokenBatches.shuffled": "called by TokenBatches with lists that it made",
    "unwrapped": "called by train and save_checkpoint with a model",
    "OneProcess": "takes no argument",
    "OneProcess.no_sync": "called by the loop",
    "OneProcess.backward": "called by the loop",
    "OneProcess.reduce": "called by the loop",
    "OneProcess.clip_grad_norm_": "called by the loop",
    "tokens_that_count": "called by add_gradients with batches of train",
    "add_gradients": "called by train, which has its rows",
    "unpack": "called by read_checkpoint, which has its rows",
    "write_whole": "called by save_checkpoint, which has its rows",
    "GlobalGenerators": "takes no argument",
    "GlobalGenerators.load_state_dict": "called by load_checkpoint with what it read",
    "stored_once": "called by save_checkpoint, which has its rows",
    "parameter_names": "called by save_checkpoint, which has its rows",
    "own_config": "looks at any model",
    "kind_of": "looks at any object",
    "FORMAT": "a constant",
    "state_of_run": "called by save_checkpoint, which has its rows",
    "CheckpointFile": "a record that read_checkpoint fills",
    "CheckpointFile.part": "called by load_checkpoint; see test_checkpoints.py",
    "MAY_DIFFER": "a constant",
    "fitting_weights": "called by load_checkpoint; see test_checkpoints.py",
    "built_model": "called by load_checkpoint; see test_checkpoints.py",
    "optimizer_state": "called by load_checkpoint; see test_checkpoints.py",
    "restore": "called by load_checkpoint with states that it read",
    "Checkpoint": "a record that load_checkpoint fills",
    "copied": "called by exact_match, which checks",
    "validation_set": "called by train_copy_model, which checks",
    "CopyRun": "a record that train_copy_model fills",
    "Update": "a record that train_copy_model fills",
    "CopyTraining": "made by train_copy_model, which has its rows",
    "CopyTraining.count": "called by train_copy_model with the loss of an update",
    "CopyTraining.save": "called by train_copy_model, which checks",
    "CopyTraining.resume": "called by train_copy_model, which has its rows",
    "processes": "called by train_copy_model, which checks",
    "load_copy_model": "takes no argument",
    "main": "the command line, whose bad options are in test_command_line.py",
    "Refused": "an exception of the command line",
    "Reporter": "made by the command line, which checks its options",
    "RunFolder": "made by the command line; its refusals are in test_command_line.py",
    "RunFolder.forget_after": "called by the command line with a step it read",
    "RunFolder.prepare": "its refusals are in test_command_line.py",
    "RunFolder.settle": "its refusals are in test_command_line.py",
    "RunFolder.write_json": "called by the command line with what it made",
}
CHECKS = ("check_", "refuse_")  # a check is tested through the rows of what calls it


def public_names() -> set[str]:
    """Names of the package and of each module, and the methods of public classes."""
    names = set(aiayn.__all__)
    for info in pkgutil.iter_modules(aiayn.__path__):
        module = importlib.import_module(f"aiayn.{info.name}")
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            names.add(name)
            for method, value in vars(thing).items() if inspect.isclass(thing) else ():
                function = getattr(value, "__func__", value)
                if method.startswith("_") or not inspect.isfunction(function):
                    continue
                if len(inspect.signature(function).parameters) > 1:
                    names.add(f"{name}.{method}")
    return names


def test_every_public_name_has_a_row_or_a_reason():
    names = public_names()
    covered = ROWS.keys() | EXEMPT.keys()
    missing = {n for n in names - covered if not n.startswith(CHECKS)}
    assert not missing, f"no bad input is listed for {sorted(missing)}"
    inherited = {"Transformer.reset_parameters", "TransformerConfig.from_json"}
    inherited.add("Transformer.load_state_dict")
    gone = covered - names - inherited
    assert not gone, f"these are no public names any more: {sorted(gone)}"
    assert not ROWS.keys() & EXEMPT.keys()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(*row, id=f"{name}-{i}")
        for name, rows in ROWS.items()
        for i, row in enumerate(rows)
    ],
)
def test_bad_input(call, error, message):
    w = world()
    before = state()
    with pytest.raises(error, match=message) as caught:
        call(w)
    assert type(caught.value) is error
    assert_unchanged(before, state())


def test_the_comparison_of_states_sees_a_change():
    w = world()
    for change, undo in (
        (lambda: w.model.train(), lambda: w.model.eval()),
        (lambda: torch.rand(1), lambda: None),
        (lambda: w.model.encoder_norm.register_buffer("more", torch.ones(1)),
         lambda: delattr(w.model.encoder_norm, "more")),
        (lambda: w.cache.is_token.logical_not_(), lambda: w.cache.is_token.logical_not_()),
        (lambda: w.optimizer.param_groups[0].update(lr=7.0), lambda: None),
    ):  # fmt: skip
        before = state()
        change()
        with pytest.raises(AssertionError):
            assert_unchanged(before, state())
        undo()
    w.optimizer.param_groups[0]["lr"] = w.schedule.get_last_lr()[0]


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("name", ["gpu0", "cpu:x", "7.5"])
def test_a_device_that_does_not_exist(monkeypatch, name):
    monkeypatch.setenv("AIAYN_DEVICE", name)
    with pytest.raises(ValueError, match=f"AIAYN_DEVICE='{name}' is not a device"):
        aiayn.device()


def test_none_of_the_shared_weights_is_nan():
    """A world full of NaN would compare as changed, or hide that it was."""
    for name, value in state().items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert value.isfinite().all(), name
