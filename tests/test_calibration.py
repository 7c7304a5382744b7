"""Equal arms are called better in 5 % of comparisons at most; a planted difference is found as often as planned."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from comparisons import table

from chumoku.compare import verdicts
from chumoku.compare.verdicts import Decision, decide
from chumoku.evaluation import sequential
from chumoku.evaluation.sequential import detectable_effect, power

COMPARISONS = 400
PLANNED = 7
LIMIT = 0.05 + 3 * math.sqrt(0.05 * 0.95 / COMPARISONS)  # 5 % and three standard errors


def gaussian(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape)


def heavy_tailed(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_t(3, shape)


def compare(values: np.ndarray, planned: int = PLANNED) -> Decision:
    """Look after each seed, and give more seeds only to the arms that need them."""
    whole = table({f"arm {number}": list(row) for number, row in enumerate(values)})
    seeds = dict.fromkeys(whole.runs, 1)
    while True:
        runs = {name: whole.runs[name][:count] for name, count in seeds.items()}
        decision = decide(dataclasses.replace(whole, runs=runs), planned_seeds=planned)
        if decision.finished:
            return decision
        seeds |= {name: seeds[name] + 1 for name in decision.active}


def share_found(
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray],
    *,
    arms: int = 2,
    effect: float = 0.0,
    planned: int = PLANNED,
    wrong: bool = False,
) -> float:
    """The share of comparisons that say "better" of any pair, where the last arm is worse by effect · σ(differences).

    wrong    count only pairs of the other arms, which are equal
    """
    random, found = np.random.default_rng(0), 0
    for _ in range(COMPARISONS):
        values = draw(random, (arms, planned)) + 5 * random.standard_normal(planned)  # seeds are harder or easier
        values[-1] += effect * math.sqrt(2)
        pairs = [pair for pair in compare(values, planned).pairs if pair.verdict == "better"]
        last = f"arm {arms - 1}"
        found += any(not wrong or last not in (pair.first, pair.second) for pair in pairs)
    return found / COMPARISONS


@pytest.mark.parametrize(("draw", "arms"), [(gaussian, 2), (heavy_tailed, 2), (gaussian, 3)])
def test_equal_arms_are_rarely_called_better(
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray], arms: int
) -> None:
    assert share_found(draw, arms=arms) <= LIMIT


def test_equal_arms_beside_a_worse_one_are_rarely_called_better() -> None:
    assert share_found(gaussian, arms=3, effect=20.0, wrong=True) <= LIMIT


def test_looking_without_a_correction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check fails for the usual mistake: the t-test at 5 % after each seed."""
    for module in (sequential, verdicts):
        monkeypatch.setattr(module, "look_share", lambda seeds, planned: float(seeds > 1))
    assert share_found(gaussian, planned=13) > LIMIT


def test_a_planted_difference_is_found_as_often_as_planned() -> None:
    effect = detectable_effect(PLANNED, alpha=0.05)
    assert power(effect, PLANNED, alpha=0.05) == pytest.approx(0.8, abs=0.01)
    error = 3 * math.sqrt(0.8 * 0.2 / COMPARISONS)
    assert share_found(gaussian, effect=effect) == pytest.approx(0.8, abs=error)
    assert power(0.0, PLANNED, alpha=0.05) <= 0.05
