"""Timing for a noisy machine: contestants take turns, and only ratios within a turn are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def turns(contestants: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant, round by round, after one unmeasured round."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Median and quartiles of ours / theirs, turn by turn: below 1, we are faster."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}
