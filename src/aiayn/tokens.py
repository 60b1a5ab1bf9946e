"""What every chapter shares: special tokens, the device, checks, how weights are drawn.

Hand-written, and below every chapter: a module imports only from earlier chapters
and from here.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import torch

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "as_row_index",
    "check_integers",
    "check_model_tokens",
    "check_positive",
    "check_probability",
    "check_representable",
    "check_sizes",
    "check_token_ids",
    "check_token_roles",
    "check_vectors",
    "describe",
    "device",
    "draw_into",
]

PAD, BOS, EOS = 0, 1, 2
LARGEST = 2**63 - 1  # number that a tensor can hold


def device() -> torch.device:
    """Where tensors go by default: ``AIAYN_DEVICE`` if set, else cuda, mps or cpu.

    Raises:
        ValueError: if ``AIAYN_DEVICE`` is not the name of a device.
    """
    chosen = os.environ.get("AIAYN_DEVICE")
    if chosen:
        try:
            return torch.device(chosen)
        except RuntimeError:
            raise ValueError(
                f"AIAYN_DEVICE={chosen!r} is not a device: expected a name such as "
                "cpu, cuda, cuda:0 or mps"
            ) from None
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def describe(value: Any) -> str:
    """What came, for an error message: dtype and shape of a tensor, else the value."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    text = repr(value)
    if len(text) > 60:  # a list of tensors, a model
        return f"a {type(value).__name__}"
    return f"{text} ({type(value).__name__})"


def check_sizes(minimum: int = 1, **sizes: int) -> None:
    """Refuse sizes that are not whole numbers, or are too small.

    Args:
        minimum: smallest size that makes sense.
        sizes: by argument name, such as ``d_model=512, n_heads=8``.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if one is below the minimum, or above what a tensor can count.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | torch.SymInt):
            raise TypeError(f"{name} must be an integer, got {describe(size)}")
        if size < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {size}")
        if isinstance(size, int) and size > LARGEST:
            raise ValueError(f"{name} must be at most {LARGEST:,}, got {size:,}")


def check_positive(**numbers: float) -> None:
    """Refuse what is not a finite number above 0: a rate, a standard deviation.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is not finite, or not above 0.
    """
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"{name} must be a number, got {describe(number)}")
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{name} must be a positive number, got {number}")


def check_probability(**numbers: float) -> None:
    """Refuse what is not a number from 0 to 1.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is outside [0, 1].
    """
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"{name} must be a number, got {describe(number)}")
        if not 0 <= number <= 1:
            raise ValueError(f"{name} must be between 0 and 1, got {number}")


def check_integers(**tensors: torch.Tensor) -> None:
    """Refuse what is not a tensor of integers: token ids, positions.

    Raises:
        TypeError: naming the argument and what came.
    """
    for name, tensor in tensors.items():
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.is_floating_point()
            or tensor.is_complex()
            or tensor.dtype == torch.bool
        ):
            raise TypeError(f"{name} must hold integers, got {describe(tensor)}")


def as_row_index(rows: torch.Tensor | list[int], batch: int | None) -> torch.Tensor:
    """``rows`` as an index (n_rows,); refused unless each is a row of the batch.

    Args:
        rows: integers, in any order; a row may be missing, or come more than once.
        batch: number of rows there are; None where nothing is held yet.

    Raises:
        TypeError, ValueError: if they are not integers, or not rows of the batch.
    """
    try:
        index = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"rows must hold integers, in one list, got {describe(rows)}"
        ) from None
    if not isinstance(rows, torch.Tensor) and index.numel() == 0:  # [] has no type
        index = index.long()
    check_integers(rows=index)
    if index.dim() != 1:
        raise ValueError(f"rows must be a list of rows, got {describe(rows)}")
    index = index.long()  # torch would take uint8 for a mask
    if batch is None or index.is_meta:
        return index
    if ((index < 0) | (index >= batch)).any():
        raise ValueError(
            f"rows must be a list of 0 to {batch - 1}, got {describe(rows)}"
        )
    return index


def check_vectors(width: int, **tensors: torch.Tensor) -> None:
    """Refuse what is not a tensor of vectors ``(..., width)``.

    Raises:
        TypeError: if it is not a floating-point tensor.
        ValueError: if its last axis is not ``width`` long.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            raise TypeError(
                f"{name} must be a floating-point tensor, got {describe(tensor)}"
            )
        if tensor.dim() == 0 or tensor.shape[-1] != width:
            raise ValueError(
                f"{name} must end in an axis of width {width}, got shape "
                f"{tuple(tensor.shape)}"
            )


def check_token_roles(**roles: int) -> None:
    """Refuse special tokens that are missing or coincide.

    Were PAD and EOS one token, the loss would ignore the end of every sequence and
    the model would never learn to stop.

    Args:
        roles: token ids by argument name, such as ``pad_id=0, eos_id=2``.

    Raises:
        TypeError: if an id is not an integer.
        ValueError: if an id is negative or beyond 64 bits, or two roles share one.
    """
    seen: dict[int, str] = {}
    for name, token in roles.items():
        if isinstance(token, bool) or not isinstance(token, int):
            raise TypeError(
                f"{name} must be an integer token id, got {describe(token)}: every "
                "sequence needs its special tokens"
            )
        if token < 0:
            raise ValueError(f"{name}={token} is not a token id: ids start at 0")
        if token > LARGEST:
            raise ValueError(f"{name}={token:,} is not a token id: no tensor holds it")
        if token in seen:
            raise ValueError(
                f"{name} and {seen[token]} are both {token}: give each role its own id"
            )
        seen[token] = name


def check_sequence(name: str, tokens: torch.Tensor) -> None:
    """Refuse what is no (batch, length) of token ids, or is empty.

    Raises:
        TypeError: if ``tokens`` does not hold integers.
        ValueError: if the shape is another, or the length 0.
    """
    check_integers(**{name: tokens})
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise ValueError(
            f"{name} must be (batch, length) with length at least 1, "
            f"got shape {tuple(tokens.shape)}"
        )


def check_representable(tokens: torch.Tensor, **roles: int) -> None:
    """Refuse tokens of a type that cannot hold the id they are compared with.

    Torch would cut the id down to the type: for int8 tokens, 299 is 43.

    Args:
        tokens: token ids.
        roles: ids by argument name, such as ``pad_id=299``.

    Raises:
        ValueError: if an id is outside the range of the tokens' dtype.
    """
    limits = torch.iinfo(tokens.dtype)
    for name, token in roles.items():
        if not limits.min <= token <= limits.max:
            raise ValueError(
                f"{name}={token} does not fit tokens of {tokens.dtype}: convert them "
                "with .long()"
            )


def check_token_ids(
    tokens: torch.Tensor, vocab_size: int, name: str = "tokens"
) -> None:
    """Refuse token ids outside ``0 … vocab_size - 1``. Called where data enter.

    This reads values, so it has no place inside a model's ``forward``, which must
    also run on the ``meta`` device, under ``vmap`` and compiled.

    Raises:
        TypeError: if ``tokens`` does not hold integers.
        ValueError: if an id is outside the vocabulary; the message names it.
    """
    check_integers(**{name: tokens})
    if tokens.numel() == 0:
        return
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(
            f"{name} holds token id {wrong}, expected 0 to {vocab_size - 1} "
            f"(vocab_size={vocab_size})"
        )


def check_model_tokens(model: Any, **tokens: torch.Tensor) -> None:
    """Refuse token ids outside a model's vocabularies. Called where data enter.

    Args:
        model: what it knows is in ``model.config``: ``source_vocab_size`` and
            ``target_vocab_size``. A model without one is not checked.
        tokens: ``source=``, ``target=``.

    Raises:
        TypeError: if tokens are not integers.
        ValueError: if an id is outside the vocabulary of its side.
    """
    config = getattr(model, "config", None)
    for name, ids in tokens.items():
        check_integers(**{name: ids})
        vocab_size = getattr(config, f"{name}_vocab_size", None)
        if vocab_size is not None:
            check_token_ids(ids, vocab_size, name)


@torch.no_grad()
def draw_into(
    weight: torch.Tensor,
    initialise: Callable[..., torch.Tensor],
    generator: torch.Generator | None = None,
) -> None:
    """Fill a weight with random numbers that depend on the generator alone.

    They are drawn where the generator lives and then copied: one seed gives one model,
    on every device.

    Args:
        weight: filled in place; on the ``meta`` device nothing happens to it.
        initialise: one of ``torch.nn.init``'s functions, with its settings bound.
        generator: torch's global one unless given.

    Raises:
        TypeError: if the generator is not one.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            "generator must be a torch.Generator, such as "
            f"torch.Generator().manual_seed(0), got {describe(generator)}"
        )
    home = weight.device if generator is None else generator.device
    weight.copy_(initialise(torch.empty_like(weight, device=home), generator=generator))
