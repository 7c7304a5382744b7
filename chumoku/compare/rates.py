"""The same small search of the learning rate for every arm, on a seed that is not used for the verdict.

    rates    r · 2^k for k = −n … n around the recipe's r; the best has the best metric at a share of the steps

If the best rate is the lowest or the highest, the next one beyond it is tried, too, at most three times; if it is still
at the edge, a note says so. A shorter run with its own schedule prefers slightly higher rates than a full one, by the
same amount for similar arms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chumoku.compare.results import Metric, RunResult
from chumoku.probe.bilingual import Words

FACTOR = 2.0  # between neighboring rates
EXTENSIONS = 3  # most rates that are added at the edges
HIGHEST = 1e3  # optimizer.learning_rate allows no more

Trial = tuple[str, float]  # an arm's name and a learning rate


@dataclass
class Search:
    """The rates tried for one arm, as exponents k of r · 2^k, with their values; None if the run diverged."""

    center: float
    count: int  # rates of the first round, an odd number
    values: dict[int, float | None] = field(default_factory=dict)

    def rate(self, exponent: int) -> float:
        return float(f"{min(HIGHEST, self.center * FACTOR**exponent):.3g}")

    def next_exponents(self, metric: Metric) -> list[int]:
        """What is to be tried next; empty if the search is over."""
        half = self.count // 2
        if not self.values:
            return list(range(-half, half + 1))
        if self.count == 1 or len(self.values) >= self.count + EXTENSIONS:
            return []
        best, lowest, highest = self.best(metric), min(self.values), max(self.values)
        if best == lowest:
            return [lowest - 1]
        if best == highest and self.rate(highest + 1) > self.rate(highest):
            return [highest + 1]
        return []

    def best(self, metric: Metric) -> int:
        """The exponent with the best value, of equal ones the lowest; the lowest of all if every run diverged."""
        finite = {exponent: value for exponent, value in sorted(self.values.items()) if value is not None}
        if not finite:
            return min(self.values)
        sign = 1 if metric.lower_is_better else -1
        return min(finite, key=lambda exponent: sign * finite[exponent])

    def note(self, arm: str, metric: Metric) -> Words | None:
        """A sentence if the best rate is at the edge of those tried, or if no run was finite."""
        if self.count == 1:
            return None
        low, high = (f"{self.rate(find(self.values)):g}" for find in (min, max))
        if all(value is None for value in self.values.values()):
            return Words(
                f"{arm}: every learning rate from {low} to {high} diverged in the search; the lowest is used.",
                f"{arm}: 探索では {low} から {high} までの学習率すべてで発散したので、最小の値を使います。",
            )
        best = self.best(metric)
        if best in (min(self.values), max(self.values)):
            return Words(
                f"{arm}: the best learning rate, {self.rate(best):g}, is at the edge of those tried ({low} to {high}).",
                f"{arm}: 最良の学習率 {self.rate(best):g} は、試した範囲（{low} から {high}）の端です。",
            )
        return None


def search_rates(
    centers: Mapping[str, float], count: int, metric: Metric, run: Callable[[Sequence[Trial]], Sequence[RunResult]]
) -> dict[str, Search]:
    """The finished search of each arm; `run` trains all trials of a round."""
    searches = {arm: Search(center, count) for arm, center in centers.items()}
    while True:
        planned = [(arm, k) for arm, search in searches.items() for k in search.next_exponents(metric)]
        if not planned:
            return searches
        results = run([(arm, searches[arm].rate(k)) for arm, k in planned])
        for (arm, k), result in zip(planned, results, strict=True):
            searches[arm].values[k] = result.value
