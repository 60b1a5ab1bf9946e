"""The state of a model: how it starts, what is shared, what saving and loading keep.

By kinds of fault: clones that start equal, one layer used twice, a tie that is none or
is lost on the road, a checkpoint that fits half, constants taken for weights, and an
output that means one thing to the loss and another to the search.
"""

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from helpers import (
    VOCAB,
    assert_same,
    normal,
    padded,
    plain_logits,
    seeded,
    small_config,
    small_model,
    tokens,
)
from test_transformer import VARIANTS, variant
from torch import Tensor, nn

import aiayn
from aiayn import DecoderLayer, EncoderLayer, Transformer, parameter_count

TIED = ("source_embedding.weight", "target_embedding.weight")
SOURCE = padded([[3, 4, 6, 7, 2], [6, 2], [7, 8, 2]])
TARGET = padded([[1, 9], [1, 3, 4, 6], [1, 6, 6]])


def examples(model: Transformer) -> tuple[Tensor, Tensor]:
    """Source and target without the padding token of any variant."""
    source, target = tokens(3, 5), tokens(3, 4, seed=1)
    pad = model.config.pad_id
    return source.masked_fill(source == pad, 4), target.masked_fill(target == pad, 4)


def one_step(model: Transformer, optimizer=None) -> None:
    """An update that depends on every weight, dropout off."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    source, target = examples(model)
    logits = model(source, target)
    direction = normal(*logits.shape, seed=7, dtype=logits.dtype)
    (logits * direction).sum().backward()
    optimizer.step()


def assert_same_model(one: Transformer, other: Transformer) -> None:
    """Bit for bit: every weight, and what comes out."""
    assert [n for n, _ in one.named_parameters()] == [
        n for n, _ in other.named_parameters()
    ]
    for (name, ours), theirs in zip(
        one.named_parameters(), other.parameters(), strict=True
    ):
        assert ours.dtype == theirs.dtype, name
        assert torch.equal(ours, theirs), name
    inputs = examples(one)
    assert torch.equal(plain_logits(one, *inputs), plain_logits(other, *inputs))


def assert_tied(model: Transformer) -> None:
    """One matrix in all three places, given to an optimiser once."""
    weight = model.source_embedding.weight
    assert weight is model.target_embedding.weight
    assert weight is model.output_weight
    assert sum(p is weight for p in model.parameters()) == 1
    assert isinstance(weight, nn.Parameter)
    assert weight.requires_grad


# --- how it starts --------------------------------------------------------------------


def clones(model: nn.Module) -> list[tuple[str, str]]:
    """Pairs of matrices that hold the same numbers, in any order or layout."""
    matrices = [(n, p.detach()) for n, p in model.named_parameters() if p.dim() > 1]
    sorted_values = [(name, w.flatten().sort().values) for name, w in matrices]
    return [
        (one, other)
        for (one, a), (other, b) in itertools.combinations(sorted_values, 2)
        if a.shape == b.shape and torch.equal(a, b)
    ]


@variant
@pytest.mark.parametrize("again", [False, True], ids=["new", "reset"])
def test_no_two_matrices_start_equal(changes, again):
    """pytorch#72253, #86274, annotated-transformer#9, torchtune#2270: deep copies.

    Every pair of every layer and side, embeddings too, also after a reset.
    """
    model = Transformer(small_config(**{"n_layers": 3} | changes), generator=seeded(0))
    if again:
        model.reset_parameters(seeded(1))
    assert clones(model) == []
    for name, matrix in model.named_parameters():
        if matrix.dim() > 1:
            rows = matrix.detach()
            assert len(rows.unique(dim=0)) == len(rows), f"{name} repeats a row"


def test_a_deep_copy_of_a_layer_would_be_noticed():
    """The check above sees each way to copy: a layer, a network, one matrix."""
    model = Transformer(small_config(n_layers=3), generator=seeded(0))
    layers = model.encoder_layers
    layers[2] = copy.deepcopy(layers[0])
    assert len(clones(model)) == 6  # four projections, two maps
    layers[2] = EncoderLayer(small_config())
    assert clones(model) == []
    feed_forward = copy.deepcopy(layers[0].feed_forward)
    model.decoder_layers[1].feed_forward = feed_forward
    assert clones(model) == [
        (f"{place}.feed_forward.{part}.weight", f"{other}.feed_forward.{part}.weight")
        for part in ("inner", "outer")
        for place, other in [("encoder_layers.0", "decoder_layers.1")]
    ]
    other = Transformer(small_config(tie_embeddings=False), generator=seeded(0))
    with torch.no_grad():
        other.target_embedding.weight.copy_(other.source_embedding.weight)
    assert clones(other) == [TIED]


@variant
def test_a_layer_more_is_exactly_one_layer_of_weights_more(changes):
    """espnet#1278, encodecmae#3: one layer, or its feed-forward, used N times."""
    sizes, names = [], []
    for n_layers in (1, 2, 3, 4):
        model = Transformer(small_config(**changes | {"n_layers": n_layers}))
        unique = {id(p): p for p in model.parameters()}
        sizes.append(sum(p.numel() for p in unique.values()))
        names.append({name for name, _ in model.named_parameters()})
    config = model.config
    layers = EncoderLayer(config), DecoderLayer(config)
    layer = sum(p.numel() for part in layers for p in part.parameters())
    assert [b - a for a, b in itertools.pairwise(sizes)] == [layer] * 3
    for n, (fewer, more) in enumerate(itertools.pairwise(names), start=1):
        assert fewer < more
        assert more - fewer == {
            f"{side}_layers.{n}.{name}"
            for side, part in zip(("encoder", "decoder"), layers, strict=True)
            for name, _ in part.named_parameters()
        }


@variant
def test_nothing_stands_in_two_places_but_the_tied_embedding(changes):
    """By module, by weight, and by memory: two weights may not overlap either."""
    model = Transformer(small_config(**{"n_layers": 3} | changes))
    places: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        places.setdefault(id(module), []).append(name)
    shared = [names for names in places.values() if len(names) > 1]
    tied = [["source_embedding", "target_embedding"]]
    assert shared == (tied if model.config.tie_embeddings else [])
    weights = list(model.parameters())
    assert len({id(p) for p in weights}) == len(weights)
    assert len({p.untyped_storage().data_ptr() for p in weights}) == len(weights)


@variant
def test_every_layer_runs_once_and_in_order(changes):
    """A stack that runs its first layer N times has the right weights all the same."""
    model = small_model(**{"n_layers": 3} | changes)
    ran = []
    for name, module in model.named_modules():
        if isinstance(module, EncoderLayer | DecoderLayer):
            module.register_forward_hook(
                lambda _m, args, out, name=name: ran.append((name, args[0], out))
            )
    plain_logits(model, *examples(model))
    fed = {name: (came, went) for name, came, went in ran}
    n_layers = model.config.n_layers
    for side in ("encoder", "decoder"):
        stack = [f"{side}_layers.{i}" for i in range(n_layers)]
        assert [name for name, *_ in ran if name.startswith(side)] == stack
        for lower, upper in itertools.pairwise(stack):
            assert torch.equal(fed[lower][1], fed[upper][0])


@variant
def test_the_memory_is_what_the_last_encoder_layer_made(changes):
    """Every decoder layer reads it, and nothing that came before it."""
    model = small_model(**{"n_layers": 3} | changes)
    source, target = examples(model)
    made, read = [], []
    last = model.encoder_norm if model.config.norm_first else model.encoder_layers[-1]
    last.register_forward_hook(lambda _m, _args, out: made.append(out))
    for layer in model.decoder_layers:
        layer.register_forward_pre_hook(lambda _m, args: read.append(args[1]))
    plain_logits(model, source, target)
    assert len(made) == 1
    assert len(read) == model.config.n_layers
    assert all(torch.equal(memory, made[0]) for memory in read)
    with torch.no_grad():
        assert torch.equal(model.encode(source), made[0])


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_gradient_goes_past_every_sublayer(norm_first):
    """With every sub-layer's last map at zero the residual is the only road.

    The logits of a place then depend on the token of that place alone, and do.
    """
    model = small_model(norm_first=norm_first, tie_embeddings=False, n_layers=3)
    last = (".output_projection.", "feed_forward.outer.")
    for name, weight in model.named_parameters():
        if any(part in f".{name}" for part in last) and "layers" in name:
            nn.init.zeros_(weight)
    logits = model(torch.tensor([[3, 4]]), torch.tensor([[5, 6, 7]]))
    (logits[0, 1] * normal(VOCAB)).sum().backward()
    sizes = model.target_embedding.weight.grad.norm(dim=1)
    assert sizes.nonzero().flatten().tolist() == [6]
    assert sizes[6] > 0.01
    assert not model.source_embedding.weight.grad.any()


@variant
def test_every_generator_draws_its_own_model(changes):
    """Same seed, same model; the state of one weight depends on every draw before."""
    config = small_config(**changes)
    generator = seeded(3)
    first, second = (Transformer(config, generator=generator) for _ in range(2))
    assert clones(nn.ModuleList([first, second])) == []
    again = seeded(3)
    for model in (first, second):
        twin = Transformer(config, generator=again)
        for (name, ours), theirs in zip(
            model.named_parameters(), twin.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs), name


# --- padding, and ids that are none ---------------------------------------------------


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("pad_id", [0, 5])
def test_the_row_of_padding_is_drawn_and_kept_like_any_other(tie_embeddings, pad_id):
    """Not zeros, not drawn twice, not set back by loading: masks hide padding."""
    config = small_config(
        d_model=64, pad_id=pad_id, tie_embeddings=tie_embeddings, n_layers=1
    )
    model = Transformer(config, generator=seeded(0))
    matrices = {id(w): w for w in (model.source_embedding.weight,
                model.target_embedding.weight, model.output_weight)}  # fmt: skip
    for weight in matrices.values():
        sizes = weight.detach().norm(dim=1)
        assert 0.5 < sizes[pad_id] / sizes.mean() < 2
    state = {n: w + 1 for n, w in model.state_dict().items()}
    model.load_state_dict(state)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, state[name]), name
    model.double()
    source, target = padded([[3, 4, 2], [6, 2]]), padded([[1, 9], [1]])
    source, target = (x.masked_fill(x == 0, pad_id) for x in (source, target))
    logits = model.eval()(source, target)[target != pad_id]
    (logits * normal(*logits.shape)).sum().backward()
    gradient = model.output_weight.grad[pad_id]  # it competes for probability
    assert gradient.abs().max() > 1e-6
    if not tie_embeddings:  # and nothing reads it: only padded places look it up
        assert not model.source_embedding.weight.grad[pad_id].any()
        assert not model.target_embedding.weight.grad[pad_id].any()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("side", ["source", "target"])
def test_an_id_that_is_none_is_refused(side):
    """``None`` and −100 mean "ignore" elsewhere: here they are no token.

    −100 would read a row from the end of the table, or of a neighbour's memory.
    """
    model = small_model()
    given = {"source": SOURCE, "target": TARGET}
    with pytest.raises(TypeError, match=f"{side} must hold integers, got None"):
        model(**given | {side: None})
    for wrong in (-100, -1, VOCAB):
        ids = given[side].clone()
        ids[1, 1] = wrong
        with pytest.raises(
            ValueError, match=f"{side} holds token id {wrong}, expected"
        ):
            aiayn.tokens.check_model_tokens(model, **{side: ids})
        with pytest.raises(IndexError):  # torch's own, on the CPU
            model(**given | {side: ids})
    for role in ({"pad_id": None}, {"pad_id": -100}):
        with pytest.raises((TypeError, ValueError), match="pad_id"):
            small_config(**role)


# --- one matrix in three places -------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in VARIANTS if n != "untied"])
def test_a_tied_model_has_two_matrices_less(name):
    """annotated-transformer#93, sockeye#137, nematus#117, joeynmt#52: nothing tied."""
    changes = VARIANTS[name]
    tied = Transformer(small_config(**changes))
    untied = Transformer(small_config(**changes | {"tie_embeddings": False}))
    assert_tied(tied)
    sizes = [sum(p.numel() for p in m.parameters()) for m in (tied, untied)]
    assert sizes == [parameter_count(m.config) for m in (tied, untied)]
    assert sizes[1] - sizes[0] == 2 * VOCAB * tied.config.d_model
    three = (untied.source_embedding.weight, untied.target_embedding.weight,
             untied.output_weight)  # fmt: skip
    for one, other in itertools.combinations(three, 2):
        assert one is not other
        assert one.data_ptr() != other.data_ptr()


def test_eleven_tokens_of_width_eight():
    """The count of the public reports' example: 2 · 11 · 8 = 176 weights less."""
    tied, untied = (
        Transformer(small_config(d_model=8, tie_embeddings=flag))
        for flag in (True, False)
    )
    counts = [sum(p.numel() for p in m.parameters()) for m in (tied, untied)]
    assert counts[1] - counts[0] == 176


@pytest.mark.parametrize("sizes", [(11, 12), (12, 11), (11, 3)])
def test_two_vocabularies_cannot_be_tied(sizes):
    source, target = sizes
    with pytest.raises(
        ValueError,
        match=f"source_vocab_size={source} and target_vocab_size={target}: pass tie",
    ):
        small_config(source_vocab_size=source, target_vocab_size=target)
    untied = small_config(
        source_vocab_size=source, target_vocab_size=target, tie_embeddings=False
    )
    model = Transformer(untied).double()
    assert model.source_embedding.weight.shape == (source, 16)
    assert model.target_embedding.weight.shape == (target, 16)
    logits = model(tokens(2, 4, vocab_size=source), torch.tensor([[1, 2]] * 2))
    assert logits.shape == (2, 2, target)


OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1),
    "foreach": lambda weights: torch.optim.Adam(weights, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_tied_matrix_is_updated_once_by_the_sum_of_its_three_gradients(make):
    """Three steps beside an untied model whose matrices all get that sum."""
    tied, untied = small_model(), small_model(tie_embeddings=False, seed=4)
    state = tied.state_dict()
    state["output_projection.weight"] = state[TIED[0]]
    untied.load_state_dict(state, strict=True)
    optimizers = [make(list(model.parameters())) for model in (tied, untied)]
    three = (untied.source_embedding.weight, untied.target_embedding.weight,
             untied.output_weight)  # fmt: skip
    source, target = examples(tied)
    for step in range(3):
        for model, optimizer in zip((tied, untied), optimizers, strict=True):
            optimizer.zero_grad()
            logits = model(source, target)
            (logits * normal(*logits.shape, seed=step)).sum().backward()
        total = sum(weight.grad for weight in three)
        assert_same(tied.output_weight.grad, total)
        for weight in three:
            weight.grad = total.clone()
        for optimizer in optimizers:
            optimizer.step()
        assert_tied(tied)
        for weight in three:
            assert_same(weight.detach(), tied.output_weight.detach(), 1e-9)
    held = [p for group in optimizers[0].param_groups for p in group["params"]]
    assert sum(p is tied.output_weight for p in held) == 1
    assert len(held) == len({id(p) for p in held})


# --- saving and loading ---------------------------------------------------------------


def bytes_of(state) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def another(model: Transformer) -> Transformer:
    """The same configuration, other weights, the dtype of the model."""
    dtype = model.target_embedding.weight.dtype
    return Transformer(model.config, generator=seeded(99)).to(dtype).eval()


def loaded(model: Transformer, state, **how) -> Transformer:
    other = another(model)
    result = other.load_state_dict(state, strict=True, **how)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    return other


def through_meta(model: Transformer) -> Transformer:
    with torch.device("meta"):
        other = Transformer(model.config)
    other = other.to_empty(device="cpu").double()
    other.load_state_dict(model.state_dict())
    return other.eval()


def assigned_to_meta(model: Transformer) -> Transformer:
    """The way of large models: no memory until the weights come."""
    with torch.device("meta"):
        other = Transformer(model.config)
    other.load_state_dict(
        {n: w.clone() for n, w in model.state_dict().items()}, assign=True
    )
    return other.eval()


def overwriting(model: Transformer, *dtypes) -> Transformer:
    """As torch converts when it puts new parameters in place of the old."""
    other = copy.deepcopy(model)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        for dtype in dtypes:
            other = other.to(dtype)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    return other


ROADS = {
    "load_state_dict": lambda m: loaded(m, m.state_dict()),
    "of copies": lambda m: loaded(m, {n: w.clone() for n, w in m.state_dict().items()}),
    "assign": lambda m: loaded(m, copy.deepcopy(m.state_dict()), assign=True),
    "assign copies": lambda m: loaded(
        m, {n: w.clone() for n, w in m.state_dict().items()}, assign=True
    ),
    "deepcopy": copy.deepcopy,
    "pickled state": lambda m: loaded(m, pickle.loads(pickle.dumps(m.state_dict()))),
    "pickled model": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": lambda m: loaded(
        m, torch.load(bytes_of(m.state_dict()), weights_only=True)
    ),
    "torch.save, assign": lambda m: loaded(
        m, torch.load(bytes_of(m.state_dict()), weights_only=True), assign=True
    ),
    "torch.save, mapped": lambda m: loaded(
        m, torch.load(bytes_of(m.state_dict()), weights_only=True, map_location="cpu")
    ),
    "another device and back": lambda m: copy.deepcopy(m).to("cpu", torch.float64),
    "meta, emptied, loaded": through_meta,
    "meta, assigned": assigned_to_meta,
    "new parameters on conversion": lambda m: overwriting(m, torch.float64),
}


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_first": True, "bias": False},
        {"tie_embeddings": False},
        {"positions": "learned", "d_model": 10, "d_k": 3, "d_v": 5},
    ],
    ids=["post-norm", "pre-norm", "untied", "learned"],
)
def test_a_road_leads_to_the_same_model(changes, road):
    """safetensors#98, transformers#33807, Megatron-Bridge#919: a tie lost on the way.

    Bit for bit, and still after an update: a tie that is lost shows only then.
    """
    model = small_model(**changes)
    twin = road(model)
    assert twin is not model
    assert twin.config == model.config
    assert_same_model(twin, model)
    mine = {w.data_ptr() for w in model.parameters()}
    assert mine.isdisjoint({w.data_ptr() for w in twin.parameters()})
    if model.config.tie_embeddings:
        assert_tied(twin)
    before = [weight.detach().clone() for weight in model.parameters()]
    one_step(twin)
    for weight, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(weight, old), "the original moved with its copy"
    one_step(model)
    assert_same_model(twin, model)
    if model.config.tie_embeddings:
        assert_tied(twin)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("overwrite", [False, True], ids=["in place", "overwritten"])
def test_a_tie_survives_another_dtype(dtype, overwrite):
    """Rounded once, in all three places alike, and one gradient step later too."""
    model = small_model()
    roads = [overwriting(model, dtype, torch.float64)] if overwrite else [
        copy.deepcopy(model).to(dtype).double(),
        copy.deepcopy(model).half().double() if dtype == torch.float16
        else copy.deepcopy(model).to(dtype=dtype).to(torch.float64),
    ]  # fmt: skip
    for twin in roads:
        for (name, ours), theirs in zip(
            twin.named_parameters(), model.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs.to(dtype).double()), name
        assert_tied(twin)
        one_step(twin)
        assert_tied(twin)
    low = copy.deepcopy(model).to(dtype)
    assert low.output_weight.dtype == dtype
    assert_tied(low)


def test_a_tied_model_built_on_meta_is_tied_once_it_is_filled():
    with torch.device("meta"):
        model = Transformer(small_config(), generator=seeded(3))
    assert_tied(model)
    model = model.to_empty(device="cpu")
    assert_tied(model)
    model.reset_parameters(seeded(3))
    assert_tied(model)
    twin = Transformer(small_config(), generator=seeded(3))
    assert_same_model(model.eval(), twin.eval())


@variant
def test_the_state_holds_each_weight_once(changes):
    """What a format without shared memory has to write: one copy, by its address.

    Reduced to one name for each address, as such formats do, it loads again, and only
    the second name of the tied matrix is missing.
    """
    model = small_model(**changes)
    state = model.state_dict()
    named = dict(model.named_parameters(remove_duplicate=False))
    assert state.keys() == named.keys()  # weights, no tables, no counters
    addresses: dict[int, list[str]] = {}
    for name, weight in state.items():
        assert weight.is_contiguous(), name
        assert weight.storage_offset() == 0, name
        assert weight.untyped_storage().nbytes() == weight.nbytes, name
        addresses.setdefault(weight.data_ptr(), []).append(name)
    shared = [names for names in addresses.values() if len(names) > 1]
    assert shared == ([list(TIED)] if model.config.tie_embeddings else [])
    assert len(addresses) == len(list(model.parameters()))
    assert sum(state[names[0]].numel() for names in addresses.values()) == (
        parameter_count(model.config)
    )
    once = {names[0]: state[names[0]].clone() for names in addresses.values()}
    other = another(model)
    result = other.load_state_dict(once, strict=False)
    assert result.unexpected_keys == []
    assert result.missing_keys == [name for names in shared for name in names[1:]]
    assert_same_model(other, model)


def test_a_saved_file_holds_the_tied_matrix_once():
    config = small_config(
        source_vocab_size=2000, target_vocab_size=2000, n_layers=1, d_model=32
    )
    model = Transformer(config)
    size = len(bytes_of(model.state_dict()).getvalue())
    needed = 4 * parameter_count(config)
    assert needed < size < needed + 32 * 1024
    assert size < needed + 4 * 2000 * 32  # a second copy of the matrix


# --- a checkpoint that does not fit ---------------------------------------------------


def refused(model: Transformer, state, message: str, **how) -> None:
    """An error that says what to do, before a weight has changed."""
    before = {n: w.clone() for n, w in model.state_dict().items()}
    given = {n: w.clone() for n, w in state.items()}
    ids = [id(p) for p in model.parameters()]
    with pytest.raises(ValueError, match=message):
        model.load_state_dict(state, **how)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), f"{name} changed all the same"
    assert [id(p) for p in model.parameters()] == ids
    assert state.keys() == given.keys()
    assert all(torch.equal(state[name], weight) for name, weight in given.items())


def untied_state(**changes) -> dict[str, Tensor]:
    return small_model(seed=5, tie_embeddings=False, **changes).state_dict()


@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "loose"])
def test_two_matrices_cannot_be_loaded_into_a_tied_one(strict, assign):
    """The last to be read would win, and the model be neither of the two."""
    state = untied_state()
    del state["output_projection.weight"]  # every name fits
    how = {"strict": strict, "assign": assign}
    refused(small_model(), state, "ti(e|ed|es)", **how)
    one_number = dict(small_model(seed=5).state_dict())
    one_number[TIED[1]] = one_number[TIED[1]].clone()
    one_number[TIED[1]][3, 2] += 1e-9
    refused(small_model(), one_number, "ti(e|ed|es)", **how)
    equal = {n: w.clone() for n, w in small_model(seed=5).state_dict().items()}
    model = small_model()
    model.load_state_dict(equal, **how)
    assert_same_model(model, small_model(seed=5))


def test_two_equal_matrices_need_not_be_numbers():
    """NaN of a run that went wrong, or nothing yet on ``meta``: still one matrix."""
    state = {n: w.clone() for n, w in small_model(seed=5).state_dict().items()}
    for name in TIED:
        state[name][4] = math.nan
    model = small_model()
    model.load_state_dict(state)
    assert model.output_weight[4].isnan().all()
    empty = {n: w.to("meta") for n, w in small_model().state_dict().items()}
    with torch.device("meta"):
        deferred = Transformer(small_config())
    deferred.load_state_dict(empty, assign=True)
    assert_tied(deferred)
    assert deferred.output_weight.dtype == torch.float64


@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_untied_state_is_refused_by_a_tied_model(norm_first, assign):
    state = untied_state(norm_first=norm_first)
    refused(small_model(norm_first=norm_first), state, "tie_embeddings", assign=assign)


def test_a_surplus_output_is_refused_and_nothing_changed():
    """Even when both embeddings are equal: the output may be another matrix."""
    state = small_model(seed=5).state_dict()
    state["output_projection.weight"] = state[TIED[0]] + 1
    refused(small_model(), state, "output_projection.*tie_embeddings=False")


@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_tied_state_is_refused_by_an_untied_model(norm_first, assign):
    state = small_model(seed=5, norm_first=norm_first).state_dict()
    model = small_model(tie_embeddings=False, norm_first=norm_first)
    refused(model, state, "tie_embeddings", assign=assign)


WRAPPERS = {
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "parallel": nn.DataParallel,
    "compiled, parallel": lambda m: nn.DataParallel(torch.compile(m, backend="eager")),
    "parallel, compiled": lambda m: torch.compile(nn.DataParallel(m), backend="eager"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False, "norm_first": True}])
def test_what_a_wrapper_saved_loads_into_the_plain_model(changes, assign, wrap):
    """nanoGPT#325, LLMs-from-scratch#580, eole#179: ``_orig_mod.`` before each name."""
    model = small_model(**changes)
    state = wrap(model).state_dict()
    assert all(n.startswith(("_orig_mod.", "module.")) for n in state)
    names = list(state)
    twin = another(model)
    twin.load_state_dict(copy.deepcopy(state), strict=True, assign=assign)
    assert list(state) == names
    assert_same_model(twin, model)
    one_step(twin)
    one_step(model)
    assert_same_model(twin, model)


@pytest.mark.filterwarnings("ignore")
def test_a_wrapper_hides_no_misfit():
    """Behind a prefix the same states are refused, and names are still checked."""
    tied, untied = small_model(), small_model(tie_embeddings=False)
    for model, other in ((tied, untied), (untied, tied)):
        state = {f"_orig_mod.{n}": w for n, w in other.state_dict().items()}
        refused(model, state, "tie_embeddings")
    half = {f"module.{n}": w for n, w in small_model(seed=5).state_dict().items()}
    half.pop("module.encoder_layers.1.feed_forward.inner.weight")
    refused(small_model(), half, r"encoder_layers\.1\.feed_forward\.inner.* is missing")


def test_layers_compiled_one_by_one_load_plainly():
    """torch.compile on a layer puts its name in the middle."""
    model, other = small_model(), small_model(seed=5)
    state = {
        n.replace("encoder_layers.0.", "encoder_layers.0._orig_mod."): w
        for n, w in other.state_dict().items()
    }
    assert state.keys() != model.state_dict().keys()
    model.load_state_dict(state)
    assert_same_model(model, other)


@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
def test_a_tie_is_checked_inside_another_module_too(assign):
    """A wrapper's own load_state_dict never calls the model's."""
    outer = nn.ModuleDict({"translator": small_model()})
    before = copy.deepcopy(outer)
    state = {f"translator.{n}": w for n, w in untied_state().items()}
    with pytest.raises(ValueError, match="of state_dict differ"):
        outer.load_state_dict(state, assign=assign)
    assert_same_model(outer["translator"], before["translator"])
    state = small_model(seed=5).state_dict()
    outer.load_state_dict({f"translator.{n}": w for n, w in state.items()})
    assert_same_model(outer["translator"], small_model(seed=5))


def test_names_and_shapes_that_do_not_fit_are_refused_before_any_is_copied():
    """Another depth, another width: loading says which names and shapes.

    A prefix before some of the names is no wrapper's, and stays.
    """
    model = small_model()
    some = {f"module.{n}" if "norm" in n else n: w
            for n, w in model.state_dict().items()}  # fmt: skip
    refused(model, some, r"norm\.weight is missing.*, and \d+ more")
    deeper = small_model(seed=5, n_layers=3).state_dict()
    refused(model, deeper, r"encoder_layers\.2.* is not of this model")
    pre = small_model(norm_first=True)
    refused(pre, model.state_dict(), r"encoder_norm\.weight is missing")
    wider = small_model(seed=5, d_ff=20).state_dict()
    for strict in (True, False):  # names may be left out, shapes must fit
        message = r"inner\.weight has shape \(20, 16\), not \(24, 16\)"
        refused(model, wider, message, strict=strict)
    model.load_state_dict(deeper, strict=False)


# --- constants ------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_sinusoids_are_never_weights(positions, norm_first):
    """transformers#29807, #31387, Informer2020#668, espnet#1060: re-drawn, trained,
    saved, of one length for ever."""
    changes = {"positions": positions, "norm_first": norm_first}
    model = small_model(max_len=8, **changes)
    learned = {"source_positions", "target_positions"}
    named = [n for n, _ in model.named_parameters()] + list(model.state_dict())
    assert not [n for n in named if n.split(".")[0] in learned]
    assert not list(model.source_positions.parameters())

    def added(model):
        zeros = torch.zeros(1, 8, 16, dtype=torch.float64)
        return model.source_positions(zeros)[0], model.target_positions(zeros)[0]

    table = torch.zeros(8, 16, dtype=torch.float64)
    if positions == "sinusoidal":
        for p, c in itertools.product(range(8), range(16)):
            angle = p / 10_000 ** ((c - c % 2) / 16)
            table[p, c] = math.cos(angle) if c % 2 else math.sin(angle)
    one_step(model)
    longer = small_model(seed=5, max_len=64, **changes)
    longer.load_state_dict(model.state_dict(), strict=True)
    half = copy.deepcopy(model).half().double()
    model.reset_parameters(seeded(8))
    for each in (model, longer, half, copy.deepcopy(longer)):
        for side in added(each):
            assert_same(side, table, 1e-12)
    plain_logits(longer, tokens(1, 64), tokens(1, 64))


def test_learned_positions_are_weights_of_their_side_and_length():
    model = small_model(positions="learned", max_len=8)
    names = {f"{side}_positions.weight" for side in ("source", "target")}
    assert names <= model.state_dict().keys()
    source, target = (model.state_dict()[name] for name in sorted(names))
    assert source.data_ptr() != target.data_ptr()
    assert not torch.equal(source, target)
    before = source.clone(), target.clone()
    one_step(model)
    assert not torch.equal(model.source_positions.weight, before[0])
    assert not torch.equal(model.target_positions.weight, before[1])
    longer = small_model(positions="learned", max_len=9)
    refused(longer, model.state_dict(), r"source_positions\.weight has shape \(8, 16\)")


def test_the_norms_are_over_one_token():
    """Every norm of every variant: the last axis alone, eps of the conventions."""
    for name, changes in VARIANTS.items():
        model = small_model(**changes)
        norms = [m for m in model.modules() if "norm" in type(m).__name__.lower()]
        layers = model.config.n_layers
        assert len(norms) == 5 * layers + 2 * model.config.norm_first, name
        for norm in norms:
            assert type(norm) is nn.LayerNorm
            assert norm.normalized_shape == (model.config.d_model,)
            assert norm.eps == 1e-5
            assert norm.weight is not None
            assert norm.bias is not None


# --- what comes out -------------------------------------------------------------------


@variant
def test_logits_mean_the_same_to_loss_and_search(changes):
    """annotated-transformer#105: the generator applied twice, or never.

    Raw scores (batch, length, V): one softmax makes them probabilities, for the loss
    and for both ways to decode. They are no log-probabilities already, and no states.
    """
    model = small_model(**changes)
    source, target = examples(model)
    logits = plain_logits(model, source, target)
    assert logits.shape == (3, 4, model.config.target_vocab_size)
    assert (logits.exp().sum(-1) - 1).abs().max() > 0.1
    log_p = logits - logits.exp().sum(-1, keepdim=True).log()
    assert_same(log_p.exp().sum(-1), torch.ones(3, 4))
    expected = torch.zeros((), dtype=torch.float64)
    for row, column in itertools.product(range(3), range(4)):
        expected -= log_p[row, column, target[row, column]] / 12
    settings = {"smoothing": 0.0, "pad_id": model.config.pad_id}
    assert_same(aiayn.label_smoothed_loss(logits, target, **settings), expected)
    pad = model.config.pad_id
    written = aiayn.greedy_decode(model, source, max_len=4, pad_id=pad).tolist()
    found = aiayn.beam_search(
        model, source, beam_size=2, n_best=2, max_len=3, pad_id=pad
    )
    for row in range(3):
        line = written[row]
        line = line[: line.index(2) + 1] if 2 in line else line
        scores = said(model, source[row], line)
        assert line == [step.index(max(step)) for step in scores]
        for hypothesis in found[row]:
            scores = said(model, source[row], hypothesis.tokens)
            expected = sum(
                step[token] - math.log(sum(map(math.exp, step)))
                for step, token in zip(scores, hypothesis.tokens, strict=True)
            )
            assert hypothesis.log_probability == pytest.approx(expected, rel=1e-9)


def said(model: Transformer, source: Tensor, tokens: list[int]) -> list[list[float]]:
    """What ``forward`` says before each of the tokens, one row of logits each."""
    read = torch.tensor([[1, *tokens[:-1]]])
    return plain_logits(model, source[None], read)[0].tolist()
