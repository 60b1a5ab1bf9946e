"""What later chapters plug in: a second attention class, caches, a store for a decoder.

The stores in seams.py are trivial; that they agree with the plain decoder shows that
the seams carry everything that a cache needs.
"""

import copy
import itertools

import pytest
import torch
from helpers import (
    DTYPES,
    assert_same,
    assert_same_rows,
    normal,
    padded,
    plain_logits,
    small_model,
    stir,
    tokens,
)
from seams import (
    ATTENTIONS,
    SHARING,
    DecoderStore,
    FrozenStore,
    GrowingStore,
    PairedAttention,
    loop_attention,
)
from test_attend import ATTENDS, EQUAL_SIZES, by_hand

from aiayn import MultiHeadAttention, Transformer, greedy_decode

KINDS = {
    "multi-head": {},
    "pre-norm": {"norm_first": True},
    "shared key heads": {"attention": PairedAttention, "n_kv_heads": 2},
    "one key head": {"attention": PairedAttention, "n_kv_heads": 1},
    "another attend": {"attend": loop_attention},
    "learned positions": {"positions": "learned"},
    "no positions": {"positions": "none"},
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)

SOURCES = [[3, 4, 5, 6, 2], [7, 2], [8, 9, 2]]
TARGETS = [[1, 9, 4], [1, 3, 5, 6, 7, 8], [1]]


def splits(length: int):
    """Every way to cut ``length`` tokens into successive pieces."""
    for cuts in range(2 ** (length - 1)):
        pieces, size = [], 1
        for place in range(length - 1):
            if cuts >> place & 1:
                pieces.append(size)
                size = 0
            size += 1
        yield [*pieces, size]


def cached_logits(model: Transformer, source, target, pieces) -> torch.Tensor:
    """The target fed to a cache piece by piece; the logits of all pieces."""
    store = DecoderStore(len(model.decoder_layers))
    with torch.no_grad():
        memory = model.encode(source)
        logits = []
        for piece in target.split(pieces, dim=1):
            past = len(store)
            logits.append(model.decode(piece, memory, source, cache=store))
            assert logits[-1].shape[:2] == piece.shape
            assert len(store) == past + piece.shape[1]
    return torch.cat(logits, dim=1)


def test_every_split_is_tried():
    assert sorted(splits(3)) == [[1, 1, 1], [1, 2], [2, 1], [3]]
    assert len(list(splits(6))) == 32


@each_kind
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_cached_equals_plain_at_every_split(kind, left):
    """nanoGPT#613, x-transformers#219, transformers#26344: "slightly different".

    Rows of unequal length, padding on either side, one to six tokens at a time.
    """
    model = small_model(**kind)
    source, target = padded(SOURCES, left=left), padded(TARGETS, left=left)
    plain = plain_logits(model, source, target)
    real = target != 0
    for pieces in splits(target.shape[1]):
        cached = cached_logits(model, source, target, pieces)
        assert_same(cached[real], plain[real])


def test_one_row_equals_its_row_in_a_batch():
    model = small_model()
    source, target = padded(SOURCES), padded(TARGETS, left=True)
    together = cached_logits(model, source, target, [2, 1, 3])
    for row, (ours, theirs) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        alone = cached_logits(
            model, torch.tensor([ours]), torch.tensor([theirs]), [1] * len(theirs)
        )
        assert_same(together[row, -len(theirs) :], alone[0])


@each_kind
@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1], [0, 0, 2, 2, 1]])
def test_reordered_rows_go_on_as_themselves(kind, rows):
    """Keys, values, padding and positions move together, to more rows or fewer."""
    model = small_model(**kind)
    source, target = padded(SOURCES, left=True), padded(TARGETS, left=True)
    plain = plain_logits(model, source[rows], target[rows])
    store = DecoderStore(2)
    with torch.no_grad():
        memory = model.encode(source)
        model.decode(target[:, :4], memory, source, cache=store)
        store.reorder(rows)
        new = model.decode(target[rows, 4:], memory[rows], source[rows], cache=store)
    real = (target != 0)[rows, 4:]
    assert_same(new[real], plain[:, 4:][real])


@each_kind
def test_greedy_with_a_cache_writes_the_same_tokens(kind):
    model = small_model(seed=2, tie_embeddings=False, **kind)
    source = tokens(30, 4)
    plain = greedy_decode(model, source, max_len=12)
    cached = greedy_decode(model, source, max_len=12, cache=DecoderStore(2))
    assert torch.equal(cached, plain)
    assert len({tuple(row) for row in plain.tolist()}) > 3


def test_greedy_with_a_cache_when_rows_end_at_different_times():
    """The stop must not disturb the rows that go on."""
    model = small_model(seed=2, tie_embeddings=False)
    source = tokens(60, 4)
    limits = 9 - torch.arange(60) % 3
    plain = greedy_decode(model, source, max_len=limits)
    cached = greedy_decode(model, source, max_len=limits, cache=DecoderStore(2))
    assert torch.equal(cached, plain)
    lengths = (plain != 0).sum(dim=1)
    assert len(set(lengths.tolist())) > 3


def test_a_used_cache_is_refused_and_unchanged():
    """keys_values#45, candle-vllm#6: the past of another sequence."""
    model = small_model()
    store = DecoderStore(2)
    source = padded(SOURCES)
    first = greedy_decode(model, source, max_len=5, cache=store)
    past = len(store)
    keys = store.layers[0].self_attention.keys.clone()
    with pytest.raises(ValueError, match="cache must be empty"):
        greedy_decode(model, source, max_len=5, cache=store)
    assert len(store) == past
    assert torch.equal(store.layers[0].self_attention.keys, keys)
    fresh = greedy_decode(model, source, max_len=5, cache=DecoderStore(2))
    assert torch.equal(first, fresh)


def test_a_frozen_store_projects_its_source_once():
    """Self-Forcing#78, transformers#31166: keys of the source at each step anew."""
    model = small_model(attention=PairedAttention)
    source, target = padded(SOURCES), tokens(3, 6)
    cached_logits(model, source, target, [1] * 6)
    for layer in model.decoder_layers:
        assert layer.cross_attention.projections == 1
        assert layer.self_attention.projections == 6
    for layer in model.encoder_layers:
        assert layer.self_attention.projections == 1


def test_each_layer_has_its_own_store():
    """x-transformers#187: state that reached the wrong layer."""
    model = small_model()
    source, target = padded(SOURCES), tokens(3, 4)
    store = DecoderStore(2)
    with torch.no_grad():
        memory = model.encode(source)
        model.decode(target[:, :3], memory, source, cache=store)
        swapped = copy.deepcopy(store)
        swapped.layers.reverse()
        right = model.decode(target[:, 3:], memory, source, cache=store)
        wrong = model.decode(target[:, 3:], memory, source, cache=swapped)
    assert (right - wrong).abs().max() > 1e-3


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("target", "source", "n_layers", "message"),
    [
        (tokens(3, 30), padded(SOURCES), 2, "length 33 exceeds max_len=32"),
        (tokens(2, 1), padded(SOURCES), 2, "must belong together"),
        (tokens(3, 1), tokens(3, 9), 2, "must belong together"),
        (tokens(3, 1), padded(SOURCES), 3, "cache must have 2 layers"),
        (tokens(3, 0), padded(SOURCES), 2, "target must be .batch, length."),
        (tokens(3, 1).double(), padded(SOURCES), 2, "target must hold integers"),
    ],
)
def test_a_refused_step_leaves_the_cache_as_it_was(target, source, n_layers, message):
    model = small_model().requires_grad_(False)
    memory = model.encode(padded(SOURCES))
    store = DecoderStore(2)
    model.decode(tokens(3, 3), memory, padded(SOURCES), cache=store)
    keys = [layer.self_attention.keys.clone() for layer in store.layers]
    store.layers += [copy.deepcopy(store.layers[0]) for _ in range(n_layers - 2)]
    with pytest.raises((ValueError, TypeError), match=message):
        model.decode(target, memory, source, cache=store)
    assert len(store) == 3
    for layer, before in zip(store.layers, keys, strict=False):
        assert torch.equal(layer.self_attention.keys, before)


# --- one attention --------------------------------------------------------------------


def test_a_cache_decides_when_to_project():
    """``forward`` hands over ``mix``, the split query, ``project``, mask and flag."""
    torch.manual_seed(0)
    module = MultiHeadAttention(8, 2).double()
    stir(module, seed=1)
    query, key = normal(2, 3, 8), normal(2, 5, 8, seed=1)
    mask = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    seen = {}

    class Recording:
        def attend(self, mix, query, project, mask=None, *, causal=False):
            seen.update(query=query, mask=mask, causal=causal, projected=project())
            return mix(query, *seen["projected"], mask, causal=causal)

    out = module(query, key, key, mask, causal=True, cache=Recording())
    assert torch.equal(out, module(query, key, key, mask, causal=True))
    assert seen["query"].shape == (2, 2, 3, 4)
    assert torch.equal(seen["query"][:, 1], module.query_projection(query)[..., 4:])
    assert seen["mask"] is mask
    assert seen["causal"] is True
    for ours, theirs in zip(seen["projected"], module.project(key, key), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_growing_store_of_one_attention(causal):
    torch.manual_seed(0)
    module = MultiHeadAttention(8, 2).double()
    x = normal(2, 6, 8)
    for pieces in splits(6):
        store, outputs, start = GrowingStore(), [], 0
        for piece in x.split(pieces, dim=1):
            end = start + piece.shape[1]
            full = module(x[:, :end], x[:, :end], x[:, :end], causal=causal)
            outputs.append(module(piece, piece, piece, causal=causal, cache=store))
            assert_same(outputs[-1], full[:, start:].detach())
            start = end
        assert store.keys.shape == (2, 2, 6, 4)


def test_frozen_store_never_asks_again():
    torch.manual_seed(0)
    module = PairedAttention(8, 2).double()
    query, key = normal(2, 4, 8), normal(2, 5, 8, seed=1)
    store = FrozenStore()
    plain = module(query, key, key)
    module.projections = 0
    for step in range(4):
        out = module(query[:, step : step + 1], key, key, cache=store)
        assert_same(out, plain[:, step : step + 1].detach())
    assert module.projections == 1


# --- a class of its own ---------------------------------------------------------------


def test_a_model_of_another_attention_class():
    """Every attention of the model is of the given class, with its settings."""
    model = small_model(attention=PairedAttention, n_kv_heads=2, bias=False)
    found = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    assert len(found) == 6
    for module in found:
        assert type(module) is PairedAttention
        assert module.n_kv_heads == 2
        assert module.key_projection.weight.shape == (8, 16)
        assert module.query_projection.bias is None


def test_as_many_key_heads_as_heads_is_multi_head_attention():
    """A second class with the same weights computes the same, to the last bit."""
    plain = small_model()
    other = small_model(seed=5, attention=PairedAttention, n_kv_heads=4)
    other.load_state_dict(plain.state_dict(), strict=True)
    source, target = padded(SOURCES), padded(TARGETS)
    assert torch.equal(
        plain_logits(other, source, target), plain_logits(plain, source, target)
    )


def test_a_function_that_makes_attentions_will_do():
    made = []

    def factory(d_model, n_heads, **settings):
        made.append((d_model, n_heads, settings))
        return MultiHeadAttention(d_model, n_heads, **settings)

    model = small_model(attention=factory, attend=loop_attention, d_k=3, d_v=5)
    expected = {"d_k": 3, "d_v": 5, "bias": True, "attend": loop_attention}
    assert made == [(16, 4, expected)] * 6
    assert plain_logits(model, tokens(1, 2), tokens(1, 2)).shape == (1, 2, 11)


def test_shared_key_heads_need_a_class_that_can():
    with pytest.raises(ValueError, match="n_kv_heads=2 .*GroupedQueryAttention"):
        small_model(n_kv_heads=2)


# --- every attention class ------------------------------------------------------------

each_attention = pytest.mark.parametrize("make", ATTENTIONS.values(), ids=ATTENTIONS)
each_attend = pytest.mark.parametrize("attend", ATTENDS.values(), ids=ATTENDS)


def built(make, d_model=8, n_heads=4, *, seed=0, **settings) -> MultiHeadAttention:
    torch.manual_seed(seed)
    module = make(d_model, n_heads, **settings).double()
    stir(module, seed=seed)
    return module


def by_heads(module, query, key, value, mask=None, *, causal=False) -> torch.Tensor:
    """What a class has to compute, head by head; its key heads serve runs of heads."""
    query = module.query_projection(query)
    keys, values = module.project(key, value)
    group = module.n_heads // keys.shape[1]
    heads = []
    for h, q in enumerate(query.split(module.d_k, dim=-1)):
        own = mask
        if mask is not None and mask.dim() > 2:
            own = mask[..., h if mask.shape[-3] > 1 else 0, :, :]
        k, v = keys[:, h // group], values[:, h // group]
        heads.append(by_hand(q, k, v, own, causal=causal))
    return module.output_projection(torch.cat(heads, dim=-1))


@each_attention
@each_attend
@pytest.mark.parametrize("widths", [{}, {"d_k": 3, "d_v": 5}], ids=["", "odd widths"])
def test_a_class_attends_head_by_head(make, attend, widths):
    """With every way to mix, unequal lengths, and a mask for each row and head."""
    module = built(make, attend=attend, **widths)
    query, key, value = (
        normal(2, 3, 8),
        normal(2, 5, 8, seed=1),
        normal(2, 5, 8, seed=2),
    )
    free = normal(2, 4, 3, 5, seed=3) > 0
    free[0, 1, 2] = False
    for mask, causal in itertools.product((None, free, free[0, 0]), (False, True)):
        expected = by_heads(module, query, key, value, mask, causal=causal)
        mixed = module(query, key, value, mask, causal=causal)
        assert_same(mixed.detach(), expected.detach())


@each_attention
@pytest.mark.parametrize("shape", EQUAL_SIZES.values(), ids=EQUAL_SIZES)
def test_a_class_takes_no_axis_of_a_mask_for_another(make, shape):
    """Rows, heads and places equally many: batch-major, not head-major."""
    module = built(make, 8, 4)
    shape = [4 if size == 3 else size for size in shape]
    x, mask = normal(4, 4, 8), normal(*shape, seed=6) > 0
    expected = by_heads(module, x, x, x, mask)
    assert_same(module(x, x, x, mask).detach(), expected.detach())


@each_attention
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_a_class_masks_one_sequence_like_many(make, causal):
    """transformers#46773, onnxruntime-genai#1639: masks skipped for one row."""
    module = built(make)
    x = normal(3, 6, 8)
    for row in range(3):
        short = module(*[x[row : row + 1, :3]] * 3, causal=causal).detach()
        for rows in ([row], [row, 0, 1], [0, row, 2], [1, 2, row]):
            place = rows.index(row)
            mask = torch.ones(len(rows), 1, 1, 6, dtype=torch.bool)
            mask[place, ..., 3:] = False
            mixed = module(*[x[rows]] * 3, mask, causal=causal).detach()
            assert_same(mixed[place : place + 1, :3], short)


@each_attention
def test_a_class_gives_the_same_in_every_mode_and_layout(make):
    """pytorch#97605, #97409, #97111: cut to the longest real length without gradients.

    Strided, expanded and plain inputs; in training and not; inputs left alone.
    """
    module = built(make)
    wide = normal(6, 2, 16)
    x = wide.transpose(0, 1)[..., ::2]
    key = normal(1, 6, 8, seed=1).expand(2, 6, 8)
    mask = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    mask[..., 0] = True  # both rows have real length 1
    inputs = [x, key, key, mask]
    copies = [y.clone(memory_format=torch.contiguous_format) for y in inputs]
    expected = module(*copies).detach()
    assert expected.shape == (2, 6, 8)
    for training in (True, False):
        for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
            with mode:
                mixed = module.train(training)(*inputs)
            assert_same(mixed.detach().clone(), expected, 1e-12)
    for y, before in zip(inputs, copies, strict=True):
        assert torch.equal(y, before)


@each_attention
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_class_in_every_dtype(make, dtype):
    """An empty row, hidden keys a hundred times as large: finite, and as in float64."""
    module = built(make, 16, 4).to(dtype)
    query = normal(2, 3, 16).to(dtype)
    key = normal(2, 5, 16, seed=1).to(dtype)
    key[:, 3:] *= 100.0
    mask = torch.tensor([True, True, True, False, False]).repeat(2, 1, 3, 1)
    mask[0, :, 1] = False
    mixed = module(query, key, key, mask)
    assert mixed.dtype == dtype
    mixed.float().square().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad.isfinite().all()
    module = module.double()
    expected = module(query.double(), key.double(), key.double(), mask).detach()
    nothing = module.output_projection.bias.detach()
    assert_same(expected[0, 1], nothing, 1e-12)
    assert_same(mixed.detach().double(), expected, 16 * torch.finfo(dtype).eps)


@each_attention
def test_weights_of_a_class_sum_to_one_over_the_keys(make):
    """PyTorch-NLP#2: rows, not columns; more keys than queries, so that it shows."""
    module = built(make)
    query, key = normal(2, 3, 8), normal(2, 5, 8, seed=1)
    mask = normal(2, 4, 3, 5, seed=3) > -0.5
    mask[0, 2, 1] = False
    weights = module.weights(query, key, mask).detach()
    assert weights.shape == (2, 4, 3, 5)
    assert (weights >= 0).all()
    assert not weights[~mask].any()
    assert_same(weights.sum(-1), mask.any(-1).double(), 1e-12)


@each_attention
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_class_under_vmap(make):
    """pytorch#151558, #188764: gradients of each row, each with a mask of its own."""
    module = built(make)
    weights = {name: w.detach() for name, w in module.named_parameters()}
    x, mask = normal(3, 4, 8), normal(3, 1, 4, 4, seed=5) > -0.5

    def loss(weights, x, mask):
        inputs = (x[None], x[None], x[None], mask[None])
        return torch.func.functional_call(module, weights, inputs).square().sum()

    gradient = torch.func.grad(loss)
    mapped = torch.vmap(gradient, (None, 0, 0))(weights, x, mask)
    looped = [gradient(weights, *row) for row in zip(x, mask, strict=True)]
    for name, ours in mapped.items():
        assert_same_rows(ours, [row[name] for row in looped])


@each_attention
def test_a_class_keeps_shapes_at_length_zero(make):
    module = built(make)
    x, empty = normal(2, 3, 8), normal(2, 0, 8)
    assert module(empty, x, x).shape == (2, 0, 8)
    assert_same(module(x, empty, empty), module.output_projection.bias.expand(2, 3, 8))
    assert module(normal(0, 3, 8), normal(0, 5, 8), normal(0, 5, 8)).shape == (0, 3, 8)


# --- classes whose heads share keys and values ----------------------------------------

each_sharing = pytest.mark.parametrize("kind", SHARING.values(), ids=SHARING)


@each_sharing
def test_neighbouring_heads_share(kind):
    """onnx#7274, NATTEN#92, llama#384: repeated by tiles, heads 0 and 2 shared."""
    module = kind(4, 4, n_kv_heads=2, bias=False)
    values = torch.tensor([10.0, 20.0])[None, :, None, None].expand(1, 2, 3, 1)
    keys = torch.zeros(1, 2, 3, 1)
    mixed = module.mix(torch.zeros(1, 4, 1, 1), keys, values)
    assert mixed.flatten().tolist() == [10.0, 10.0, 20.0, 20.0]


@each_sharing
@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_shared_heads_are_equal_heads_of_multi_head_attention(kind, n_kv_heads):
    """keras#23081; torchtune#38: a copy for each head computes the same.

    The gradient of a shared head is the sum over the heads that it serves.
    """
    module = built(kind, n_kv_heads=n_kv_heads)
    keys, _ = module.project(normal(3, 5, 8), normal(3, 5, 8))
    assert keys.shape == (3, n_kv_heads, 5, 2)
    group = 4 // n_kv_heads
    plain, state = MultiHeadAttention(8, 4).double(), module.state_dict()
    for name, x in state.items():
        if name.startswith(("key", "value")):
            parts = x.unflatten(0, (n_kv_heads, -1))
            state[name] = parts.repeat_interleave(group, 0).flatten(0, 1)
    plain.load_state_dict(state, strict=True)
    x, direction = normal(2, 5, 8), normal(2, 5, 8, seed=1)
    for attention in (module, plain):
        attention(x, x, x, causal=True).backward(direction)
    assert_same(module(x, x, x).detach(), plain(x, x, x).detach())
    for name, parameter in module.named_parameters():
        theirs = plain.get_parameter(name).grad
        if name.startswith(("key", "value")):
            theirs = theirs.unflatten(0, (n_kv_heads, group, -1)).sum(1).flatten(0, 1)
        assert_same(parameter.grad, theirs)
