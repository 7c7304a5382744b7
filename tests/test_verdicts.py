"""Verdicts on pairs of arms, and the arms that need more seeds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from comparisons import table

from chumoku.compare.results import Metric
from chumoku.compare.verdicts import PairVerdict, decide
from chumoku.errors import UsageError
from chumoku.evaluation.paired import paired_t

BASE = [3.01, 2.97, 3.05, 2.99, 3.02, 2.96, 3.04]


def shifted(by: float, spread: float = 0.003) -> list[float]:
    noise = [0.3, -1.1, 0.7, 1.3, -0.9, 0.2, -0.5]
    return [value + by + spread * part for value, part in zip(BASE, noise, strict=True)]


def pair_of(pairs: tuple[PairVerdict, ...], one: str, other: str) -> PairVerdict:
    return next(pair for pair in pairs if {pair.first, pair.second} == {one, other})


def test_a_clear_difference_is_better_and_a_small_one_is_not() -> None:
    decision = decide(table({"none": shifted(0.1), "rotary": BASE, "learned": shifted(0.001)}), planned_seeds=7)
    assert decision.ranking == ("rotary", "learned", "none")
    assert decision.best == ("rotary", "learned")
    assert decision.finished
    better = pair_of(decision.pairs, "none", "rotary")
    assert (better.first, better.second, better.verdict, better.seeds) == ("rotary", "none", "better", 7)
    assert better.interval is not None
    assert better.interval.excludes_zero
    assert better.interval.difference == pytest.approx(0.1)
    equal = pair_of(decision.pairs, "learned", "rotary")
    assert equal.verdict == "cannot be told apart"
    assert equal.interval is not None
    assert not equal.interval.excludes_zero


def test_the_interval_has_the_share_of_the_last_look_and_the_level_of_holm() -> None:
    values = {"a": BASE, "b": shifted(0.1), "c": shifted(0.2, 0.007)}
    decision = decide(table(values), planned_seeds=7)
    lows = {pair.interval.low for pair in decision.pairs if pair.interval is not None}
    levels = {("a", "b"): 0.05 / 3, ("a", "c"): 0.05 / 2, ("b", "c"): 0.05}
    expected = {
        paired_t(values[second], values[first], confidence=1 - 0.75 * level).low
        for (first, second), level in levels.items()
    }
    assert sorted(lows) == pytest.approx(sorted(expected))


def test_higher_is_better_for_scores() -> None:
    scores = Metric("BLEU", "BLEU", False)
    decision = decide(table({"low": BASE, "high": shifted(0.1)}, metric=scores), planned_seeds=7)
    assert (decision.pairs[0].first, decision.pairs[0].verdict) == ("high", "better")


def test_an_arm_that_is_surely_worse_gets_no_more_seeds() -> None:
    values = {"a": BASE[:5], "b": shifted(0.0)[:5], "bad": shifted(1.0)[:5]}
    decision = decide(table(values), planned_seeds=7)
    assert set(decision.active) == {"a", "b"}
    assert not decision.finished
    assert decide(table({"a": BASE[:5], "bad": shifted(1.0)[:5]}), planned_seeds=7).finished
    frozen = decide(table({"a": BASE, "b": shifted(0.0), "bad": shifted(1.0)[:5]}), planned_seeds=7)
    assert pair_of(frozen.pairs, "a", "bad").verdict == "better"
    assert pair_of(frozen.pairs, "a", "bad").seeds == 5


def test_an_arm_that_was_dropped_stays_out() -> None:
    comparison = table({"a": BASE[:5], "b": shifted(0.0)[:5], "c": shifted(0.0)[:5]})
    again = decide(dataclasses.replace(comparison, dropped={"c": 5}), planned_seeds=7)
    assert set(again.active) == {"a", "b"}


def test_nothing_is_judged_before_the_first_look() -> None:
    decision = decide(table({"a": BASE[:2], "b": shifted(1.0)[:2]}), planned_seeds=7)
    assert decision.pairs[0].verdict == "not judged"
    assert set(decision.active) == {"a", "b"}
    alone = decide(table({"a": BASE[:1], "b": shifted(1.0)[:1]}), planned_seeds=1)
    assert alone.pairs[0].verdict == "not judged"
    assert alone.finished


def test_seeds_are_paired_by_number_and_later_ones_ignored() -> None:
    """Unpaired, the seeds' own spread would hide the difference."""
    wide = [1.0, 5.0, 2.0, 9.0, 3.0, 7.0, 4.0]
    comparison = table({"a": wide, "b": [value + 0.1 + 0.001 * place for place, value in enumerate(wide)]})
    reversed_runs = {"a": comparison.runs["a"], "b": comparison.runs["b"][::-1]}
    backwards = dataclasses.replace(comparison, runs=reversed_runs)
    assert decide(backwards, planned_seeds=7).pairs[0].verdict == "better"
    assert decide(backwards, planned_seeds=5).pairs[0].seeds == 5


def test_an_arm_that_always_diverges_is_dropped_and_said_to_diverge() -> None:
    decision = decide(table({"a": BASE[:3], "b": shifted(0.0)[:3], "wild": [None] * 3}), planned_seeds=7)
    assert decision.diverging == {"wild": (3, 3)}
    assert set(decision.active) == {"a", "b"}
    assert decision.ranking[-1] == "wild"
    pair = pair_of(decision.pairs, "a", "wild")
    assert (pair.first, pair.verdict, pair.diverged, pair.interval) == ("a", "not judged", (0, 3), None)
    assert decide(table({"a": [None] * 3, "b": [None] * 3}), planned_seeds=7).finished


def test_a_diverged_run_counts_as_worse_than_any_value() -> None:
    """One that diverges in every second seed and is far better otherwise is not better."""
    rare = [None if seed % 2 else value - 1.0 for seed, value in enumerate(BASE)]
    decision = decide(table({"rare": rare, "a": BASE}), planned_seeds=7)
    pair = decision.pairs[0]
    assert decision.ranking == ("a", "rare")
    assert (pair.verdict, pair.interval) == ("cannot be told apart", None)
    assert {pair.wins, pair.losses} == {3, 4}
    count = 23
    values = list(np.linspace(2.9, 3.1, count))
    broken = [None] * 17 + [value + 0.01 for value in values[17:]]
    pair = decide(table({"a": values, "broken": broken}), planned_seeds=count).pairs[0]
    assert (pair.first, pair.verdict, pair.wins, pair.losses) == ("a", "better", count, 0)


def test_equal_arms_are_not_told_apart_and_equal_differences_not_trusted() -> None:
    same = decide(table({"a": BASE, "b": BASE}), planned_seeds=7).pairs[0]
    assert (same.verdict, same.p_value) == ("cannot be told apart", 1.0)
    coarse = decide(table({"a": [0.25] * 5, "b": [0.5] * 5}), planned_seeds=5).pairs[0]
    assert (coarse.verdict, coarse.interval) == ("cannot be told apart", None)


@pytest.mark.parametrize("options", [{"planned_seeds": 0}, {"planned_seeds": 3, "confidence": 95}])
def test_plans_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        decide(table({"a": BASE, "b": BASE}), **options)
