"""One result on every road: compiled, exported, traced, mapped over models.

``torch.compile`` runs with the backend "eager": what breaks is the capture of the
program (a branch on what a tensor holds, a length that became a constant), and that is
the same for every backend. ``fullgraph`` turns each graph break into an error.
"""

import importlib
import sys
from dataclasses import asdict

import pytest
import torch
from helpers import (
    assert_same,
    assert_same_rows,
    normal,
    padded,
    plain_logits,
    small_config,
    small_model,
    stir,
    tokens,
)
from seams import loop_attention
from test_attend import ATTENDS
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from aiayn import Transformer, flash_attention

# whose Python loop runs over a length: no one graph can hold every length
LOOPS = (loop_attention, flash_attention)
TRACEABLE = {name: f for name, f in ATTENDS.items() if f not in LOOPS}

LENGTHS = (5, 1, 9)
pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # vmap, loops
]
each_attend = pytest.mark.parametrize("attend", TRACEABLE.values(), ids=TRACEABLE)


@pytest.fixture
def compile_whole():
    """``torch.compile`` of one graph for all lengths, with nothing left behind."""
    torch.compiler.reset()
    yield lambda f: torch.compile(f, backend="eager", fullgraph=True, dynamic=True)
    torch.compiler.reset()


@pytest.fixture
def bare(compile_whole):
    """The package as users import it: dynamo cannot look through the shape checks."""
    ours = {name: m for name, m in sys.modules.items() if name.split(".")[0] == "aiayn"}
    finders = sys.meta_path[:]
    for name in ours:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in finders if "jaxtyping" not in type(f).__module__]
    yield importlib.import_module("aiayn")
    sys.meta_path[:] = finders
    for name in [n for n in sys.modules if n.split(".")[0] == "aiayn"]:
        del sys.modules[name]
    sys.modules.update(ours)


def attention_inputs(length: int, *, n_keys: int | None = None):
    n_keys = n_keys or length
    shapes = ((length, 4), (n_keys, 4), (n_keys, 4))
    return [normal(2, 3, *shape, seed=i) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize(
    ("attend", "masked"),
    [
        pytest.param(attend, masked, id=f"{name}{'-masked' * masked}")
        for name, attend in TRACEABLE.items()
        for masked in (False, True)
    ],
)
def test_one_compiled_attention_for_every_length(attend, masked, compile_whole):
    """pytorch#139424, #148545, transformers#36374: NaN at the second length.

    A flag computed from lengths (``is_causal = n_queries > 1``) is a symbol here.
    """
    compiled = compile_whole(attend)
    for length in LENGTHS:
        inputs = attention_inputs(length)
        mask = normal(length, length, seed=3) > 0 if masked else None
        expected = attend(*inputs, mask, causal=True)
        assert_same(compiled(*inputs, mask, causal=True), expected, 1e-12)


@each_attend
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_one_traced_attention_for_every_length(attend, masked, causal):
    """The graph that one call leaves behind is right for other lengths too."""

    def call(query, key, value, mask):
        return attend(query, key, value, mask if masked else None, causal=causal)

    def inputs(n_queries, n_keys):
        mask = normal(n_queries, n_keys, seed=3) > 0
        return *attention_inputs(n_queries, n_keys=n_keys), mask

    graph = make_fx(call, tracing_mode="symbolic")(*inputs(5, 7))
    for n_queries, n_keys in ((5, 7), (2, 9), (6, 4)):
        given = inputs(n_queries, n_keys)
        assert_same(graph(*given), call(*given), 1e-12)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_tiles(bare, backend):
    """A graph for each length, for its tiles are unrolled; no break, both ways."""

    def attend(query, key, value):
        options = {"causal": True, "block_size": (2, 3)}
        return bare.flash_attention(query, key, value, **options)

    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    for length in (5, 3):
        inputs = [x.requires_grad_() for x in attention_inputs(length)]
        with torch.no_grad():
            assert_same(compiled(*inputs), attend(*inputs), 1e-12)
        upstream = normal(2, 3, length, 4, seed=4)
        pair = [
            torch.autograd.grad(f(*inputs), inputs, upstream)
            for f in (compiled, attend)
        ]
        for ours, theirs in zip(*pair, strict=True):
            assert_same(ours, theirs, 1e-12)


def test_one_compiled_model_for_every_length(bare, compile_whole):
    """With padding and without, source and target of lengths of their own."""
    config = small_config(n_layers=1)
    model = bare.Transformer(bare.TransformerConfig(**asdict(config))).double().eval()
    stir(model, seed=1)
    compiled = compile_whole(model)
    for length in LENGTHS:
        source, target = tokens(3, length + 1), tokens(3, length, seed=1)
        source[1, -1] = target[2, -1] = 0
        expected = plain_logits(model, source, target)
        assert_same(plain_logits(compiled, source, target), expected)


def test_one_compiled_encoding_for_every_length(bare, compile_whole):
    encoding = bare.PositionalEncoding(4, max_len=9)
    compiled = compile_whole(encoding)
    for length in LENGTHS:
        x, places = normal(2, length, 4), torch.arange(length).flip(0)[None]
        assert_same(compiled(x), encoding(x), 1e-12)
        assert_same(compiled(x, places), encoding(x, places), 1e-12)


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned"])
def test_one_exported_model_for_every_length(positions):
    """``torch.export`` keeps one graph and refuses what it was not traced for."""
    model = small_model(n_layers=1, positions=positions)
    auto = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    exported = torch.export.export(
        model, (tokens(2, 5), tokens(2, 6)), dynamic_shapes=(auto, auto)
    ).module()
    for rows, length in ((2, 5), (3, 2), (4, 9)):
        source, target = tokens(rows, length), tokens(rows, length + 3, seed=1)
        source[1, -1] = target[0, -1] = 0
        expected = plain_logits(model, source, target)
        assert_same(plain_logits(exported, source, target), expected)


def test_many_models_as_one():
    """``vmap`` over the weights of three models gives what each of them gives."""
    models = [small_model(seed=s, tie_embeddings=False, n_layers=1) for s in range(3)]
    state = torch.func.stack_module_state(models)
    empty = Transformer(models[0].config).to("meta").eval()
    source, target = padded([[3, 4, 5, 2], [6, 2]]), padded([[1, 9, 4], [1, 3]])

    def call(weights, buffers):
        return torch.func.functional_call(empty, (weights, buffers), (source, target))

    expected = [plain_logits(model, source, target) for model in models]
    assert_same_rows(torch.vmap(call)(*state).detach(), expected)


def test_gradients_of_each_sentence():
    """``vmap`` over ``grad``: what one row asks of the weights, for all rows."""
    model = small_model(n_layers=1)
    weights = {name: w.detach() for name, w in model.named_parameters()}
    source, target = padded([[3, 4, 5, 2], [6, 2]]), padded([[1, 9, 4], [1, 3]])

    def loss(weights, source, target):
        inputs = source[None], target[None]
        logits = torch.func.functional_call(model, weights, inputs)
        return (logits.square().sum(-1) * (target != 0)).sum()

    gradient = torch.func.grad(loss)
    mapped = torch.vmap(gradient, (None, 0, 0))(weights, source, target)
    for row in range(2):
        real = source[row][source[row] != 0], target[row][target[row] != 0]
        alone = gradient(weights, *real)
        for name, ours in mapped.items():
            assert_same(ours[row], alone[name], 1e-9)


@pytest.mark.parametrize("norm_first", [False, True])
def test_every_mode_gives_the_same_logits(norm_first):
    """pytorch#97605, #97409, #97111: another shape or value without gradients.

    Rows of real length 1 in a batch of length 6: nothing is cut off.
    """
    model = small_model(norm_first=norm_first, dropout=0.0)
    source, target = padded([[3], [4, 5, 0, 0, 0, 0]]), padded([[1], [1, 0, 0, 0, 0]])
    before = source.clone(), target.clone()
    real, results = target != 0, []
    for training in (True, False):
        for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
            with mode:
                logits = model.train(training)(source, target)
            assert logits.shape == (2, 5, 11)
            assert logits.requires_grad == isinstance(mode, torch.enable_grad)
            results.append(logits.detach().clone())
    for logits in results:
        assert_same(logits[real], results[0][real], 1e-12)
    assert torch.equal(source, before[0])
    assert torch.equal(target, before[1])


@each_attend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_hides_as_well(attend, dtype):
    """Weights in float32, products in half: masked, finite, close, both ways."""
    model = small_model(attend=attend, dtype=torch.float32)
    source, target = padded([[3, 4, 5, 2], [6, 2], []]), padded([[1, 9, 4], [1, 3], []])
    expected = plain_logits(model, source, target)
    with torch.autocast("cpu", dtype=dtype):
        logits = model(source, target)
        longer = model(nn.functional.pad(source, (0, 3)), target)
    tolerance = 32 * torch.finfo(dtype).eps
    scale = expected.abs().max()
    assert_same(logits.detach().float() / scale, expected / scale, tolerance)
    assert_same(longer.detach()[:2], logits.detach()[:2], tolerance)
    logits.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
