"""Costs: every formula against a count, a search, or the layer itself."""

import dataclasses
import json
import math
from functools import partial
from importlib.resources import files
from itertools import product

import pytest
import torch
from helpers import seeded, small_config
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import aiayn
from aiayn import (
    MultiHeadAttention,
    attention,
    attention_flops,
    fused_attention,
    layer_cost,
    path_length,
    training_flops,
)
from aiayn.cost import (
    attention_layer,
    convolution_layer,
    layers_to_connect,
    recurrent_layer,
    restricted_layer,
)

NOTEBOOK = "08_cost"
SIZES = list(product((1, 7, 40), (8, 24)))  # n, d


def flops(run, *inputs):
    with FlopCounterMode(display=False) as counter:
        run(*inputs)
    return counter.get_total_flops()


# --- work -----------------------------------------------------------------------------


@pytest.mark.equation("eq-attention-flops")
@pytest.mark.parametrize("h", [1, 3])
@pytest.mark.parametrize(("n", "m", "d_k", "d_v"), [(5, 9, 4, 7), (1, 6, 8, 2)])
def test_attention_flops_are_counted(n, m, d_k, d_v, h):
    query, key, value = (torch.zeros(2, h, *s) for s in ((n, d_k), (m, d_k), (m, d_v)))
    one = attention_flops(n, m, n_heads=h, d_k=d_k, d_v=d_v)
    assert flops(attention, query, key, value) == 2 * one


def test_attention_flops_without_queries_or_keys():
    assert attention_flops(0, 5, d_k=4) == attention_flops(5, 0, d_k=4) == 0
    assert attention_flops(3, 5, d_k=4) == attention_flops(3, 5, d_k=4, d_v=4)


@pytest.mark.equation("eq-attention-layer")
@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize("h", [1, 4])
def test_attention_layer_is_counted(n, d, h):
    layer, x = MultiHeadAttention(d, h, attend=attention), torch.zeros(1, n, d)
    assert flops(layer, x, x, x) == 2 * attention_layer(n, d)


@pytest.mark.equation("eq-recurrent-layer")
@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize(("kind", "maps"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_recurrent_layer_is_counted_on_meta(n, d, kind, maps):
    """tnt#624: torch's counter sees an LSTM on the device meta only."""
    layer = kind(d, d, batch_first=True, device="meta")
    x = torch.zeros(1, n, d, device="meta")
    assert flops(layer, x) == 2 * recurrent_layer(n, d, maps)


@pytest.mark.equation("eq-recurrent-layer")
def test_the_step_loop_is_an_lstm_and_is_counted(notebook_function):
    step_loop = notebook_function(NOTEBOOK, "step_loop")
    lstm = nn.LSTM(8, 8, batch_first=True).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64, generator=seeded())
    torch.testing.assert_close(step_loop(lstm, x), lstm(x)[0], rtol=0, atol=1e-12)
    assert flops(step_loop, lstm, x[:1]) == 2 * recurrent_layer(6, 8, 4)


def test_the_counter_misses_fused_kernels_on_the_cpu():
    """pytorch#195460: 0 for torch's attention; when that changes, change the text."""
    x = torch.zeros(1, 2, 64, 16)
    assert flops(fused_attention, x, x, x) == 0
    assert flops(nn.LSTM(16, 16), x[0]) == 0
    meta = x.to("meta")
    assert flops(fused_attention, meta, meta, meta) == flops(attention, x, x, x) > 0


@pytest.mark.equation("eq-convolution-layer")
@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize(("k", "dilation"), [(1, 1), (3, 1), (3, 2), (4, 1)])
def test_convolution_layer_is_counted(n, d, k, dilation):
    layer = nn.Conv1d(d, d, k, dilation=dilation)
    padded = torch.zeros(1, d, n + (k - 1) * dilation)
    assert flops(layer, padded) == 2 * convolution_layer(n, d, k)


@pytest.mark.equation("eq-restricted-layer")
@pytest.mark.parametrize(("n", "r"), [(1, 1), (7, 1), (7, 3), (7, 7), (20, 6)])
def test_restricted_layer_is_counted(notebook_function, n, r):
    window = notebook_function(NOTEBOOK, "window_attention")
    layer = MultiHeadAttention(8, 2, attend=partial(window, width=r)).double()
    x = torch.randn(1, n, 8, dtype=torch.float64, generator=seeded())
    assert flops(layer, x, x, x) == 2 * restricted_layer(n, 8, r)
    place = torch.arange(n)
    allowed = (place <= place[:, None]) & (place > place[:, None] - r)
    expected = attention(x, x, x, allowed)
    torch.testing.assert_close(window(x, x, x, width=r), expected, rtol=0, atol=1e-12)


def test_a_window_wider_than_the_sequence_is_all_of_it():
    assert restricted_layer(10, 8, 64) == attention_layer(10, 8)
    assert layer_cost("restricted", 10, 8, width=64).path == 1


@pytest.mark.equation("res-crossovers")
@pytest.mark.parametrize("d", [1, 2, 17, 64, 512])
def test_crossovers(notebook_function, d):
    """Where attention becomes the dearer one, by the three comparisons."""
    for n in range(1, 8 * d):
        assert (n**2 * d >= n * d**2) == (n >= d)
        assert (attention_layer(n, d) >= recurrent_layer(n, d, 4)) == (n >= 2 * d)
        other = attention_layer(n, d) - 2 * n**2 * d + 2 * n * d * (4 * d)
        assert (2 * n**2 * d >= other) == (n >= 6 * d)
        assert (attention_layer(n, d) >= recurrent_layer(n, d, 3)) == (n >= d)
        assert attention_layer(n, d) > recurrent_layer(n, d, 1)
    crossover = notebook_function(NOTEBOOK, "crossover")
    lstm = partial(recurrent_layer, n_maps=4)
    assert crossover(attention_layer, lstm, d) == 2 * d
    assert crossover(lambda n, d: 0, lstm, d) is None


# --- waiting --------------------------------------------------------------------------


@pytest.mark.equation("res-sequential-operations")
@pytest.mark.parametrize("n", [2, 9, 30])
def test_products_in_a_row(notebook_function, n):
    chain = notebook_function(NOTEBOOK, "products_in_a_row")
    step_loop = notebook_function(NOTEBOOK, "step_loop")
    window = partial(notebook_function(NOTEBOOK, "window_attention"), width=2)
    x = torch.zeros(1, n, 8)
    for attend in (attention, window):
        layer = MultiHeadAttention(8, 2, attend=attend)
        assert chain(layer(x, x, x)) == 4
        twice = layer(x, x, x)
        assert chain(layer(twice, twice, twice)) == 8
    assert chain(nn.Conv1d(8, 8, 3, padding=1)(x.mT)) == 1
    assert chain(step_loop(nn.LSTM(8, 8, batch_first=True), x)) == n


def test_products_in_a_row_takes_the_longest_way(notebook_function):
    chain = notebook_function(NOTEBOOK, "products_in_a_row")
    a = torch.eye(3, requires_grad=True)
    short, long = a @ a, ((a @ a) @ a) @ a
    assert chain(short + long) == chain(long + short) == 3
    assert chain((a + a).exp()) == 0


# --- distance -------------------------------------------------------------------------


def by_relaxation(graph, pairs):
    """Path lengths without a search: relax every arrow until nothing changes."""
    nodes = {*graph, *(s for sources in graph.values() for s in sources)}
    nodes |= {node for pair in pairs for node in pair}
    longest = 0
    for start, output in pairs:
        steps = dict.fromkeys(nodes, math.inf) | {start: 0}
        for _ in nodes:
            for node, sources in graph.items():
                for source in sources:
                    steps[node] = min(steps[node], steps[source] + 1)
        longest = max(longest, steps[output])
    return longest


@pytest.mark.parametrize("seed", range(30))
def test_path_length_on_random_graphs(seed):
    generator = seeded(seed)
    arrows = torch.rand(9, 9, generator=generator) < 0.25
    graph = {
        i: [j for j in range(i) if arrows[i, j]]
        for i in range(9)
        if arrows[i, :i].any()
    }
    pairs = [(j, i) for i in range(5, 9) for j in range(3)]
    for some in (pairs, pairs[:1], pairs[4:7]):
        assert path_length(graph, some) == by_relaxation(graph, some)


def test_path_length_of_known_graphs():
    n = 12
    recurrent = {("h", t): [("x", t), ("h", t - 1)] for t in range(1, n + 1)}
    inputs = [("x", t) for t in range(1, n + 1)]
    assert path_length(recurrent, [(x, ("h", n)) for x in inputs]) == n
    look_up = {("y", i): inputs for i in range(n)}
    assert path_length(look_up, product(inputs, look_up)) == 1
    assert path_length({}, [(0, 0)]) == 0
    assert path_length({1: [0]}, [(1, 0)]) == math.inf
    assert path_length({1: [0], 2: [3]}, [(0, 1), (0, 2)]) == math.inf
    assert path_length({1: iter([0])}, [(0, 1)]) == 1
    assert path_length({1: [0, 1], 0: [1]}, [(2, 0)]) == math.inf  # a circle ends


@pytest.mark.equation("eq-layers-to-connect")
@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("dilated", [False, True])
def test_layers_to_connect_by_reachability(notebook_function, width, dilated):
    """Multiply the layers' matrices of who sees whom until none of the past is 0."""
    searched = notebook_function(NOTEBOOK, "searched")
    for n in (1, 2, 3, 8, 9, 10, 25, 28):
        place = torch.arange(n)
        back = place[:, None] - place[None, :]
        reach, n_layers = torch.eye(n), 0
        while n_layers == 0 or not reach[back >= 0].all():
            gap = width**n_layers if dilated else 1
            layer = (back >= 0) & (back <= (width - 1) * gap) & (back % gap == 0)
            reach = (layer.float() @ reach > 0).float()
            n_layers += 1
        assert layers_to_connect(n, width, dilated=dilated) == n_layers
        if n < 10:
            assert searched(n, width, dilated) == n_layers


def test_dilated_layers_at_exact_powers():
    """A logarithm in floats gives 6 for 3⁵: math.log(243, 3) is 4.999…, or above 5."""
    for width, power in product((2, 3, 5, 7, 10), range(1, 8)):
        assert layers_to_connect(width**power, width, dilated=True) == power
        assert layers_to_connect(width**power + 1, width, dilated=True) == power + 1


# --- the table ------------------------------------------------------------------------


def test_layer_cost_is_table_1():
    n, d = 100, 64
    cost = {
        name: dataclasses.astuple(layer_cost(name, n, d, width=width))
        for name, width in (
            ("attention", None),
            ("restricted", 5),
            ("plain", None),
            ("gru", None),
            ("lstm", None),
            ("convolution", 3),
            ("dilated", 3),
        )
    }
    assert cost == {
        "attention": (4 * n * d * d + 2 * n * n * d, n * n * d, 1, 1),
        "restricted": (4 * n * d * d + 2 * 5 * n * d, 5 * n * d, 1, 25),
        "plain": (2 * n * d * d, n * d * d, n, n),
        "gru": (6 * n * d * d, n * d * d, n, n),
        "lstm": (8 * n * d * d, n * d * d, n, n),
        "convolution": (3 * n * d * d, 3 * n * d * d, 1, 50),
        "dilated": (3 * n * d * d, 3 * n * d * d, 1, 5),
    }


# --- memory ---------------------------------------------------------------------------


@pytest.mark.equation("eq-score-bytes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_score_bytes(notebook_function, dtype):
    score_bytes = notebook_function(NOTEBOOK, "score_bytes")
    query, key = (
        torch.zeros(2, 3, 5, 4, dtype=dtype),
        torch.zeros(2, 3, 7, 4, dtype=dtype),
    )
    weights = aiayn.attention_weights(query, key)
    assert score_bytes(2, 3, 5, 7, query.element_size()) == weights.nbytes


def test_kept_bytes_finds_what_is_kept(notebook_function):
    kept_bytes = notebook_function(NOTEBOOK, "kept_bytes")
    x = torch.zeros(10, 6, requires_grad=True)
    assert kept_bytes(lambda x: x.exp(), x) == 10 * 6 * 4  # its result
    assert kept_bytes(lambda x: x + 1, x) == 0
    assert kept_bytes(lambda x: x * x, x) == 10 * 6 * 4  # both factors, one memory


@pytest.mark.equation("res-state-bytes")
@pytest.mark.parametrize("d", [8, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_is_worth_one_token(d, dtype):
    model = aiayn.RecurrentSeq2Seq(11, 11, d, generator=seeded()).to(dtype).eval()
    cache, source = aiayn.RecurrentCache(), torch.tensor([[3, 4]])
    with torch.no_grad():
        memory = model.encode(source)
        for n in range(1, 5):
            model.decode(torch.tensor([[1]]), memory, source, cache=cache)
            layer, x = (
                MultiHeadAttention(d, 2).to(dtype),
                torch.zeros(1, n, d, dtype=dtype),
            )
            kept = sum(part.nbytes for part in layer.project(x, x))
            assert cache.nbytes == 2 * d * dtype.itemsize
            assert kept == n * cache.nbytes


# --- training -------------------------------------------------------------------------


@pytest.mark.equation("eq-available-flops")
def test_table_2_is_time_times_capacity(notebook_function):
    available = notebook_function(NOTEBOOK, "available_flops")
    assert available(12 * 60 * 60) == pytest.approx(3.2832e18, rel=1e-12)
    assert available(3.5 * 24 * 60 * 60) == pytest.approx(2.29824e19, rel=1e-12)
    assert available(10, n_devices=3, per_second=2.0) == 60


@pytest.mark.equation("eq-training-flops")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"d_k": 3, "d_v": 5},
        {"tie_embeddings": False, "target_vocab_size": 19},
        {"n_layers": 1, "norm_first": True, "bias": False},
        {"positions": "learned"},
    ],
    ids=str,
)
def test_training_flops_are_counted(changes):
    config = small_config(dropout=0.0, **changes)
    model = aiayn.Transformer(config, attend=attention, generator=seeded())
    source, target = torch.full((3, 7), 3), torch.full((3, 5), 3)
    found = flops(lambda: model(source, target).sum().backward())
    assert found == 3 * training_flops(config, 7, 5)
    inside = sum(
        attention_flops(n, m, n_heads=4, d_k=config.d_k or 4, d_v=config.d_v or 4)
        for n, m in ((7, 7), (5, 5), (5, 7))
    )
    without = training_flops(config, 7, 5, scores=False)
    assert training_flops(config, 7, 5) - without == 3 * config.n_layers * inside


def test_shared_key_heads_are_cheaper():
    """Of four projections, those of keys and values shrink with the key heads."""
    few, all_heads = small_config(n_kv_heads=1), small_config()
    saved = 2 * 16 * (16 - 4) * 2  # two projections from 16 to 4 columns, in FLOPs
    n_source, n_target, n_layers = 7, 5, 2
    keys = n_source + n_target + n_source  # encoder, decoder, cross-attention
    difference = training_flops(all_heads, 7, 5) - training_flops(few, 7, 5)
    assert difference == 3 * n_layers * keys * saved


def test_utilisation_of_the_papers_models():
    for config, steps, seconds, share in (
        (aiayn.TransformerConfig.base(37_000), 100_000, 12 * 3600, 0.288),
        (aiayn.TransformerConfig.big(37_000), 300_000, 84 * 3600, 0.419),
    ):
        needed = steps * training_flops(config, 25_000, 25_000, scores=False)
        assert needed / (seconds * 8 * 9.5e12) == pytest.approx(share, abs=5e-4)


# --- the clock ------------------------------------------------------------------------


def test_the_stored_times_are_whole():
    """Each row has every contender, and quartiles stand in order around the median."""
    path = files("aiayn.book").joinpath("data/layer_times.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    names = ["attention", "attention, the equation", "nn.LSTM", "nn.GRU"]
    names.append("LSTM, step by step")
    lengths = {1: [2**i for i in range(4, 13)], 8: [2**i for i in range(4, 11)]}
    for batch, expected in lengths.items():
        rows = [row for row in record["rows"] if row["batch"] == batch]
        assert [row["n"] for row in rows] == expected
        for row in rows:
            assert list(row["seconds"]) == names
            assert list(row["ratio to attention"]) == names[1:]
            for name, (low, middle, high) in row["ratio to attention"].items():
                assert 0 < low <= middle <= high
                # the ratio of medians is not the median of ratios, but near it
                ratio = row["seconds"][name] / row["seconds"]["attention"]
                assert ratio == pytest.approx(middle, rel=0.5)
    assert record["threads"] == 1
    assert {"machine", "date", "torch", "d_model"} <= record.keys()


def test_the_readers_own_measurement(notebook_function, capsys):
    notebook_function(NOTEBOOK, "compare_here")(lengths=(4, 8), d=8, turns=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["n = 4", "n = 8"]
    for line in lines:
        middle, rest = line.split(": ")[1].split(" (")
        low, high = map(float, rest.rstrip(")").split(" to "))
        assert 0 < low <= float(middle) <= high
