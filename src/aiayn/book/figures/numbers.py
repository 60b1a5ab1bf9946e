"""Numbers as a figure shows them: checked, rounded, written; ticks of an axis."""

import math
from collections.abc import Sequence


def with_minus(text: str) -> str:
    return text.replace("-", "−")


def as_lists(value):
    """A tensor or array as nested lists."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_lists(item) for item in value]
    return value


def check_number(value, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{where}: expected a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{where}: {value} is not finite")
    return value


def decimals_for(values, given: int | None) -> int:
    """Decimals that give the largest number four digits."""
    if given is not None:
        return given
    values = list(values)
    if all(float(value).is_integer() for value in values):
        return 0
    largest = max(map(abs, values))
    return min(4, max(0, 3 - math.floor(math.log10(largest))))


def rounded(value: float, decimals: int) -> float | int:
    value = round(value, decimals) + 0.0  # no negative zero
    return value if decimals else int(value)


def fixed(value: float, decimals: int) -> str:
    return with_minus(f"{value:.{decimals}f}")


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def scalar_text(value) -> str:
    """One number on its own, with four significant digits."""
    if isinstance(value, int):
        return with_minus(f"{value:,}")
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return with_minus(f"{value:,.0f}")
    if abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return with_minus(f"{mantissa} × 10") + str(int(exponent)).translate(
            SUPERSCRIPTS
        )
    return with_minus(f"{value:.{decimals_for([value], None)}f}")


def ticks_within(low: float, high: float) -> tuple[list[float], int]:
    """At most six round numbers within [low, high], and their decimals."""
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [round(n * step, decimals) for n in range(first, last + 1)], decimals


def round_span(values: list[float], *, zero: bool) -> tuple[float, float]:
    """A range of round ends that holds all values."""
    low, high = min(values), max(values)
    if zero:
        low, high = min(low, 0), max(high, 0)
    if low == high:
        low, high = low - (0 if zero else 1), high + 1
    ticks, _ = ticks_within(low, high)
    step = ticks[1] - ticks[0]
    return (
        round(math.floor(low / step + 1e-9) * step, 10),
        round(math.ceil(high / step - 1e-9) * step, 10),
    )
