"""How long contenders take, measured side by side.

A shared machine drifts: the same call takes longer when something else runs. So
contenders take turns, and each is compared with the one that ran in the same turn.
`make bench` and the cells that measure on the reader's machine use these functions.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["exponent", "paired_ratio", "take_turns"]


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    *,
    turns: int = 9,
    least: float = 0.02,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of one call of each contender, once in every turn.

    A call too short to be timed alone is repeated, as often for each turn. Turns begin
    with another contender each, so that none is always the first.

    Args:
        contenders: functions without arguments, by name.
        turns: how often each is measured.
        least: seconds that a measurement should take at least.
        clock: the process's CPU time unless given, which other processes do not enter.
    """
    if turns < 1 or not contenders:
        raise ValueError(f"needs contenders and turns, got {turns} turns")
    repeats = {name: repeats_for(run, least, clock) for name, run in contenders.items()}
    order, seconds = list(contenders), {name: [] for name in contenders}
    for _ in range(turns):
        for name in order:
            start = clock()
            for _ in range(repeats[name]):
                contenders[name]()
            seconds[name].append((clock() - start) / repeats[name])
        order.append(order.pop(0))
    return seconds


def repeats_for(
    run: Callable[[], object], least: float, clock: Callable[[], float]
) -> int:
    """How many calls take ``least`` seconds; the calls made to find out warm up."""
    run()  # the first call also allocates and chooses kernels
    repeats = 1
    while True:
        start = clock()
        for _ in range(repeats):
            run()
        took = clock() - start
        if took >= least:
            return repeats
        grow = least / took if took > 0 else 10
        repeats = math.ceil(repeats * min(10, max(1.5, grow)))


def paired_ratio(
    seconds: Sequence[float], base: Sequence[float]
) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the turns' ratios to ``base``."""
    ratios = [a / b for a, b in zip(seconds, base, strict=True)]
    if len(ratios) == 1:
        return (ratios[0],) * 3
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, statistics.median(ratios), high


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The power of size with which time grows: a least-squares line through logarithms.

    Its slope is p if time is c·sizeᵖ.
    """
    return statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(second) for second in seconds]
    ).slope
