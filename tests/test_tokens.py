"""Special tokens, the device, and weights that depend on the generator alone."""

from functools import partial

import pytest
import torch
from helpers import assert_same, seeded

import aiayn
from aiayn.tokens import (
    check_representable,
    check_token_ids,
    check_token_roles,
    draw_into,
)


def test_special_tokens():
    assert (aiayn.PAD, aiayn.BOS, aiayn.EOS) == (0, 1, 2)


@pytest.mark.parametrize(
    ("chosen", "cuda", "mps", "expected"),
    [
        ("meta", True, True, "meta"),
        ("cuda:1", False, False, "cuda:1"),
        (None, True, True, "cuda"),
        (None, False, True, "mps"),
        (None, False, False, "cpu"),
        ("", False, False, "cpu"),
    ],
)
def test_device(monkeypatch, chosen, cuda, mps, expected):
    """The variable first, then what the machine has."""
    if chosen is None:
        monkeypatch.delenv("AIAYN_DEVICE", raising=False)
    else:
        monkeypatch.setenv("AIAYN_DEVICE", chosen)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert aiayn.device() == torch.device(expected)


def test_roles_that_differ_are_accepted():
    check_token_roles(pad_id=0, bos_id=1, eos_id=2)
    check_token_roles(pad_id=7)


def test_token_ids_at_the_edge_are_accepted():
    check_token_ids(torch.tensor([[0, 10]]), 11)
    check_token_ids(torch.zeros(0, 3, dtype=torch.long), 11)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.uint8, 0, 255),
        (torch.int8, -128, 127),
        (torch.int16, -(2**15), 2**15 - 1),
        (torch.int64, -(2**63), 2**63 - 1),
    ],
)
def test_ids_that_a_dtype_can_hold(dtype, low, high):
    tokens = torch.zeros(1, 2, dtype=dtype)
    check_representable(tokens, pad_id=low, eos_id=high)
    for wrong in (low - 1, high + 1):
        message = (
            f"eos_id={wrong} does not fit tokens of {dtype}: convert .* with .long"
        )
        with pytest.raises(ValueError, match=message):
            check_representable(tokens, pad_id=low, eos_id=wrong)


def test_drawn_numbers_depend_on_the_generator_alone():
    """Whatever torch's global generator does, and it is left alone."""
    initialise = partial(torch.nn.init.normal_, std=3.0)
    expected = 3.0 * torch.randn(50, 4, generator=seeded(5))
    for other_seed in (1, 2):
        torch.manual_seed(other_seed)
        before = torch.get_rng_state()
        weight = torch.zeros(50, 4, requires_grad=True)
        draw_into(weight, initialise, seeded(5))
        assert_same(weight.detach(), expected, 1e-6)
        assert weight.requires_grad
        assert torch.equal(torch.get_rng_state(), before)


def test_without_a_generator_the_global_one_is_used():
    torch.manual_seed(3)
    expected = torch.randn(5)
    torch.manual_seed(3)
    weight = torch.zeros(5)
    draw_into(weight, torch.nn.init.normal_)
    assert_same(weight, expected, 1e-6)


def test_other_dtypes_hold_the_same_numbers_rounded():
    """bfloat16 and meta weights: a model of any dtype is the float32 model, rounded."""
    exact = torch.randn(20, generator=seeded(1), dtype=torch.float64)
    weight = torch.zeros(20, dtype=torch.float64)
    draw_into(weight, torch.nn.init.normal_, seeded(1))
    assert_same(weight, exact, 1e-12)
    nowhere = torch.zeros(20, device="meta")
    draw_into(nowhere, torch.nn.init.normal_, seeded(1))
    assert nowhere.device.type == "meta"
