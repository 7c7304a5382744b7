"""chumoku compare: which choice is better, at equal cost?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.cli.shared import Json, json_line
from chumoku.errors import UsageError
from chumoku.messages import choose, translate

if TYPE_CHECKING:
    from rich.console import Console

    from chumoku.compare.run import Compared

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


def compare(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a .toml file, a built-in name, or a run's folder.")],
    choices: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=A,B]...",
            help="Values to compare, in all combinations, as in model.position=rotary,learned; KEY=A is for all arms.",
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(help='One more arm by its overrides: "model.position=none model.layers=6"; "" is the recipe.'),
    ] = None,
    equal: Annotated[
        str, typer.Option(help="What arms have in common: flops, parameters, tokens, seconds or steps.")
    ] = "flops",
    adjust: Annotated[
        str | None,
        typer.Option(
            help="What is changed for that: steps, width or feedforward (its width).",
            show_default="steps; for parameters feedforward",
        ),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="loss (validation), bleu, chrf (translators) or recall (encoders).")
    ] = "loss",
    on: Annotated[
        list[str] | None,
        typer.Option(
            help="bleu, chrf, recall: a table of test pairs; twice: two files.", show_default="data.validation_files"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Most seeds of each arm; decide on them before the first run.")] = 5,
    confidence: Annotated[float, typer.Option(help="Of all verdicts together.")] = 0.95,
    budget: Annotated[
        str | None, typer.Option(help="Most computing time of all runs together, such as 20m or 1h30m.")
    ] = None,
    rates: Annotated[
        int, typer.Option(help="Learning rates that are tried for each arm, on another seed; 1: the recipe's alone.")
    ] = 3,
    search_steps: Annotated[float, typer.Option(help="Share of the steps that the search trains for.")] = 0.5,
    out: Annotated[Path | None, typer.Option(help="Folder of the results.", show_default="runs/compare-RECIPE")] = None,
    processes: Annotated[
        int | None, typer.Option(help="Runs at the same time on a CPU, one thread each.", show_default="one a core")
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="Where runs are trained: local, ray, or slurm (options in SBATCH_… variables).")
    ] = "local",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show arms, adjusted sizes, runs and time; prepare the data, train nothing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare choices of a recipe at equal cost: every arm with the same seeds, a verdict with an interval.

    Stops when all is decided. Interrupted at any time, the same command continues, with the same answer.
    """
    from rich.console import Console

    from chumoku.compare.arms import parse_choices
    from chumoku.compare.request import Options, check_request

    options = Options(
        seeds=seeds,
        budget=None if budget is None else parse_duration(budget),
        confidence=confidence,
        rates=rates,
        search_steps=search_steps,
    )
    settings: dict[str, Any] = {"equal": equal, "adjust": adjust, "metric": metric, "test_files": on or []}
    request = check_request(recipe, parse_choices(choices or [], arm or []), **settings)
    folder = out or Path("runs") / f"compare-{recipe.stem}"
    console = Console(stderr=as_json)
    if dry_run:
        from chumoku.compare.estimate import estimate

        for line in estimate(request, folder, options, processes=processes):
            console.print(translate(line), markup=False, highlight=False, soft_wrap=True)
        return
    from chumoku.compare.run import run_comparison

    running: dict[str, Any] = {"launcher": launcher, "processes": processes, "console": console}
    show(run_comparison(request, folder, options, **running), folder, console, as_json=as_json)


def show(found: Compared, folder: Path, console: Console, *, as_json: bool) -> None:
    """Write the answer's files, and print its sentences and tables."""
    from chumoku.compare.answer import answer, as_dict
    from chumoku.compare.outputs import write_outputs
    from chumoku.compare.tables import TerminalTable, arm_rows, pair_rows

    page = write_outputs(found.comparison, found.decision, folder)
    if as_json:
        print(json_line(**as_dict(*found), page=str(page)))
        return
    for rows in (arm_rows(*found), pair_rows(*found)):
        console.print(TerminalTable(rows))
        console.print()
    for note in found.comparison.notes:
        console.print(choose(*note), markup=False, highlight=False, soft_wrap=True)
    for sentence in answer(*found):
        console.print(choose(*sentence), markup=False, highlight=False, soft_wrap=True)
    console.print(translate(f"The page: {page}"), markup=False, highlight=False, soft_wrap=True)


def parse_duration(text: str) -> float:
    """Seconds of "90s", "20m", "1h30m" or "2d"."""
    if not DURATION.fullmatch(text):
        raise UsageError(f"--budget {text[:40]} is not a time; write it as 90s, 20m or 1h30m.")
    return sum(float(part[:-1]) * UNITS[part[-1]] for part in re.findall(r"[\d.]+[smhd]", text))
