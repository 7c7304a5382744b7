"""Paired statistics: two models measured on the same seeds, documents or sentences.

    differences        d_i = first_i − second_i,   weights w_i (1, or the tokens of document i)
    mean               m = Σ w_i d_i / Σ w_i
    standard error     s = √(n / (n−1) · Σ (w_i (d_i − m))²) / Σ w_i        the usual s/√n if all weights are 1
    t interval         m ± t · s with Student's t of n − 1 degrees of freedom; assumes that m is about Gaussian
    bootstrap          the middle 95 % of m over test sets drawn from the n units with replacement; needs many units
    sign test          P(a fair coin falls at least as unevenly); assumes nothing but independent units
    Holm               the i-th smallest of m p-values is tested at α / (m − i + 1), until one is above its level

Student's distribution is the finite sum over integer degrees of freedom (Abramowitz & Stegun, 26.7.3 and 26.7.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chumoku.errors import UsageError

CONFIDENCE = 0.95
DRAWS = 2000  # test sets drawn by the bootstrap
AT_ONCE = 1 << 20  # units drawn at a time
ROUNDING = 1e-9  # a spread below this share of the mean comes from rounding

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairedInterval:
    """The mean of first − second with its interval."""

    difference: float
    low: float
    high: float
    count: int  # units: seeds, documents or sentences

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_t(
    first: ArrayLike, second: ArrayLike, *, confidence: float = CONFIDENCE, weights: ArrayLike | None = None
) -> PairedInterval:
    """The mean difference of paired values with Student's interval.

    weights    of each unit, such as the tokens of a document; default: all equal
    """
    differences, weight = _pairs(first, second, weights)
    mean, error = _mean_and_error(differences, weight)
    margin = student_quantile(confidence, len(differences) - 1) * error
    return PairedInterval(mean, mean - margin, mean + margin, len(differences))


def paired_p_value(first: ArrayLike, second: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The two-sided p-value of the paired t-test.

    If all differences are equal, their spread says nothing about the error, and the sign test is used.
    """
    differences, weight = _pairs(first, second, weights)
    mean, error = _mean_and_error(differences, weight)
    if error <= ROUNDING * abs(mean):
        return sign_test(len(differences), 0) if mean else 1.0
    return student_tails(mean / error, len(differences) - 1)


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    weights: ArrayLike | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> PairedInterval:
    """The mean difference of paired values with the bootstrap's percentile interval, the same for one seed."""
    differences, weight = _pairs(first, second, weights)
    count, rng = len(differences), np.random.default_rng(seed)
    means: list[Floats] = []
    step = max(1, AT_ONCE // count)
    for start in range(0, draws, step):
        drawn = rng.integers(0, count, (min(step, draws - start), count))
        means.append((differences * weight)[drawn].sum(1) / weight[drawn].sum(1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return PairedInterval(_mean_and_error(differences, weight)[0], float(low), float(high), count)


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p-value of so many wins and losses if both were equally likely. Ties are left out of both."""
    count, fewer = wins + losses, min(wins, losses)
    tail = sum(math.comb(count, number) for number in range(fewer + 1)) / (1 << count)
    return min(1.0, 2 * tail)


class HolmTest(NamedTuple):
    adjusted: float  # the p-value, to be compared with α
    level: float  # the level at which this one was tested
    rejected: bool


def holm(p_values: Sequence[float], alpha: float) -> list[HolmTest]:
    """Holm's test of each p-value: with probability 1 − α or more, no true hypothesis is rejected."""
    count, largest, rejected = len(p_values), 0.0, 0
    tests: dict[int, HolmTest] = {}
    for number in sorted(range(count), key=lambda number: p_values[number]):
        largest = max(largest, min(1.0, (count - len(tests)) * p_values[number]))
        level, holds = alpha / (count - rejected), largest <= alpha
        tests[number] = HolmTest(largest, level, holds)
        rejected += holds
    return [tests[number] for number in range(count)]


def student_tails(t: float, degrees: int) -> float:
    """P(|T| ≥ |t|) of Student's distribution with an integer number of degrees of freedom."""
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    if degrees % 2 == 0:
        numbers = np.arange(1, degrees - 1, 2)
        return max(0.0, 1 - sine * _series(numbers, square))
    numbers = np.arange(2, degrees - 1, 2)
    middle = angle + (sine * math.sqrt(square) * _series(numbers, square) if degrees > 1 else 0.0)
    return max(0.0, 1 - 2 / math.pi * middle)


def _series(numbers: NDArray[np.int64], square: float) -> float:
    """1 + (k₁/(k₁+1)) x + (k₁ k₂ / ((k₁+1)(k₂+1))) x² + …"""
    return 1 + float(np.cumprod(numbers / (numbers + 1) * square).sum())


@cache
def student_quantile(confidence: float, degrees: int) -> float:
    """The t with P(|T| < t) = confidence: 12.706 for 95 % and one degree of freedom."""
    low, high = 0.0, 1.0
    while student_tails(high, degrees) > 1 - confidence:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if student_tails(middle, degrees) > 1 - confidence else (low, middle)
    return high


def _pairs(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None) -> tuple[Floats, Floats]:
    """Differences and weights, checked."""
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    weight = np.ones(one.shape) if weights is None else np.asarray(weights, np.float64)
    if one.ndim != 1 or one.shape != other.shape or one.shape != weight.shape:
        raise UsageError(f"Paired values need lists of equal lengths; got {one.shape}, {other.shape}, {weight.shape}.")
    if len(one) < 2:
        raise UsageError("An interval needs two pairs of values or more.")
    if not (np.isfinite(one).all() and np.isfinite(other).all() and (weight > 0).all() and np.isfinite(weight).all()):
        raise UsageError("Paired values must be finite numbers, and their weights above 0.")
    return one - other, weight


def _mean_and_error(differences: Floats, weight: Floats) -> tuple[float, float]:
    mean = float((weight * differences).sum() / weight.sum())
    squares = float(((weight * (differences - mean)) ** 2).sum())
    count = len(differences)
    return mean, math.sqrt(count / (count - 1) * squares) / float(weight.sum())
