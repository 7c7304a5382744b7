"""Rounds of a comparison: a learning rate for each arm, then more seeds for every arm that is still open.

    search of the learning rate (seeds of its own) → first round → decide → next round → decide → …

The first round has as many seeds as the first look needs (`evaluation/sequential.py`). After each round `decide` says
which arms need more seeds. Decisions depend on results alone, in the order of the seeds, so a command that was killed
and repeated gives the same answer. Only a budget depends on measured time: a round starts if the time of the last runs
fits into what is left. Times are stored with the results, so a repeated command decides in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chumoku.compare.equal_cost import Equal
from chumoku.compare.jobs import Job
from chumoku.compare.metrics import METRICS
from chumoku.compare.plan import Plan, PlannedArm
from chumoku.compare.rates import FACTOR, search_rates
from chumoku.compare.report import Report
from chumoku.compare.request import Options
from chumoku.compare.results import Arm, Comparison, RunResult
from chumoku.compare.verdicts import decide
from chumoku.errors import pluralize
from chumoku.evaluation.sequential import FIRST_LOOK
from chumoku.probe.bilingual import Words

SEARCH_SEEDS = 1_000_000  # seeds of the learning-rate search start this much above those of the verdict


@dataclass
class Rounds:
    """A comparison while it runs."""

    plan: Plan
    options: Options
    run: Callable[[Sequence[Job]], Sequence[RunResult]]
    report: Report
    recipe: str
    equal: Equal
    seconds: float = 0.0
    arms: dict[str, Arm] = field(default_factory=dict)
    results: dict[str, list[RunResult]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)  # seconds of a run of each arm, by the search
    notes: list[Words] = field(default_factory=list)

    def compare(self) -> Comparison:
        """Search the learning rates, then add seeds round by round until all is decided or the budget is spent."""
        self.notes = list(self.plan.notes)
        self.choose_rates()
        self.results = {name: [] for name in self.arms}
        active, done, planned = list(self.arms), 0, self.options.seeds
        while done < planned:
            more = min(max(self.seeds_per_round, FIRST_LOOK - done), planned - done)
            if not self.fits_budget(active, more):
                if not done:
                    self.notes.append(
                        Words(
                            f"The budget is not enough for the first {pluralize(more, 'seed')} of every arm.",
                            f"予算が足りず、どの選択肢も最初の {more} シードを学習できません。",
                        )
                    )
                return self.table("budget")
            self.add_seeds(active, done, more)
            done += more
            decision = decide(self.table("seeds"), planned_seeds=planned, confidence=self.options.confidence)
            if done == planned:
                break
            if decision.finished:
                return self.table("decided")
            for name in [name for name in active if name not in decision.active]:
                self.dropped[name] = done
                self.report.info(f"{name} needs no more seeds after {pluralize(done, 'seed')}.")
            active = [name for name in active if name in decision.active]
        return self.table("seeds")

    @property
    def seeds_per_round(self) -> int:
        on_gpu = str(self.plan.arms[0].adjusted.recipe.train.device).startswith("cuda")
        return self.options.seeds_per_round or (FIRST_LOOK if on_gpu else 1)

    def train(self, jobs: Sequence[Job]) -> Sequence[RunResult]:
        results = self.run(jobs)
        unique = {job.id: result.seconds for job, result in zip(jobs, results, strict=True)}
        self.seconds += sum(unique.values())
        return results

    def choose_rates(self) -> None:
        """Give each arm its learning rate: that of the search, or its own if a choice sets it."""
        by_name = {arm.name: arm for arm in self.plan.arms}
        count = 1 if sets_learning_rate(self.plan) else self.options.rates
        centers = {name: arm.adjusted.recipe.peak_learning_rate for name, arm in by_name.items()}
        if count == 1:
            self.notes.append(
                Words(
                    "Learning rates were not searched: each arm has that of its recipe.",
                    "学習率は探索していません。どの選択肢もレシピの値です。",
                )
            )
            self.arms = {name: make_arm(arm, centers[name]) for name, arm in by_name.items()}
            return
        share, seed = self.options.search_steps, self.base_seed(by_name) + SEARCH_SEEDS
        metric = METRICS[self.plan.metric]

        def run(trials: Sequence[tuple[str, float]]) -> Sequence[RunResult]:
            jobs = [self.plan.job(by_name[name], rate=rate, seed=seed, share=share) for name, rate in trials]
            results = self.train(jobs)
            self.expected |= {name: one.seconds / share for (name, _), one in zip(trials, results, strict=True)}
            return results

        self.notes.append(
            Words(
                f"Search of the learning rate: {count} rates for each arm, a factor of {FACTOR:g} apart, on seed "
                f"{seed}, for {share:.0%} of the steps.",
                f"学習率の探索: 選択肢ごとに {FACTOR:g} 倍間隔で {count} 個、シード {seed}、ステップ数の {share:.0%}。",
            )
        )
        self.report.info(self.notes[-1])
        for name, search in search_rates(centers, count, metric, run).items():
            rate = search.rate(search.best(metric))
            tried = ", ".join(
                f"{search.rate(k):g}: {'diverged' if value is None else f'{value:.4f}'}"
                for k, value in sorted(search.values.items())
            )
            self.report.info(f"{name}: learning rate {rate:g} ({tried}).")
            note = search.note(name, metric)
            self.notes += [] if note is None else [note]
            self.arms[name] = make_arm(by_name[name], rate)

    def base_seed(self, arms: Mapping[str, PlannedArm]) -> int:
        return next(iter(arms.values())).adjusted.recipe.train.seed

    def add_seeds(self, active: Sequence[str], done: int, more: int) -> None:
        by_name = {arm.name: arm for arm in self.plan.arms}
        seeds = [self.base_seed(by_name) + done + place for place in range(more)]
        wanted = [(name, seed) for name in active for seed in seeds]
        jobs = [self.plan.job(by_name[name], rate=self.arms[name].learning_rate, seed=seed) for name, seed in wanted]
        for (name, _), result in zip(wanted, self.train(jobs), strict=True):
            self.results[name].append(result)

    def fits_budget(self, active: Sequence[str], more: int) -> bool:
        """Whether another round fits: an arm takes as long as its last run, at first as its search suggests."""
        if self.options.budget is None:
            return True
        left = self.options.budget - self.seconds
        times = (
            self.results[name][-1].seconds if self.results[name] else self.expected.get(name, 0) for name in active
        )
        return left > more * sum(times)

    def table(self, stopped: str) -> Comparison:
        return Comparison(
            recipe=self.recipe,
            equal=self.equal,
            metric=METRICS[self.plan.metric],
            arms=tuple(self.arms.values()),
            runs={name: tuple(results) for name, results in self.results.items()},
            dropped=dict(self.dropped),
            seconds=self.seconds,
            stopped=stopped,
            notes=tuple(self.notes),
        )


def sets_learning_rate(plan: Plan) -> bool:
    """Whether the learning rate is one of the choices; it is then not searched."""
    return any(part.startswith("optimizer.learning_rate=") for arm in plan.arms for part in arm.name.split())


def make_arm(arm: PlannedArm, rate: float) -> Arm:
    cost = arm.adjusted.cost
    overrides = [one for one in arm.overrides if not one.startswith("optimizer.learning_rate=")]
    return Arm(
        name=arm.name,
        overrides=(*overrides, f"optimizer.learning_rate={rate}"),
        adjusted=arm.adjusted.words,
        parameters=cost.parameters,
        flops=cost.flops,
        tokens=cost.tokens,
        learning_rate=rate,
    )
