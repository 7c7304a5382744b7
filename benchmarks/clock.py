"""Timing for a noisy machine: functions run alternately, and only ratios within a round are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def time_alternately(
    functions: dict[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each function in every round, after one warm-up round that is not measured."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            start = clock()
            function()
            if number:
                seconds[name].append(clock() - start)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Median and quartiles of ours / theirs per round; below 1 means ours is faster."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}
