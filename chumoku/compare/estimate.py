"""The plan of a comparison in words: arms with adjusted sizes, the number of runs, and the time that they take.

time ≈ Σ_arms seconds per step · steps · (rates · share of the steps + seeds)
"""

from __future__ import annotations

import os
from pathlib import Path

from chumoku.compare.plan import Plan, make_plan
from chumoku.compare.report import Report
from chumoku.compare.request import Options, Request
from chumoku.compare.rounds import sets_learning_rate
from chumoku.compare.step_times import read_or_measure
from chumoku.errors import UsageError, pluralize
from chumoku.messages import choose
from chumoku.training.interrupt import lock_folder
from chumoku.training.plan import format_duration

MAX_PROCESSES = 4096


def describe_plan(plan: Plan) -> list[str]:
    """A line for each arm: its size, its cost and what was adjusted."""
    lines = []
    for arm in plan.arms:
        cost = arm.adjusted.cost
        changed = "; ".join(arm.adjusted.words) or "nothing adjusted"
        lines.append(
            f"{arm.name}: {cost.parameters:,} parameters, {pluralize(cost.steps, 'step')}, {cost.tokens:,} tokens, "
            f"{cost.flops:.3g} FLOPs ({changed})."
        )
    return lines


def estimate(request: Request, folder: Path, options: Options, *, processes: int | None = None) -> list[str]:
    """The plan in words. Prepares the data and times a few steps, but trains nothing."""
    count = choose_processes(processes)
    with lock_folder(folder, option="--out"), Report(folder, None) as report:
        plan = make_plan(request, folder, remote=False, progress=report.progress)
        recipes = {arm.name: arm.adjusted.recipe for arm in plan.arms}
        times = read_or_measure(folder, recipes, {arm.name: arm.adjusted.cost for arm in plan.arms})
    arms, share = len(plan.arms), options.search_steps
    searched = 0 if sets_learning_rate(plan) or options.rates == 1 else options.rates
    one_seed = sum(times[arm.name] * arm.adjusted.cost.steps for arm in plan.arms)
    seconds = one_seed * (searched * share + options.seeds)
    at_once = 1 if runs_in_turn(plan, count) else count
    lines = [f"{pluralize(arms * searched, 'run')} search the learning rate, for {share:.0%} of the steps."] * bool(
        searched
    )
    lines += [
        f"Up to {pluralize(arms * options.seeds, 'run')} for the verdict: {pluralize(options.seeds, 'seed')} of "
        f"{pluralize(arms, 'arm')}.",
        f"About {format_duration(seconds)} of computation, validation not counted; {at_once} at a time: "
        f"{format_duration(seconds / at_once)}.",
    ]
    if options.budget is not None:
        fits = max(0, int(options.budget / one_seed - searched * share))
        lines.append(f"The budget, {format_duration(options.budget)}, is enough for about {pluralize(fits, 'seed')}.")
    return [*(choose(*note) for note in plan.notes), *describe_plan(plan), *lines, "Nothing was trained."]


def choose_processes(processes: int | None) -> int:
    count = (os.cpu_count() or 1) if processes is None else processes
    if not 1 <= count <= MAX_PROCESSES:
        raise UsageError(f"--processes {count} is not from 1 to {MAX_PROCESSES:,}.")
    return count


def runs_in_turn(plan: Plan, processes: int) -> bool:
    return processes == 1 or str(plan.arms[0].adjusted.recipe.train.device).startswith("cuda")
