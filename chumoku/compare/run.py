"""`chumoku.compare_choices`: which choice is better, on your data, at equal cost?

    plan → learning rate of each arm (seeds of their own) → rounds: one more seed for every arm that is still open

All results are in one folder, where the same call continues: results/ (one file for each run), data/ (tokens and
tokenizers), work/ (runs that are not finished) and log.txt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from rich.console import Console

from chumoku.compare.arms import parse_choices
from chumoku.compare.equal_cost import Adjust, Equal
from chumoku.compare.estimate import choose_processes, describe_plan
from chumoku.compare.jobs import Job, write_json
from chumoku.compare.launchers import InTurn, Launcher, Processes, RayTasks, run_jobs
from chumoku.compare.plan import Plan, make_plan
from chumoku.compare.report import Report
from chumoku.compare.request import Options, Request, check_request
from chumoku.compare.results import Comparison, RunResult
from chumoku.compare.rounds import Rounds
from chumoku.compare.slurm import SlurmArrays
from chumoku.compare.together import Together
from chumoku.compare.verdicts import Decision, decide
from chumoku.errors import UsageError
from chumoku.probe.bilingual import Words
from chumoku.safe_files import read_json
from chumoku.training.interrupt import lock_folder
from chumoku.training.plan import format_duration
from chumoku.training.recipe import Recipe

LauncherName = Literal["local", "ray", "slurm"]


class Compared(NamedTuple):
    """What was measured, and what follows from it."""

    comparison: Comparison
    decision: Decision


def compare_choices(
    recipe: Recipe | Mapping[str, Any] | Path | str,
    choices: Sequence[str],
    *,
    arms: Sequence[str] = (),
    equal: Equal = "flops",
    adjust: Adjust | None = None,
    metric: str = "loss",
    test_files: Sequence[str] = (),
    options: Options | None = None,
    out: Path | str = "runs/compare",
    launcher: LauncherName = "local",
    processes: int | None = None,
    console: Console | None = None,
) -> Compared:
    """Train every choice with several seeds at equal cost; returns what was measured and which arms are better.

    recipe       a TOML file, a built-in recipe's name, or nested mappings
    choices      `key=a,b,c` gives one arm for each combination; `key=value` is for all arms
    arms         further arms, each a text of overrides: "model.position=rotary model.width=96"; "" is the recipe
    equal        what all arms have in common: flops, parameters, tokens, seconds or steps, as in the recipe itself
    adjust       what is changed for that: steps, width or feedforward; default: steps, for parameters feedforward
    metric       loss, bleu, chrf or recall; all but the loss need test_files, or data.validation_files
    options      seeds, budget, confidence and the search of the learning rate
    out          folder of all results; the same call continues there, and finished runs are not repeated
    launcher     local, ray or slurm
    processes    runs at the same time on a CPU; default: one for each core
    console      where progress is shown; default: nowhere, but always in log.txt
    """
    parsed = parse_choices(choices, arms)
    request = check_request(recipe, parsed, equal=equal, adjust=adjust, metric=metric, test_files=test_files)
    return run_comparison(
        request, Path(out), options or Options(), launcher=launcher, processes=processes, console=console
    )


def run_comparison(
    request: Request,
    folder: Path,
    options: Options,
    *,
    launcher: LauncherName = "local",
    processes: int | None = None,
    console: Console | None = None,
) -> Compared:
    """Train what a checked request needs, and decide."""
    if launcher not in get_args(LauncherName):
        raise UsageError(f"--launcher {launcher} is unknown; choose local, ray or slurm.")
    count = choose_processes(processes)
    with ExitStack() as stack:
        stack.enter_context(lock_folder(folder, option="--out"))
        report = stack.enter_context(Report(folder, console))
        plan = make_plan(request, folder, remote=launcher != "local", progress=report.progress)
        plan = replace(plan, notes=(*plan.notes, *note_changed_seeds(folder, plan, options.seeds)))
        for note in plan.notes:
            report.info(note)
        for line in describe_plan(plan):
            report.info(line)
        running = make_launcher(launcher, folder, plan, count)
        stack.callback(running.close)

        def run(jobs: Sequence[Job]) -> Sequence[RunResult]:
            return run_jobs(folder, jobs, running, report.start(jobs))

        try:
            found = Rounds(plan, options, run, report, request.recipe, request.equal).compare()
        except KeyboardInterrupt:
            report.info("Stopping: runs save their checkpoints. The same command continues.")
            raise
        report.info(f"{format_duration(found.seconds)} of computation. Results are in {folder}.")
        return Compared(found, decide(found, planned_seeds=options.seeds, confidence=options.confidence))


def note_changed_seeds(folder: Path, plan: Plan, seeds: int) -> list[Words]:
    """A sentence if the same arms were compared here with another number of seeds: verdicts assume that it is fixed."""
    arms = [(arm.name, arm.overrides, arm.prepared.hash) for arm in plan.arms]
    key = hashlib.sha256(json.dumps([arms, plan.metric, plan.test_files]).encode()).hexdigest()[:32]
    path = folder / "planned-seeds" / f"{key}.json"
    if not path.exists():
        write_json(path, {"seeds": seeds})
    first = read_json(path).get("seeds")
    if first == seeds:
        return []
    return [
        Words(
            f"These arms were compared with --seeds {first} before. If its answer was seen, {seeds} seeds no longer "
            "keep the promised confidence.",
            f"同じ選択肢を前に --seeds {first} で比較しています。その答えを見た後では、{seeds} シードでの信頼度は"
            "保証されません。",
        )
    ]


def make_launcher(name: LauncherName, folder: Path, plan: Plan, processes: int) -> Launcher:
    if name == "ray":
        return RayTasks(folder, gpu=str(plan.arms[0].adjusted.recipe.train.device).startswith("cuda"))
    if name == "slurm":
        return SlurmArrays(folder)
    if str(plan.arms[0].adjusted.recipe.train.device).startswith("cuda"):
        return Together(folder)
    return InTurn(folder) if processes == 1 else Processes(folder, processes)
