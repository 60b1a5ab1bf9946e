"""Numbers and texts as a figure shows them: checked, rounded, written; an axis' ticks."""

import math
from collections.abc import Sequence


TOO_LARGE = 1e15
"""From here on a floating-point number has no room for decimals."""
MOST_DECIMALS = 10


def check_text(value, where: str, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{where}: expected a text, got {value!r}")
    if not empty and not value.strip():
        raise ValueError(f"{where}: an empty text")
    return value


def check_decimals(value, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{where}, decimals: expected a whole number, got {value!r}")
    if not 0 <= value <= MOST_DECIMALS:
        raise ValueError(f"{where}, decimals: {value} is not from 0 to {MOST_DECIMALS}")
    return value


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
    if abs(value) >= TOO_LARGE:
        raise ValueError(f"{where}: {value:.4g} is too large to show; rescale")
    return value


def check_maximum(value, where: str) -> float | None:
    if value is not None and check_number(value, f"{where}, maximum") <= 0:
        raise ValueError(f"{where}, maximum: {value} is not above zero")
    return value


def check_below(maximum: float | None, largest: float, where: str) -> None:
    """Refuse what is above the maximum by more than a sum of weights is above 1."""
    if maximum is not None and largest > maximum * (1 + 1e-6):
        raise ValueError(f"{where}: {largest:.7g} is above maximum={maximum:.7g}")


def shown_decimals(values, given: int | None, where: str) -> int:
    """Decimals for these values; refuses them if nothing is left of any of them."""
    decimals, largest = decimals_for(values, given), max(map(abs, values))
    if largest > 0 == rounded(largest, decimals):
        raise ValueError(
            f"{where}: all numbers round to zero, the largest is {largest:.4g} and "
            f"decimals={decimals}; rescale"
        )
    return decimals


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


def power_of_ten(text: str) -> str:
    """1.5e-07 as 1.5 × 10⁻⁷."""
    mantissa, exponent = text.split("e")
    exponent = str(int(exponent)).translate(SUPERSCRIPTS)
    return f"{with_minus(mantissa)} × 10{exponent}"


def value_text(value, where: str) -> str:
    """A control's value, or the name of a bar, a row or a column, as text."""
    if isinstance(value, int):
        text = with_minus(str(value))
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: {value} is not finite")
        whole = value.is_integer() and abs(value) < TOO_LARGE
        text = str(int(value)) if whole else f"{value:.4g}"
        if "e+" in text and abs(value) < TOO_LARGE:
            text = f"{value:.0f}"
        text = power_of_ten(text) if "e" in text else with_minus(text)
    elif value is None or isinstance(value, str):
        text = str(value)
    else:
        raise TypeError(f"{where}: {value!r:.60} is neither a number nor a text")
    return check_text(text, where)


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
        return power_of_ten(f"{value:.2e}")
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
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # as good as equal
        wider = max(1, abs(high) / 1000)
        low, high = low - (0 if zero else wider), high + wider
    ticks, decimals = ticks_within(low, high)
    step = ticks[1] - ticks[0]
    return (
        round(math.floor(low / step + 1e-9) * step, decimals),
        round(math.ceil(high / step - 1e-9) * step, decimals),
    )
