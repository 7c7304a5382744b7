"""A paired t-test that may be looked at after each seed, up to a planned number of seeds.

    α       error of the whole test: "better" is said of two equal arms with probability α at most
    N       planned seeds, decided before the first run
    w_n     share of α for the look after n seeds:  w_N = 3/4, the looks from n = 3 to N − 1 share the rest evenly
    p_n     p-value of the paired t-test of the first n seeds
    p       p_n / w_n, valid whenever one stops:  P(p_n ≤ α w_n for any n) ≤ Σ α w_n = α
    interval after n seeds: Student's with confidence 1 − α w_n

Assumption: the differences of the seeds are independent and Gaussian; the looks may depend on each other in any way.
Looking more often than planned, or raising N after a look, is not covered.

Power is simulated with Gaussian differences: the share of paths that cross p ≤ α at any look.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from chumoku.errors import UsageError
from chumoku.evaluation.paired import PairedInterval, paired_p_value, paired_t, student_quantile

FIRST_LOOK = 3
LAST_SHARE = 0.75
PATHS = 10_000  # simulated comparisons
POWER = 0.8


def look_share(seeds: int, planned: int) -> float:
    """The share of the error that the look after so many seeds may spend; 0 before the first look."""
    if seeds > planned:
        raise UsageError(f"A test with {planned} planned seeds has no look after {seeds}.")
    if planned <= FIRST_LOOK:
        return float(seeds == planned > 1)
    if seeds < FIRST_LOOK:
        return 0.0
    return LAST_SHARE if seeds == planned else (1 - LAST_SHARE) / (planned - FIRST_LOOK)


def sequential_p_value(first: ArrayLike, second: ArrayLike, *, planned: int) -> float:
    """The p-value of paired values of the seeds so far, valid if one looks after each seed."""
    share = look_share(np.size(first), planned)
    return min(1.0, paired_p_value(first, second) / share) if share else 1.0


def sequential_t(first: ArrayLike, second: ArrayLike, *, planned: int, alpha: float) -> PairedInterval:
    """The interval of the seeds so far: those of all looks cover the true difference with probability 1 − alpha."""
    share = look_share(np.size(first), planned)
    if not share:
        raise UsageError(f"An interval needs {min(FIRST_LOOK, max(2, planned))} seeds; got {np.size(first)}.")
    return paired_t(first, second, confidence=1 - alpha * share)


def power(effect: float, planned: int, *, alpha: float) -> float:
    """The probability that a difference of `effect` standard deviations of the paired differences is found."""
    looks = [look for look in range(2, planned + 1) if look_share(look, planned)]
    drawn = np.random.default_rng(0).standard_normal((PATHS, planned)) + effect
    found = np.zeros(PATHS, dtype=bool)
    for look in looks:
        part = drawn[:, :look]
        t = part.mean(1) / part.std(1, ddof=1) * np.sqrt(look)
        found |= np.abs(t) >= student_quantile(1 - alpha * look_share(look, planned), look - 1)
    return float(found.mean())


@cache
def detectable_effect(planned: int, *, alpha: float, wanted: float = POWER) -> float:
    """The effect, in standard deviations of the paired differences, that is found with the wanted probability."""
    low, high = 0.0, 1.0
    while power(high, planned, alpha=alpha) < wanted:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, planned, alpha=alpha) < wanted else (low, middle)
    return high
