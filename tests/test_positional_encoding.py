"""Sinusoids, their rotation, and where positions come from."""

import cmath
import math

import pytest
import torch
from helpers import assert_same, normal, seeded

from aiayn import (
    LearnedPositionalEncoding,
    PositionalEncoding,
    shift_matrix,
    sinusoidal_encoding,
)
from aiayn.multi_head import MultiHeadAttention
from aiayn.positional_encoding import frequencies


def by_hand(position: int, d_model: int) -> list[float]:
    """The paper's two lines, one number at a time, in Python's floats."""
    row = []
    for column in range(d_model):
        angle = position / 10000.0 ** ((column - column % 2) / d_model)
        row.append(math.cos(angle) if column % 2 else math.sin(angle))
    return row


@pytest.mark.equation("eq-frequencies")
@pytest.mark.parametrize("d_model", [1, 2, 3, 8, 512])
def test_frequencies(d_model):
    expected = [10000.0 ** (-2 * i / d_model) for i in range((d_model + 1) // 2)]
    assert frequencies(d_model).dtype == torch.float64
    assert_same(frequencies(d_model), expected, 1e-14)


@pytest.mark.equation("eq-sinusoidal-encoding")
@pytest.mark.parametrize("d_model", [1, 3, 4, 7, 8])
def test_encoding_by_hand(d_model):
    table = sinusoidal_encoding(50, d_model, dtype=torch.float64)
    expected = [by_hand(position, d_model) for position in range(50)]
    assert_same(table, expected, 1e-12)


@pytest.mark.equation("eq-sinusoidal-encoding")
def test_sine_and_cosine_alternate():
    """tensorflow#37191, transformers#8226: all sines first, then all cosines."""
    table = sinusoidal_encoding(3, 4, dtype=torch.float64)
    assert table[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert_same(table[1], [0.841471, 0.540302, 0.010000, 0.999950], 1e-6)
    assert_same(table[2], [0.909297, -0.416147, 0.019999, 0.999800], 1e-6)


@pytest.mark.equation("eq-sinusoidal-encoding")
def test_odd_width_drops_the_last_cosine():
    """BERT-pytorch#78, pyaptamer#526, transformers#8226: a crash in the constructor."""
    expected = [0.841471, 0.540302, 0.025116, 0.999685, 0.000631]
    assert_same(sinusoidal_encoding(2, 5, dtype=torch.float64)[1], expected, 1e-6)
    expected = [0.841471, 0.540302, 0.002154]
    assert_same(sinusoidal_encoding(2, 3, dtype=torch.float64)[1], expected, 1e-6)
    expected = [[math.sin(p)] for p in range(4)]
    assert_same(sinusoidal_encoding(4, 1, dtype=torch.float64), expected, 1e-12)


@pytest.mark.equation("res-encoding-product")
def test_product_of_two_encodings_depends_on_their_distance():
    """PE(p)·PE(p+k) = Σ cos(ω_i k) from every p; the norm is √(d/2)."""
    table = sinusoidal_encoding(50, 8, dtype=torch.float64)
    assert (table[0] @ table[3]).item() == pytest.approx(1.964890, abs=1e-6)
    assert (table[40] @ table[43]).item() == pytest.approx(1.964890, abs=1e-6)
    for offset in range(10):
        expected = sum(math.cos(offset / 10000 ** (2 * i / 8)) for i in range(4))
        for position in range(40):
            product = table[position] @ table[position + offset]
            assert product.item() == pytest.approx(expected, abs=1e-12)
    assert_same(table.square().sum(-1), [4.0] * 50, 1e-12)


def test_positions_as_a_tensor_of_any_shape():
    table = sinusoidal_encoding(100, 6)
    positions = torch.tensor([[3, 0, 99], [7, 7, 1]])
    assert torch.equal(sinusoidal_encoding(positions, 6), table[positions])
    assert torch.equal(sinusoidal_encoding(torch.tensor(5), 6), table[5])
    assert sinusoidal_encoding(0, 6).shape == (0, 6)
    small = torch.tensor([2], dtype=torch.int8)
    assert torch.equal(sinusoidal_encoding(small, 6), table[small.long()])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounded_once_at_the_end(dtype):
    """Computed in half precision, positions above 2048 would not even be integers."""
    places = [2049, 4999, 2**24 + 1]  # the last is no float32 either
    positions = torch.tensor(places)
    exact = sinusoidal_encoding(positions, 8, dtype=torch.float64)
    assert_same(exact, [by_hand(place, 8) for place in places], 1e-8)
    assert torch.equal(sinusoidal_encoding(positions, 8, dtype=dtype), exact.to(dtype))


def test_dtype_and_device_of_the_result():
    assert sinusoidal_encoding(3, 4).dtype == torch.get_default_dtype()
    nowhere = sinusoidal_encoding(torch.zeros(2, 3, dtype=torch.long, device="meta"), 4)
    assert nowhere.device.type == "meta"
    assert nowhere.shape == (2, 3, 4)


@pytest.mark.equation("eq-shift-matrix")
@pytest.mark.parametrize("offset", [-3, 0, 1, 17])
def test_one_matrix_shifts_every_position(offset):
    table = sinusoidal_encoding(60, 8, dtype=torch.float64)
    shift = shift_matrix(offset, 8, dtype=torch.float64)
    for position in range(3, 40):
        assert_same(shift @ table[position], table[position + offset], 1e-12)


@pytest.mark.equation("eq-shift-matrix")
def test_shifts_add_up_and_are_rotations():
    first, second = (shift_matrix(k, 6, dtype=torch.float64) for k in (2, 5))
    assert_same(first @ second, shift_matrix(7, 6, dtype=torch.float64), 1e-12)
    assert_same(first @ first.T, torch.eye(6, dtype=torch.float64), 1e-12)
    assert shift_matrix(1, 2).dtype == torch.get_default_dtype()


@pytest.mark.equation("eq-sinusoidal-encoding")
def test_module_adds_the_encoding():
    x = normal(2, 5, 6)
    added = PositionalEncoding(6)(x) - x
    assert_same(added, [[by_hand(p, 6) for p in range(5)]] * 2, 1e-12)


def test_positions_run_along_the_sequence_and_not_the_batch():
    """A tutorial's (length, batch) code fed with (batch, length)."""
    x = torch.zeros(3, 4, 6, dtype=torch.float64)
    added = PositionalEncoding(6)(x)
    for row in range(3):
        assert torch.equal(added[row], added[0])
    assert (added[0, 0] - added[0, 1]).abs().max() > 0.1


def test_positions_may_start_anywhere_and_differ_by_row():
    """OpenNMT-tf#498, transformers#15444: counting began again at 0 after a prefix."""
    encoding = PositionalEncoding(6)
    x = normal(2, 5, 6)
    full = encoding(x)
    assert torch.equal(encoding(x[:, 3:4], torch.tensor([[3]])), full[:, 3:4])
    own = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])
    table = sinusoidal_encoding(5, 6, dtype=torch.float64)
    assert torch.equal(encoding(x, own), x + table[own])


@pytest.mark.parametrize("kind", [PositionalEncoding, LearnedPositionalEncoding])
def test_length_up_to_max_len(kind):
    """pytorch-seq2seq#89, transformers#45834: a cryptic index error, or truncation."""
    assert kind(4, max_len=4)(torch.zeros(1, 4, 4)).shape == (1, 4, 4)
    with pytest.raises(ValueError, match="length 5 exceeds max_len=4"):
        kind(4, max_len=4)(torch.zeros(1, 5, 4))
    with pytest.raises(ValueError, match="length 3 exceeds max_len=1"):
        kind(4, max_len=1)(torch.zeros(1, 3, 4))


def test_sinusoids_are_no_parameters_and_not_saved():
    """transformers#29807, Informer2020#668; espnet#1060: trained, drawn anew, saved."""
    encoding = PositionalEncoding(4, max_len=64)
    assert list(encoding.parameters()) == []
    assert encoding.state_dict() == {}
    PositionalEncoding(4, max_len=128).load_state_dict(encoding.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_module_follows_the_dtype_of_its_input(dtype):
    x = torch.zeros(1, 3, 4, dtype=dtype)
    added = PositionalEncoding(4)(x)
    assert added.dtype == dtype
    expected = torch.tensor([by_hand(p, 4) for p in range(3)], dtype=torch.float64)
    assert torch.equal(added[0], expected.to(dtype))


def test_module_on_the_meta_device():
    with torch.device("meta"):
        encoding = PositionalEncoding(4)
    assert encoding(torch.zeros(1, 3, 4, device="meta")).device.type == "meta"
    assert_same(encoding(torch.zeros(1, 3, 4))[0, 1], by_hand(1, 4), 1e-6)


def test_learned_positions_are_looked_up_and_trained():
    torch.manual_seed(0)
    encoding = LearnedPositionalEncoding(4, max_len=6).double()
    x = normal(2, 3, 4)
    own = torch.tensor([[0, 1, 2], [5, 5, 0]])
    assert_same(encoding(x, own) - x, encoding.weight[own].detach(), 1e-12)
    assert_same(encoding(x), x + encoding.weight[:3].detach(), 1e-12)
    encoding(x, own).sum().backward()
    counts = torch.tensor([2.0, 1.0, 1.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    assert torch.equal(encoding.weight.grad, counts[:, None].expand(6, 4))


def test_learned_positions_start_as_large_as_sinusoids():
    encoding = LearnedPositionalEncoding(64, max_len=2000)
    encoding.reset_parameters(seeded(1))
    first = encoding.weight.detach().clone()
    sinusoids = sinusoidal_encoding(2000, 64)
    assert first.std().item() == pytest.approx(
        sinusoids.square().mean().sqrt().item(), rel=0.02
    )
    assert first.mean().item() == pytest.approx(0.0, abs=0.01)
    encoding.reset_parameters(seeded(2))
    assert not torch.equal(encoding.weight, first)
    encoding.reset_parameters(seeded(1))
    assert torch.equal(encoding.weight, first)


# ---- what the chapter derives from the shift theorem ---------------------------------
@pytest.mark.equation("res-shifts")
@pytest.mark.parametrize("d_model", [2, 8, 30])
def test_shifts_compose_invert_and_keep_volume(d_model):
    """M_j M_k = M_(j+k), M_-k is both transpose and inverse, det M_k = 1."""
    shifts = {k: shift_matrix(k, d_model, dtype=torch.float64) for k in range(-24, 25)}
    one = torch.eye(d_model, dtype=torch.float64)
    assert torch.equal(shifts[0], one)
    for k in range(-12, 13):
        assert torch.equal(shifts[-k], shifts[k].T)
        assert_same(shifts[-k] @ shifts[k], one, 1e-12)
        assert torch.linalg.det(shifts[k]).item() == pytest.approx(1, abs=1e-12)
        for j in range(-12, 13):
            assert_same(shifts[j] @ shifts[k], shifts[j + k], 1e-12)
            assert_same(shifts[j] @ shifts[k], shifts[k] @ shifts[j], 1e-12)


@pytest.mark.equation("eq-shift-matrix")
def test_the_whole_table_is_its_first_row_turned():
    table = sinusoidal_encoding(80, 6, dtype=torch.float64)
    for position in range(80):
        turned = shift_matrix(position, 6, dtype=torch.float64) @ table[0]
        assert_same(turned, by_hand(position, 6), 1e-12)


def test_offset_must_be_an_integer_and_width_even(no_shape_checks):
    with pytest.raises(ValueError, match="d_model must be even .*, got 5"):
        shift_matrix(1, 5)
    with pytest.raises(TypeError, match=r"offset must be an integer, got 1\.5"):
        shift_matrix(1.5, 4)


@pytest.mark.equation("eq-look-back")
@pytest.mark.parametrize(("k", "d_k"), [(0, 8), (1, 8), (5, 20), (-3, 12)])
def test_scores_of_the_head_that_looks_back(notebook_function, k, d_k):
    """Every score against a sum of cosines, one at a time in Python's floats."""
    look_back = notebook_function("04_positional_encoding", "look_back")
    wq, wk = look_back(k, 24, d_k, 3.0)
    assert wq.shape == wk.shape == (24, d_k)
    places = sinusoidal_encoding(20, 24, dtype=torch.float64)
    scores = (places @ wq) @ (places @ wk).T / math.sqrt(d_k)
    for p in range(20):
        for s in range(20):
            angles = [(s - (p - k)) / 10000 ** (2 * i / 24) for i in range(d_k // 2)]
            expected = 3.0 / math.sqrt(d_k) * sum(map(math.cos, angles))
            assert scores[p, s].item() == pytest.approx(expected, abs=1e-10)
        if 0 <= p - k < 20:
            assert scores[p].argmax() == p - k


def test_head_that_looks_back_inside_multi_head_attention(notebook_function):
    """The layer of chapter 3 with these weights, also under the causal flag."""
    look_back = notebook_function("04_positional_encoding", "look_back")
    layer = MultiHeadAttention(128, 2, d_k=40, bias=False).double()
    pairs = [look_back(k, 128, 40, 16.0) for k in (1, 4)]
    with torch.no_grad():
        layer.query_projection.weight.copy_(torch.cat([q for q, _ in pairs], 1).T)
        layer.key_projection.weight.copy_(torch.cat([k for _, k in pairs], 1).T)
    x = sinusoidal_encoding(30, 128, dtype=torch.float64).unsqueeze(0)
    for causal in (False, True):
        weights = layer.weights(x, x, causal=causal)[0].detach()
        for seen, k in zip(weights, (1, 4), strict=True):
            assert seen.diagonal(-k).min() > 0.9
            assert (seen.argmax(-1)[k:] == torch.arange(30 - k)).all()


def test_layouts_differ_by_a_permutation_and_exponents_do_not():
    """tensorflow#37191: sines then cosines, and the exponents of the authors' code."""
    ours = sinusoidal_encoding(30, 8, dtype=torch.float64)
    angle = torch.arange(30).unsqueeze(-1) * frequencies(8)
    concatenated = torch.cat((angle.sin(), angle.cos()), dim=-1)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    assert_same(ours[:, order], concatenated, 1e-15)
    assert_same(frequencies(8), [1, 0.1, 0.01, 0.001], 1e-15)
    code = [10000 ** (-i / 3) for i in range(4)]
    assert code == pytest.approx([1, 0.0464, 0.00215, 0.0001], rel=3e-3)
    row = sorted([math.sin(w) for w in code] + [math.cos(w) for w in code])
    assert (
        max(abs(a - b) for a, b in zip(row, sorted(by_hand(1, 8)), strict=True)) > 0.01
    )


# ---- rotary --------------------------------------------------------------------------
def turned_by_hand(row: list[float], position: int) -> list[float]:
    """Each pair as the complex number cosine + i sine, times e^(i ω position)."""
    result = []
    for i in range(len(row) // 2):
        angle = position / 10000 ** (2 * i / len(row))
        z = complex(row[2 * i + 1], row[2 * i]) * cmath.exp(1j * angle)
        result += [z.imag, z.real]
    return result


@pytest.mark.equation("eq-rotary")
def test_rotary_is_a_product_of_complex_numbers(notebook_function):
    rotate = notebook_function("04_positional_encoding", "rotate")
    x, places = normal(2, 5, 8), torch.tensor([[0, 1, 2, 3, 4], [7, 0, 300, 1, 1]])
    expected = [
        [
            turned_by_hand(row.tolist(), place)
            for row, place in zip(rows, at, strict=True)
        ]
        for rows, at in zip(x, places.tolist(), strict=True)
    ]
    assert_same(rotate(x, places), expected, 1e-12)


@pytest.mark.equation("eq-rotary")
def test_rotary_scores_depend_on_distance_alone(notebook_function):
    """(M_p q)·(M_s k) = q·M_(s−p) k, with the sign of the distance."""
    rotate = notebook_function("04_positional_encoding", "rotate")
    query, key = normal(12, 8), normal(12, 8, seed=1)
    here = torch.arange(12)
    scores = rotate(query, here) @ rotate(key, here).T
    for p in range(12):
        for s in range(12):
            expected = query[p] @ shift_matrix(s - p, 8, dtype=torch.float64) @ key[s]
            assert scores[p, s].item() == pytest.approx(expected.item(), abs=1e-10)
    moved = rotate(query, here + 500) @ rotate(key, here + 500).T
    assert_same(moved, scores, 1e-9)
    assert_same(rotate(key, here).norm(dim=-1), key.norm(dim=-1), 1e-12)


def test_rotary_in_halves_is_ours_permuted(notebook_function):
    """transformers#25199: neighbours or halves; weights of one fail in the other."""
    rotate = notebook_function("04_positional_encoding", "rotate")
    halves = notebook_function("04_positional_encoding", "rotate_halves")
    x, here = normal(9, 8), torch.arange(9)
    order = [1, 3, 5, 7, 0, 2, 4, 6]
    assert_same(halves(x[:, order], here), rotate(x, here)[:, order], 1e-12)
    for position in range(9):  # Hugging Face's formula, spelled out
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            a, b = x[position, i].item(), x[position, i + 4].item()
            found = halves(x, here)[position, [i, i + 4]]
            expected = (
                a * math.cos(angle) - b * math.sin(angle),
                b * math.cos(angle) + a * math.sin(angle),
            )
            assert_same(found, expected, 1e-12)


# ---- beyond the trained length, and counting -----------------------------------------
def test_a_position_without_a_learned_vector_is_an_error():
    encoding = LearnedPositionalEncoding(4, max_len=6)
    with pytest.raises(IndexError):
        encoding(torch.zeros(1, 1, 4), torch.tensor([[6]]))
    sinusoids = PositionalEncoding(4, max_len=6)
    row = sinusoids(torch.zeros(1, 1, 4), torch.tensor([[6]]))[0, 0]
    assert_same(row, by_hand(6, 4), 1e-6)


def test_counting_starts_at_zero():
    """fairseq#1177, attention-is-all-you-need-pytorch#99: rows shifted by padding."""
    added = PositionalEncoding(4)(torch.zeros(1, 2, 4, dtype=torch.float64))
    assert added[0, 0].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_sinusoids_stay_right_through_training_and_loading():
    """transformers#31387: an optimiser step or a reload must not touch a constant."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), PositionalEncoding(4)).double()
    before = PositionalEncoding(4)(torch.zeros(1, 5, 4, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(normal(1, 5, 4)).square().sum().backward()
    optimizer.step()
    model.load_state_dict(model.state_dict())
    assert list(model[1].parameters()) == []
    after = model[1](torch.zeros(1, 5, 4, dtype=torch.float64))
    assert torch.equal(before, after)
