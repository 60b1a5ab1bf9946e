"""Sinusoids, their rotation, and where positions come from."""

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
