"""Which arm is better: a verdict on each pair of arms, and the arms that need more seeds.

difference   how much better the first arm of a pair is than the second, over the seeds that both have
test         paired t, valid when looked at after each seed (`evaluation/sequential.py`); Holm over all pairs, so that
             "better" is said wrongly anywhere with probability 1 − confidence at most
interval     at the level of its pair's test: it excludes 0 exactly when "better" is said, and alone it covers the true
             difference with the confidence or more
diverged     a diverged run is worse than any value, and two in one seed are a tie; such a pair has no mean difference
             and is judged by the sign test over seeds, with the same shares and Holm; so is one whose differences are
             all equal, as of a coarse metric
field        an arm that is surely worse than another, or that diverged in all of 3 seeds or more, gets no more seeds
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from chumoku.compare.results import Comparison, RunResult
from chumoku.errors import UsageError
from chumoku.evaluation.paired import (
    CONFIDENCE,
    ROUNDING,
    HolmTest,
    PairedInterval,
    holm,
    paired_bootstrap,
    sign_test,
)
from chumoku.evaluation.sequential import FIRST_LOOK, look_share, sequential_p_value, sequential_t

Verdict = Literal["better", "cannot be told apart", "not judged"]


@dataclass(frozen=True)
class PairVerdict:
    """What is known of two arms. The first is the one with the better mean, or with more seeds won."""

    first: str
    second: str
    verdict: Verdict  # "better": the first is better than the second
    seeds: int  # that both arms have
    interval: (
        PairedInterval | None
    )  # of the difference; None if a run diverged, without spread, or before the first look
    p_value: float  # sequential, adjusted by Holm
    wins: int  # seeds in which the first is better
    losses: int
    diverged: tuple[int, int]  # runs of the first and of the second, among the common seeds
    differences: tuple[float, ...]  # of each common seed; infinite where one diverged, NaN where both did

    @property
    def bootstrap(self) -> PairedInterval | None:
        """The bootstrap's interval of the mean difference at 95 %, not corrected for looks and pairs."""
        return paired_bootstrap(self.differences, [0.0] * self.seeds) if self.interval else None


@dataclass(frozen=True)
class Decision:
    pairs: tuple[PairVerdict, ...]
    ranking: tuple[str, ...]  # all arms, the best mean first; arms with a diverged run after those without
    best: tuple[str, ...]  # arms that are not surely worse than another, in the order of the ranking
    diverging: dict[str, tuple[int, int]]  # arms with diverged runs: how many, of how many seeds
    active: tuple[str, ...]  # arms that need more seeds
    planned_seeds: int
    confidence: float

    @property
    def finished(self) -> bool:
        return not self.active


def decide(comparison: Comparison, *, planned_seeds: int, confidence: float = CONFIDENCE) -> Decision:
    """Judge all pairs of arms with the seeds measured so far.

    planned_seeds    the number of seeds that was planned before the first run; later seeds are not used
    confidence       with which no wrong "better" is said of any pair
    """
    if planned_seeds < 1:
        raise UsageError(f"A comparison needs one planned seed or more; got {planned_seeds}.")
    if not 0 < confidence < 1:
        raise UsageError(f"The confidence is a number between 0 and 1, such as 0.95; got {confidence}.")
    runs = {arm.name: _planned_runs(comparison.runs.get(arm.name, ()), planned_seeds) for arm in comparison.arms}
    ranking = _rank(runs, comparison.metric.lower_is_better)
    candidates = [
        _Pair.of(first, second, runs, comparison.metric.lower_is_better)
        for first, second in itertools.combinations(ranking, 2)
    ]
    tests = holm([pair.p_value(planned_seeds) for pair in candidates], 1 - confidence)
    pairs = tuple(pair.judge(test, planned_seeds) for pair, test in zip(candidates, tests, strict=True))
    worse = {pair.second for pair in pairs if pair.verdict == "better"}
    hopeless = {name for name, done in runs.items() if _always_diverges(done, planned_seeds)}
    best = tuple(name for name in ranking if name not in worse | hopeless)
    left = [name for name in best if name not in comparison.dropped]
    active = [name for name in left if len(runs[name]) < planned_seeds] if len(left) > 1 else []
    diverging = {name: (sum(run.diverged for run in done.values()), len(done)) for name, done in runs.items()}
    return Decision(
        pairs=pairs,
        ranking=ranking,
        best=best,
        diverging={name: counts for name, counts in diverging.items() if counts[0]},
        active=tuple(active),
        planned_seeds=planned_seeds,
        confidence=confidence,
    )


@dataclass(frozen=True)
class _Pair:
    """Values of two arms in their common seeds, signed so that higher is better; diverged runs are −∞."""

    names: tuple[str, str]
    first: list[float]
    second: list[float]

    @classmethod
    def of(cls, first: str, second: str, runs: dict[str, dict[int, RunResult]], lower_is_better: bool) -> _Pair:
        common = [seed for seed in runs[first] if seed in runs[second]]
        one, other = ([_signed(runs[name][seed], lower_is_better) for seed in common] for name in (first, second))
        pair = cls((first, second), one, other)
        return pair if pair.lead >= 0 else cls((second, first), other, one)

    @property
    def lead(self) -> float:
        """Above 0 if the first is ahead: by the mean, or by seeds won if a run diverged."""
        if self.has_spread or not self.diverged:
            return sum(self.first) - sum(self.second)
        return self.wins - self.losses

    @property
    def diverged(self) -> bool:
        return -math.inf in self.first + self.second

    @property
    def differences(self) -> list[float]:
        return [one - other for one, other in zip(self.first, self.second, strict=True)]

    @property
    def wins(self) -> int:
        return sum(one > other for one, other in zip(self.first, self.second, strict=True))

    @property
    def losses(self) -> int:
        return sum(one < other for one, other in zip(self.first, self.second, strict=True))

    @property
    def has_spread(self) -> bool:
        """Whether Student's test applies: two seeds or more, no diverged run, differences that are not all equal."""
        if self.diverged or len(self.first) < 2:
            return False
        return max(self.differences) - min(self.differences) > ROUNDING * max(map(abs, self.differences))

    def p_value(self, planned: int) -> float:
        if self.has_spread:
            return sequential_p_value(self.first, self.second, planned=planned)
        share = look_share(len(self.first), planned)
        return min(1.0, sign_test(self.wins, self.losses) / share) if share else 1.0

    def judge(self, test: HolmTest, planned: int) -> PairVerdict:
        seeds, counts = len(self.first), [values.count(-math.inf) for values in (self.first, self.second)]
        looked = look_share(seeds, planned) > 0
        interval = None
        if looked and self.has_spread:
            interval = sequential_t(self.first, self.second, planned=planned, alpha=test.level)
        elif looked and self.first == self.second and not self.diverged:
            interval = PairedInterval(0.0, 0.0, 0.0, seeds)
        verdict: Verdict = "cannot be told apart"
        if test.rejected:
            verdict = "better"
        elif not looked or seeds in counts:
            verdict = "not judged"
        return PairVerdict(
            *self.names,
            verdict=verdict,
            seeds=seeds,
            interval=interval,
            p_value=test.adjusted,
            wins=self.wins,
            losses=self.losses,
            diverged=(counts[0], counts[1]),
            differences=tuple(self.differences),
        )


def _planned_runs(runs: tuple[RunResult, ...], planned: int) -> dict[int, RunResult]:
    return {run.seed: run for run in sorted(runs, key=lambda run: run.seed)[:planned]}


def _signed(run: RunResult, lower_is_better: bool) -> float:
    if run.value is None:
        return -math.inf
    return -run.value if lower_is_better else run.value


def _rank(runs: dict[str, dict[int, RunResult]], lower_is_better: bool) -> tuple[str, ...]:
    """Arm names by their mean; arms with a diverged run come later, those with more of them last."""

    def key(name: str) -> tuple[bool, float, float]:
        values = [_signed(run, lower_is_better) for run in runs[name].values()]
        finite = [value for value in values if value > -math.inf]
        share = 1 - len(finite) / len(values) if values else 0.0
        return not values, share, -sum(finite) / len(finite) if finite else math.inf

    return tuple(sorted(runs, key=key))


def _always_diverges(runs: dict[int, RunResult], planned: int) -> bool:
    return len(runs) >= min(FIRST_LOOK, planned) and all(run.diverged for run in runs.values())
