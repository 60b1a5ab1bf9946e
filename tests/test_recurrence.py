"""Recurrence: the step, the encoder-decoder, its cache, and the chapter's claims."""

import math

import pytest
import torch
from helpers import assert_same, normal, padded, seeded, tokens
from torch import nn

import aiayn
from aiayn import BOS, PAD, RecurrentCache, RecurrentSeq2Seq, lstm_step
from aiayn.recurrence import RecurrentConfig, read_tokens

CHAPTER = "01_recurrence"
VOCAB = 11


def small_recurrent(*, seed=0, n_layers=2, dtype=torch.float64, **settings):
    """A small model in evaluation mode with biases away from 0."""
    settings = {"d_model": 8, "dropout": 0.0, **settings}
    sizes = settings.pop("sizes", (VOCAB, VOCAB))
    model = RecurrentSeq2Seq(
        *sizes, n_layers=n_layers, generator=seeded(seed), **settings
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.add_(
                    normal(*parameter.shape, seed=seed + 1).to(parameter) / 2
                )
    return model.to(dtype).eval()


@torch.no_grad()
def lively(model, factor=4.0):
    """Larger weights: a freshly drawn model writes one token for ever."""
    for name, parameter in model.named_parameters():
        if "weight_" in name or "projection" in name:
            parameter.mul_(factor)
    return model


def by_hand(model, source_row, target_row):
    """Logits of one row, from its real tokens alone, one LSTM step after another."""
    config = model.config

    def step(lstm, token_vector, state):
        x, new = token_vector, []
        for layer, (hidden, cell) in enumerate(state):
            weight = lambda name, layer=layer: getattr(lstm, f"{name}_l{layer}")
            a = weight("weight_ih") @ x + weight("weight_hh") @ hidden
            a = a + weight("bias_ih") + weight("bias_hh")
            i, f, g, o = (a[k * len(hidden) : (k + 1) * len(hidden)] for k in range(4))
            sigmoid = lambda z: 1 / (1 + (-z).exp())
            cell = sigmoid(f) * cell + sigmoid(i) * g.tanh()
            x = sigmoid(o) * cell.tanh()
            new.append((x, cell))
        return new

    zeros = torch.zeros(config.d_model, dtype=torch.float64)
    state = [(zeros, zeros)] * config.n_layers
    for token in source_row:
        if token != config.pad_id:
            state = step(model.encoder, model.source_embedding.weight[token], state)
    logits = []
    for token in target_row:
        if token != config.pad_id:
            state = step(model.decoder, model.target_embedding.weight[token], state)
        logits.append(model.output_projection.weight @ state[-1][0])
    return torch.stack(logits)


# --- the equations --------------------------------------------------------------------


@pytest.mark.equation("eq-recurrent-step")
def test_the_plain_step(notebook_function):
    """One unit at a time, with Python's own tanh."""
    step = notebook_function(CHAPTER, "recurrent_step")
    x, hidden, bias = normal(3), normal(4, seed=1), normal(4, seed=2)
    weights = normal(3, 4, seed=3), normal(4, 4, seed=4)
    expected = [
        math.tanh(
            sum(x[i].item() * weights[0][i, j].item() for i in range(3))
            + sum(hidden[i].item() * weights[1][i, j].item() for i in range(4))
            + bias[j].item()
        )
        for j in range(4)
    ]
    assert_same(step(x, hidden, *weights, bias), expected)


@pytest.mark.equation("eq-lstm")
@pytest.mark.parametrize(("d_input", "width", "batch"), [(3, 5, ()), (4, 4, (2, 3))])
def test_the_lstm_step_is_torchs(d_input, width, batch):
    cell = nn.LSTMCell(d_input, width, dtype=torch.float64)
    x, hidden, memory = normal(*batch, d_input), *normal(2, *batch, width, seed=1)
    flat = lambda t: t.reshape(-1, t.shape[-1])
    expected = cell(flat(x), (flat(hidden), flat(memory)))
    found = lstm_step(
        x, hidden, memory, cell.weight_ih, cell.weight_hh, cell.bias_ih + cell.bias_hh
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(flat(ours.detach()), theirs.detach())


@pytest.mark.equation("eq-lstm")
def test_the_lstm_step_gate_by_gate():
    """One unit, four gates with different inputs: none can stand for another."""
    input_weight = torch.tensor([[1.0], [2.0], [-1.0], [0.5]], dtype=torch.float64)
    hidden_weight = torch.tensor([[0.3], [-0.2], [0.7], [0.1]], dtype=torch.float64)
    bias = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    x, h, c = (torch.tensor([v], dtype=torch.float64) for v in (0.5, -0.4, 2.0))
    sigmoid = lambda z: 1 / (1 + math.exp(-z))
    i = sigmoid(0.5 * 1 - 0.4 * 0.3 + 0.1)
    f = sigmoid(0.5 * 2 + 0.4 * 0.2 + 0.2)
    g = math.tanh(-0.5 - 0.4 * 0.7 + 0.3)
    o = sigmoid(0.5 * 0.5 - 0.4 * 0.1 + 0.4)
    hidden, cell = lstm_step(x, h, c, input_weight, hidden_weight, bias)
    assert cell.item() == pytest.approx(f * 2.0 + i * g, abs=1e-12)
    assert hidden.item() == pytest.approx(o * math.tanh(f * 2.0 + i * g), abs=1e-12)


@pytest.mark.equation("res-gradient-bound")
@pytest.mark.parametrize("scale", [0.5, 0.9, 1.5])
def test_the_gradient_is_a_product_and_bounded(notebook_function, scale):
    product_of = notebook_function(CHAPTER, "jacobian_product")
    step = notebook_function(CHAPTER, "recurrent_step")
    weights = normal(4, 6), normal(6, 6, seed=1)
    norm = lambda m: torch.linalg.matrix_norm(m, ord=2)
    weights = weights[0], scale * weights[1] / norm(weights[1])
    xs, bias = normal(9, 4, seed=2), normal(6, seed=3)
    first = torch.zeros(6, dtype=torch.float64).requires_grad_()
    states = [first]
    for x in xs:
        states.append(step(x, states[-1], *weights, bias))
    by_autograd = torch.stack(
        [torch.autograd.grad(part, first, retain_graph=True)[0] for part in states[-1]]
    )
    product = product_of(torch.stack(states).detach(), weights[1])
    assert_same(product, by_autograd)
    factors = [
        norm(torch.diag(1 - state.detach() ** 2) @ weights[1].T) for state in states[1:]
    ]
    assert norm(product) <= math.prod(factors) * (1 + 1e-12)
    assert math.prod(factors) <= scale**9 * (1 + 1e-12)


@pytest.mark.equation("res-state-capacity")
def test_states_bound_what_can_be_copied(notebook_function):
    """Distinct states by listing all sequences; a decoder gets one of each right."""
    reachable = notebook_function(CHAPTER, "reachable_states")
    for d, n in ((3, 4), (4, 3), (8, 4)):
        generator = seeded(5)
        from_token = torch.randn(3, 1, d, generator=generator)
        from_state = torch.randn(d, d, generator=generator)
        seen = {}
        for code in range(3**n):
            state = torch.zeros(1, d)
            for place in range(n):
                state = torch.sign(
                    from_token[code // 3**place % 3] + state @ from_state
                )
            seen.setdefault(tuple(state[0].tolist()), []).append(code)
        assert reachable(n, d=d, seed=5) == len(seen) <= min(2**d, 3**n)
        guess = {state: codes[0] for state, codes in seen.items()}  # a best decoder
        right = sum(guess[state] == c for state, codes in seen.items() for c in codes)
        assert right / 3**n == len(seen) / 3**n <= 2**d / 3**n


@pytest.mark.equation("eq-soft-look-up")
def test_the_soft_look_up_by_a_loop(notebook_function):
    look_up = notebook_function(CHAPTER, "soft_look_up")
    query, key, value = normal(3, 2), normal(4, 2, seed=1), normal(4, 5, seed=2)
    score = lambda q, k: q @ k.T
    answer, weights = look_up(query, key, value, score, 0.7)
    for i in range(3):
        scores = [float(query[i] @ key[j]) / 0.7 for j in range(4)]
        total = sum(math.exp(s) for s in scores)
        expected = [math.exp(s) / total for s in scores]
        assert_same(weights[i], expected)
        mean = sum(w * value[j] for j, w in enumerate(expected))
        assert_same(answer[i], mean)


@pytest.mark.equation("res-hard-limit")
@pytest.mark.parametrize("temperature", [2.0, 0.5, 0.1, 0.02])
def test_the_hard_look_up_is_the_limit(notebook_function, temperature):
    look_up = notebook_function(CHAPTER, "soft_look_up")
    query, key = normal(20, 3), normal(6, 3, seed=1)
    score = lambda q, k: q @ k.T
    answer, weights = look_up(query, key, torch.eye(6).double(), score, temperature)
    best, second = score(query, key).topk(2, dim=-1).values.T
    lost = 1 - weights.amax(dim=-1)
    assert (lost <= 5 * torch.exp(-(best - second) / temperature) + 1e-12).all()
    if temperature == 0.02:
        clear = best - second > 0.5
        assert clear.any()
        hard = nn.functional.one_hot(score(query, key).argmax(dim=-1), 6).double()
        assert_same(answer[clear], hard[clear], tolerance=1e-9)


@pytest.mark.equation("eq-nadaraya-watson")
def test_kernel_regression_is_the_best_constant(notebook_function):
    """Weighted least squares by torch's solver, at every query."""
    regress = notebook_function(CHAPTER, "kernel_regression")
    query, key, value = normal(5, 2), normal(9, 2, seed=1), normal(9, 3, seed=2)
    found = regress(query, key, value, 0.8)
    for i in range(5):
        kernel = torch.exp(-((query[i] - key) ** 2).sum(-1) / (2 * 0.8**2))
        root = kernel.sqrt()[:, None]
        best = torch.linalg.lstsq(root, root * value).solution[0]
        assert_same(found[i], best)


@pytest.mark.equation("res-gaussian-softmax")
def test_a_gaussian_kernel_is_a_softmax_of_dot_products(notebook_function):
    look_up = notebook_function(CHAPTER, "soft_look_up")
    distance = notebook_function(CHAPTER, "minus_half_square_distance")
    query, key, value = normal(4, 6), normal(7, 6, seed=1), normal(7, 2, seed=2)
    width = 1.7
    kernel = torch.exp(-((query[:, None] - key[None]) ** 2).sum(-1) / (2 * width**2))
    gaussian = kernel / kernel.sum(-1, keepdim=True)
    assert_same(look_up(query, key, value, distance, width**2)[1], gaussian)
    scores = query @ key.T / width**2
    corrected = (scores - key.square().sum(-1) / (2 * width**2)).softmax(-1)
    assert_same(corrected, gaussian)
    assert (scores.softmax(-1) - gaussian).abs().max() > 0.01  # norms differ
    unit = 3 * key / key.norm(dim=-1, keepdim=True)
    kernel = torch.exp(-((query[:, None] - unit[None]) ** 2).sum(-1) / (2 * width**2))
    assert_same((query @ unit.T / width**2).softmax(-1), kernel / kernel.sum(-1, True))


@pytest.mark.equation("eq-attention-jacobian")
@pytest.mark.parametrize("place", [0, 2])
def test_attentions_jacobian(notebook_function, place):
    """Against central differences of the plain formula."""
    jacobian_of = notebook_function(CHAPTER, "attention_jacobian")
    x, weights = normal(5, 4), normal(3, 4, 4, seed=1)

    def output(x):
        query, key, value = (x @ weight for weight in weights)
        return aiayn.attention(query[-1:], key, value)[0]

    found = jacobian_of(x, place, *weights)
    for j in range(4):
        step = torch.zeros_like(x)
        step[place, j] = 1e-6
        slope = (output(x + step) - output(x - step)) / 2e-6
        assert_same(found[:, j], slope, tolerance=1e-7)


def test_graphs_of_layers(notebook_function):
    """Longest chain and longest shortest way, by brute force over all ways."""
    recurrent = notebook_function(CHAPTER, "recurrent_graph")(5)
    attention = notebook_function(CHAPTER, "attention_graph")(5)
    chain = notebook_function(CHAPTER, "sequential_operations")
    longest = notebook_function(CHAPTER, "maximum_path_length")

    def ways(graph, node, start):
        if node == start:
            yield 0
        for source in graph.get(node, ()):
            yield from (1 + way for way in ways(graph, source, start))

    inputs = [("x", j) for j in range(1, 6)]
    for graph, expected in ((recurrent, 5), (attention, 1)):
        lengths = [list(ways(graph, o, i)) for o in graph for i in inputs]
        assert max(min(found) for found in lengths if found) == expected
        assert longest(graph, inputs, graph) == expected
        assert max(max(found) for found in lengths if found) == chain(graph) == expected
    diamond = {"a": ["x"], "b": ["a"], "c": ["b", "x"]}
    assert chain(diamond) == 3
    assert longest(diamond, ["x"], ["c"]) == 1
    assert longest(diamond, ["x"], ["b", "c"]) == 2


# --- the model ------------------------------------------------------------------------


@pytest.mark.equation("eq-recurrent-seq2seq")
@pytest.mark.parametrize("n_layers", [1, 3])
def test_the_model_by_hand(n_layers):
    """Every row, step by step and layer by layer, without torch's LSTM."""
    model = small_recurrent(n_layers=n_layers, sizes=(13, VOCAB))
    source = padded([[3, 4, 12, 6], [7], [8, 9]])
    target = padded([[BOS, 3], [BOS, 5, 6, 7, 8], [BOS, 9, 10]])
    with torch.no_grad():
        logits = model(source, target)
        for row in range(3):
            expected = by_hand(model, source[row].tolist(), target[row].tolist())
            assert_same(logits[row], expected)


@pytest.mark.equation("eq-recurrent-seq2seq")
def test_padding_anywhere_changes_nothing():
    """practical-torchtext#5: the state after padding was taken for the last one."""
    model = small_recurrent()
    source, target = [3, 4, 5, 6], [BOS, 7, 8]
    with torch.no_grad():
        expected = model(torch.tensor([source]), torch.tensor([target]))[0]
        memory = model.encode(torch.tensor([source]))
        for other in (
            [PAD, PAD, *source], [*source, PAD, PAD], [3, PAD, 4, 5, PAD, 6],
        ):  # fmt: skip
            batch = torch.tensor([other, tokens(1, 6, seed=3)[0].tolist()])
            for found, right in zip(model.encode(batch), memory, strict=True):
                assert_same(found[0], right[0])
            logits = model(batch, torch.tensor([target, [BOS, 9, PAD]]))
            assert_same(logits[0], expected)
        for other, places in (
            ([PAD, *target], [1, 2, 3]),
            ([*target, PAD], [0, 1, 2]),
            ([BOS, PAD, 7, PAD, 8], [0, 2, 4]),
        ):
            logits = model(torch.tensor([source]), torch.tensor([other]))[0]
            assert_same(logits[places], expected)
        # at padding, and before the first token, the logits are those of the state
        logits = model(torch.tensor([source]), torch.tensor([[PAD, BOS, PAD]]))[0]
        assert_same(logits[2], logits[1])
        assert_same(logits[0], model.output_projection(memory[0][0, -1]))


def test_gaps_in_a_long_row():
    """Beyond 16 numbers, an unstable sort would mix the tokens up."""
    model = lively(small_recurrent())
    row = tokens(1, 30, seed=5)[0].tolist()
    gappy = [token for pair in zip(row, [PAD] * 30, strict=True) for token in pair]
    target = torch.tensor([[BOS, 3]])
    with torch.no_grad():
        expected = model(torch.tensor([row]), target)
        assert_same(model(torch.tensor([gappy]), target), expected)


def test_the_books_assertions_pass():
    model = small_recurrent()
    source, target = tokens(2, 6), tokens(2, 6, seed=1)
    aiayn.assert_causal(model, source, target, vocab_size=VOCAB)
    aiayn.assert_padding_invariant(model, source, target, vocab_size=VOCAB)
    gappy = source.clone()
    gappy[0, 2] = PAD
    aiayn.assert_padding_invariant(model, gappy, target, vocab_size=VOCAB)


def test_a_row_never_depends_on_its_neighbours():
    model = lively(small_recurrent())
    rows = [tokens(1, n % 5 + 1, seed=n)[0].tolist() for n in range(9)]
    together = aiayn.greedy_decode(model, padded(rows), max_len=7)
    assert len({tuple(row) for row in together.tolist()}) > 3
    for row, source in enumerate(rows):
        alone = aiayn.greedy_decode(model, torch.tensor([source]), max_len=7)[
            0
        ].tolist()
        rest = together.shape[1] - len(alone)
        assert together[row].tolist() == alone + [PAD] * rest


def test_rows_without_tokens():
    """pytorch#11514: torch packs no empty row; here it leaves the state as it was."""
    model = small_recurrent()
    source = torch.tensor([[PAD, PAD], [3, 4]])
    with torch.no_grad():
        hidden, cell = model.encode(source)
        assert hidden[0].eq(0).all()
        assert cell[0].eq(0).all()
        assert hidden[1].ne(0).all()
        target = torch.tensor([[BOS, 5], [PAD, PAD]])
        logits = model(source, target)
        assert_same(logits[0], by_hand(model, [], [BOS, 5]))
        assert_same(logits[1], by_hand(model, [3, 4], [PAD, PAD]))
    model.train()
    model(source, target).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


def test_an_empty_batch():
    model = small_recurrent()
    empty = torch.zeros(0, 3, dtype=torch.long)
    assert model(empty, empty).shape == (0, 3, VOCAB)
    assert aiayn.greedy_decode(model, empty, max_len=4).shape[0] == 0


def test_another_padding_token():
    model = small_recurrent(pad_id=9)
    source, target = torch.tensor([[3, 0, 5]]), torch.tensor([[BOS, 0, 4]])
    with torch.no_grad():
        expected = by_hand(model, [3, 0, 5], [BOS, 0, 4])
        assert_same(model(source, target)[0], expected)
        longer = torch.tensor([[9, 3, 0, 9, 5]])
        assert_same(model(longer, target)[0], expected)


# --- the cache ------------------------------------------------------------------------


@pytest.mark.parametrize("n_layers", [1, 2])
def test_cached_equals_uncached_at_every_split(n_layers):
    """transformers#26344: cached generation differed from the whole forward pass."""
    model = small_recurrent(n_layers=n_layers)
    source = padded([[3, 4, 5], [6, 7]])
    target = padded([[BOS, 3, 4, 5, 6], [BOS, 7, 8]], left=True)
    with torch.no_grad():
        expected, memory = model(source, target), model.encode(source)
        for bits in range(2**4):
            cuts = [i + 1 for i in range(4) if bits >> i & 1]
            cache = RecurrentCache()
            parts = [
                model.decode(part, memory, source, cache=cache)
                for part in target.tensor_split(cuts, dim=1)
            ]
            assert_same(torch.cat(parts, dim=1), expected)
            assert len(cache) == 5


def test_greedy_decoding_with_the_cache():
    model = lively(small_recurrent())
    source = padded([[3, 4, 5], [6, 7], [8, 9, 10]])
    plain = aiayn.greedy_decode(model, source, max_len=9)
    cache = RecurrentCache()
    assert aiayn.greedy_decode(model, source, max_len=9, cache=cache).equal(plain)
    assert len(cache) > 0
    with pytest.raises(ValueError, match="cache must be empty"):
        aiayn.greedy_decode(model, source, max_len=9, cache=cache)
    cache.reset()
    assert (len(cache), cache.nbytes, cache.state) == (0, 0, None)
    assert aiayn.greedy_decode(model, source, max_len=9, cache=cache).equal(plain)


def test_a_cache_follows_its_rows():
    """tensorflow#9904: a search that moved half of the state, or none."""
    model = small_recurrent()
    source, target = tokens(3, 4), tokens(3, 5, seed=1)
    rows = [2, 0, 0, 1, 2]
    with torch.no_grad():
        memory = model.encode(source)
        for given in (rows, torch.tensor(rows)):
            cache = RecurrentCache()
            model.decode(target[:, :3], memory, source, cache=cache)
            cache.reorder(given)
            moved = tuple(part[rows] for part in memory)
            logits = model.decode(target[rows, 3:], moved, source[rows], cache=cache)
            assert_same(logits, model(source[rows], target[rows])[:, 3:])
        cache.reorder([4])
        assert cache.state[0].shape == (2, 1, 8)
        cache.reorder([])
        assert cache.state[0].shape == (2, 0, 8)
    empty = RecurrentCache()
    for given in ([0, 0], [], torch.tensor([], dtype=torch.long)):
        empty.reorder(given)
        assert len(empty) == 0
        assert empty.state is None


@pytest.mark.usefixtures("no_shape_checks")  # they take uint8 for no integers
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
)
def test_rows_of_any_integers(dtype):
    """Torch takes an index of uint8 for a mask: [1, 0, 1] would be rows 0 and 2."""
    model = small_recurrent()
    source, target = tokens(300, 2), tokens(300, 2, seed=1)
    for rows in ([1, 0, 1], [0, 1], [100, 7]):
        cache = RecurrentCache()
        with torch.no_grad():
            model.decode(target, model.encode(source), source, cache=cache)
        before = cache.state
        cache.reorder(torch.tensor(rows, dtype=dtype))
        for old, new in zip(before, cache.state, strict=True):
            assert_same(new, torch.stack([old[:, row] for row in rows], dim=1))


def test_a_cache_counts_padding_too():
    """As the Transformer's: the length of what was given, row by row."""
    model = small_recurrent()
    source, cache = tokens(2, 3), RecurrentCache()
    target = torch.tensor([[PAD, BOS, PAD, 3, PAD], [PAD, BOS, PAD, PAD, PAD]])
    with torch.no_grad():
        memory = model.encode(source)
        for part, length in zip(target.split([1, 2, 2], dim=1), (1, 3, 5), strict=True):
            model.decode(part, memory, source, cache=cache)
            assert len(cache) == length


def test_the_cache_has_one_size_for_ever():
    model = small_recurrent(n_layers=3)
    source, target = tokens(2, 4), tokens(2, 50, seed=1)
    cache, sizes = RecurrentCache(), set()
    for part in target.split(1, dim=1):
        with torch.no_grad():
            model.decode(part, model.encode(source), source, cache=cache)
        sizes.add(cache.nbytes)
    assert sizes == {2 * 3 * 2 * 8 * 8}  # two vectors, layers, rows, width, bytes
    assert len(cache) == 50


def test_the_cache_keeps_no_graph_and_nobody_elses_memory():
    model = small_recurrent()
    source, target = tokens(2, 4), tokens(2, 3, seed=1)
    cache = RecurrentCache()
    memory = model.encode(source)
    logits = model.decode(target, memory, source, cache=cache)
    assert logits.requires_grad
    assert not any(part.requires_grad for part in cache.state)
    before = [part.clone() for part in cache.state]
    with torch.no_grad():
        for part in memory:
            part.zero_()
        model.decode(target, memory, source, cache=cache)
    kept = [part.clone() for part in cache.state]
    assert not any(torch.equal(a, b) for a, b in zip(before, kept, strict=True))


def test_cropping():
    model = small_recurrent()
    cache = RecurrentCache()
    model.decode(tokens(2, 3), model.encode(tokens(2, 4)), tokens(2, 4), cache=cache)
    state = cache.state
    cache.crop(3)
    assert len(cache) == 3
    with pytest.raises(ValueError, match=r"cannot crop to n=2 of 3 .*keeps no past"):
        cache.crop(2)
    assert cache.state is state
    assert len(cache) == 3
    cache.crop(0)
    assert (len(cache), cache.state) == (0, None)


def test_a_refused_call_leaves_the_cache():
    model = small_recurrent()
    source = tokens(2, 4)
    memory = model.encode(source)
    cache = RecurrentCache()
    model.decode(tokens(2, 3), memory, source, cache=cache)
    state = cache.state
    bad = [
        (tokens(3, 1), tuple(p[[0, 1, 1]] for p in memory), tokens(3, 4)),
        (tokens(1, 1), tuple(p[:1] for p in memory), tokens(1, 4)),
        (tokens(2, 1), memory[:1], source),
        (tokens(2, 1)[:, :0], memory, source),
    ]
    for target, other, its_source in bad:
        with pytest.raises((TypeError, ValueError)):
            model.decode(target, other, its_source, cache=cache)
        assert cache.state is state
        assert len(cache) == 3


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({"n_layers": 3}, r"float64 of shape \(3, 2, 8\)"),
        ({"d_model": 12}, r"float64 of shape \(2, 2, 12\)"),
        ({"dtype": torch.float32}, r"float32 of shape \(2, 2, 8\)"),
    ],
)
def test_a_cache_of_another_model_is_refused(changes, held):
    """Torch's own message names neither the cache nor both shapes."""
    model, other = small_recurrent(), small_recurrent(**changes)
    source, target, cache = tokens(2, 4), tokens(2, 3, seed=1), RecurrentCache()
    with torch.no_grad():
        other.decode(target, other.encode(source), source, cache=cache)
        state, memory = cache.state, model.encode(source)
        message = (
            rf"cache holds.*{held} on cpu, expected .*float64 of shape \(2, 2, 8\)"
        )
        with pytest.raises(ValueError, match=message):
            model.decode(target, memory, source, cache=cache)
        assert cache.state is state
        assert len(cache) == 3
        cache.reset()
        model.decode(target, memory, source, cache=cache)


# --- dtypes, devices, seeds, training -------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_precisions(dtype):
    exact, model = small_recurrent(), small_recurrent(dtype=dtype)
    source, target = padded([[3, 4, 5], [6, 7]]), tokens(2, 4, seed=1)
    with torch.no_grad():
        logits = model(source, target)
        assert logits.dtype == dtype
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        assert_same(logits.double(), exact(source, target), tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_other_integers(dtype):
    model = small_recurrent()
    source, target = padded([[3, 4, 5], [6, 7]]), tokens(2, 4, seed=1)
    with torch.no_grad():
        expected = model(source, target)
        assert_same(model(source.to(dtype), target.to(dtype)), expected)


def test_integers_too_small_for_the_padding_token():
    """Torch compares int8 tokens with 299 as if it were 43."""
    model = small_recurrent(sizes=(300, 300), pad_id=299)
    source, target = torch.tensor([[3, 43, 5]]), torch.tensor([[BOS, 43]])
    with torch.no_grad():
        expected = model(source, target)
        assert_same(expected[0], by_hand(model, [3, 43, 5], [BOS, 43]))
        small = source.to(torch.int8), target.to(torch.int8)
        assert_same(model(*small), expected)


def test_under_autocast_the_memory_is_that_of_the_weights():
    """Mixed precision multiplies in bfloat16 and keeps its states in float32."""
    model = small_recurrent(dtype=torch.float32)
    source, target, cache = tokens(2, 4), tokens(2, 3, seed=1), RecurrentCache()
    with torch.no_grad():
        exact, outside = model(source, target), model.encode(source)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for memory in (model.encode(source), outside):
                assert {part.dtype for part in memory} == {torch.float32}
                logits = model.decode(target, memory, source)
                assert_same(logits.float(), exact, tolerance=0.05)
            for part in target.split(1, dim=1):
                logits = model.decode(part, memory, source, cache=cache)
            assert_same(logits.float(), exact[:, -1:], tolerance=0.05)


@pytest.mark.cuda
def test_on_a_gpu_as_on_the_cpu():
    """Logits, cached decoding and the order of rows; the state moves with the model."""
    model = lively(small_recurrent(n_layers=2))
    source = padded([[3, 4, 5, 6], [7], [8, 9]])
    source[1] = PAD  # a row without tokens
    target, rows = padded([[BOS, 3, 4, 5], [BOS, 6], [BOS, 7, 8]], left=True), [2, 0, 0]
    with torch.no_grad():
        expected, moved = model(source, target), model(source[rows], target[rows])
        greedy = aiayn.greedy_decode(model, source, max_len=7)
        model.cuda()
        source, target = source.cuda(), target.cuda()
        assert_same(model(source, target).cpu(), expected)
        memory = model.encode(source)
        for index in (rows, torch.tensor(rows), torch.tensor(rows).cuda()):
            cache = RecurrentCache()
            first = model.decode(target[:, :2], memory, source, cache=cache)
            assert_same(first.cpu(), expected[:, :2])
            cache.reorder(index)
            assert cache.state[0].is_cuda
            its_memory = tuple(part[rows] for part in memory)
            for place in (2, 3):
                logits = model.decode(
                    target[rows, place : place + 1],
                    its_memory,
                    source[rows],
                    cache=cache,
                )
                assert_same(logits.cpu(), moved[:, place : place + 1])
        cache = RecurrentCache()
        found = aiayn.greedy_decode(model, source, max_len=7, cache=cache)
        assert found.cpu().equal(greedy)
        for part in (tuple(p.cpu() for p in memory), (memory[0], memory[1].cpu())):
            with pytest.raises(TypeError, match="float64 on cuda.*float64 on cpu"):
                model.decode(target, part, source)


def test_on_meta_and_materialised():
    with torch.device("meta"):
        model = RecurrentSeq2Seq(VOCAB, VOCAB, 8, 2, dropout=0.0)
        integers = torch.zeros(2, 5, dtype=torch.long)
        assert model(integers, integers).shape == (2, 5, VOCAB)
        cache, memory = RecurrentCache(), model.encode(integers)
        model.decode(integers, memory, integers, cache=cache)
        cache.reorder([0, 1, 1])  # where lists become tensors without values too
        assert [part.shape for part in cache.state] == [(2, 3, 8)] * 2
    model = model.to_empty(device="cpu")
    model.reset_parameters(seeded(0))
    other = RecurrentSeq2Seq(VOCAB, VOCAB, 8, 2, dropout=0.0, generator=seeded(0))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_weights_depend_on_the_generator_alone():
    before = torch.get_rng_state()
    models = [
        RecurrentSeq2Seq(VOCAB, 9, 8, 2, generator=seeded(seed)) for seed in (0, 0, 1)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    first, same, other = (dict(model.named_parameters()) for model in models)
    for name, weight in first.items():
        assert torch.equal(weight, same[name]), name
        assert "bias" in name or not torch.equal(weight, other[name]), name
    limit = 8**-0.5
    for name, weight in first.items():
        if "weight_hh" in name:
            assert weight.abs().max() <= limit
            assert weight.max() > 0.9 * limit
            assert weight.min() < -0.9 * limit
        if "bias" in name:
            parts = weight.reshape(4, 8)
            assert parts[[0, 2, 3]].eq(0).all(), name
            assert parts[1].eq(1.0 if "bias_ih" in name else 0.0).all(), name


def test_the_forget_bias_is_the_one_asked_for():
    model = RecurrentSeq2Seq(VOCAB, VOCAB, 8, forget_bias=3, generator=seeded(0))
    total = model.encoder.bias_ih_l0 + model.encoder.bias_hh_l0
    assert total.reshape(4, 8)[:, 0].tolist() == [0.0, 3.0, 0.0, 0.0]
    assert model.config == RecurrentConfig(VOCAB, VOCAB, 8, forget_bias=3)


@pytest.mark.filterwarnings("error")
def test_dropout_only_while_training():
    for n_layers in (1, 2):
        model = small_recurrent(n_layers=n_layers, dropout=0.5)
        source, target = tokens(2, 4), tokens(2, 5, seed=1)
        with torch.no_grad():
            assert torch.equal(model(source, target), model(source, target))
            model.train()
            assert not torch.equal(model(source, target), model(source, target))


@pytest.mark.parametrize("n_layers", [1, 3])
def test_where_dropout_stands(n_layers):
    """On both embeddings and before the logits; between layers if there are several."""
    model = small_recurrent(n_layers=n_layers, dropout=0.3).train()
    seen, between = [], 0.3 if n_layers > 1 else 0.0
    model.dropout.register_forward_hook(lambda _, __, y: seen.append(tuple(y.shape)))
    model(tokens(2, 4), tokens(2, 5, seed=1))
    assert seen == [(2, 4, 8), (2, 5, 8), (2, 5, 8)]
    assert model.dropout.p == 0.3
    assert model.encoder.dropout == model.decoder.dropout == between


def test_what_dropout_drops():
    """With every number dropped, tokens are zeros and so are the logits."""
    model = small_recurrent(n_layers=1, dropout=1.0).train()
    source, target = tokens(2, 4), tokens(2, 5, seed=1)
    with torch.no_grad():
        memory = model.encode(source)
        for old, new in zip(memory, model.encode(tokens(2, 4, seed=7)), strict=True):
            assert torch.equal(old, new)
        caches = [RecurrentCache() for _ in range(2)]
        for seed, cache in enumerate(caches):
            logits = model.decode(tokens(2, 5, seed=seed), memory, source, cache=cache)
            assert logits.eq(0).all()
        for old, new in zip(*(cache.state for cache in caches), strict=True):
            assert torch.equal(old, new)
        model.eval()
        assert not model(source, target).eq(0).any()


def test_gradients_reach_every_weight():
    model = small_recurrent().train()
    source, target = padded([[3, 4, 5], [6, 7]]), tokens(2, 4, seed=1)
    model(source, target).sin().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name
    for row in (PAD, 8):  # neither padding nor an unused token is touched
        assert model.source_embedding.weight.grad[row].eq(0).all()


def test_it_trains_as_a_transformer_does():
    """``train``, ``exact_match`` and ``greedy_decode`` take it as it is."""
    task = aiayn.CopyTask(n_symbols=3, max_length=2)
    model = RecurrentSeq2Seq(
        task.vocab_size, task.vocab_size, 32, dropout=0.0, generator=seeded(0)
    )
    sequences = [(3,), (4,), (5,), (3, 4), (5, 3), (4, 4)]
    from aiayn.copy_task import to_tensors

    batch = to_tensors(task, sequences)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = aiayn.train(model, [batch] * 60, optimizer=optimizer, smoothing=0.0)
    assert losses[-1] < 0.1 < losses[0]
    assert aiayn.exact_match(model, task, sequences).all()
    assert isinstance(model, aiayn.Seq2Seq)


def test_tokens_outside_the_vocabulary_are_refused_where_data_enter():
    model = small_recurrent()
    with pytest.raises(ValueError, match="source holds token id 11, expected 0 to 10"):
        aiayn.greedy_decode(model, tokens(2, 3) * 0 + 11, max_len=3)


def test_read_tokens_is_torchs_lstm_without_padding():
    lstm = nn.LSTM(4, 4, 2, batch_first=True, dtype=torch.float64)
    x, state = normal(3, 6, 4), tuple(normal(2, 2, 3, 4, seed=1))
    full = torch.ones(3, 6, dtype=torch.bool)
    with torch.no_grad():
        outputs, last = read_tokens(lstm, x, full, state)
        expected, theirs = lstm(x, state)
    assert_same(outputs, expected)
    for a, b in zip(last, theirs, strict=True):
        assert_same(a, b)
