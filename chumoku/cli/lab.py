"""chumoku lab: what the notes state, run, drawn and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.cli.shared import Json, json_line
from chumoku.errors import UsageError, counted

if TYPE_CHECKING:
    from chumoku.lab.experiment import Budget
    from chumoku.lab.runner import Result

app = typer.Typer(help="What the notes state: each claim is run, drawn and judged. Without a command: the list.")
Out = Annotated[Path, typer.Option(help="The folder of the results.")]
DEFAULT, SHORT = Path("runs/lab"), Path("runs/lab-quick")  # a short run replaces no result of a full one
LARGEST = 100.0
PLURAL = {"holds": "hold", "holds only when": "hold only under a condition", "does not hold": "do not hold"}


@app.callback(invoke_without_command=True)
def listed(context: typer.Context, out: Out = DEFAULT, as_json: Json = False) -> None:
    """What the notes state: each claim is run, drawn and judged. Without a command: the list."""
    if context.invoked_subcommand is not None:
        return
    from chumoku.lab.claims import CLAIMS
    from chumoku.lab.experiment import opened
    from chumoku.lab.runner import read

    rows: list[dict[str, Any]] = []
    for id in CLAIMS:
        claim, found = opened(id).claim, read(out, id)
        verdict = found[0]["verdict"] if found else None
        rows.append({"id": id, "notes": list(claim.notes), "title": claim.title._asdict(), "verdict": verdict})
    if as_json:
        print(json_line(claims=rows))
        return
    for row in rows:
        print(f"{row['id']:<16} {', '.join(row['notes']):<14} {row['verdict'] or '':<16} {row['title']['en']}")
    print(f"{len(rows)} claims. Run one: chumoku lab run skip. Run all: chumoku lab run all.")


@app.command()
def run(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Claims, as in `chumoku lab run skip rope-relative`; or all.")
    ],
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A tenth of the work, in about two minutes; what must be learned is not judged."),
    ] = False,
    budget: Annotated[float | None, typer.Option(help="How much work: 1 is all in 15 minutes on two cores.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the results.", show_default="runs/lab; of short runs runs/lab-quick"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run claims, judge them, and write result.json and figure of each, and report.html of all."""
    from chumoku.lab.claims import chosen

    wanted, spent = chosen(ids), allowed(quick, budget)
    out = out or (DEFAULT if spent.scale >= 1 else SHORT)
    from chumoku.lab import report, runner
    from chumoku.lab.experiment import NOT_JUDGED

    results = with_bar(wanted, spent, out, quiet=as_json)
    page = report.write(out)
    if as_json:
        counts = {verdict: sum(r.verdict == verdict for r in results) for verdict in report.VERDICTS}
        print(json_line(out=str(out), report=str(page), verdicts=counts, results=[r.as_dict() for r in results]))
    else:
        print(told(results))
        if any(result.verdict == NOT_JUDGED for result in results):
            print("Not judged: the models were trained for less than the full time. `chumoku lab run` without --quick")
            print("or --budget judges them.")
        print(f"The page with all results: {page}")
    if any(result.verdict == runner.FAILED for result in results):
        raise typer.Exit(1)


@app.command(name="report")
def report_(out: Out = DEFAULT, as_json: Json = False) -> None:
    """Make report.html again, of the results that are there."""
    from chumoku.lab import report

    page = report.write(out)
    print(json_line(report=str(page), results=len(report.gathered(out))) if as_json else page)


def allowed(quick: bool, scale: float | None) -> Budget:
    from chumoku.lab.experiment import QUICK, Budget

    if quick and scale is not None:
        raise UsageError("--quick is a budget of 0.1; give it or --budget, not both.")
    if quick:
        return QUICK
    if scale is None:
        return Budget()
    if not 0.01 <= scale <= LARGEST:
        raise UsageError(f"A budget of {scale:g} cannot be; it lies between 0.01 and {LARGEST:g}, and 1 is 15 minutes.")
    return Budget(scale, seeds=2 if scale < 0.5 else 3 if scale < 2 else 5)


def with_bar(ids: list[str], budget: Budget, out: Path, *, quiet: bool) -> list[Result]:
    """Run them under a bar that knows how long each took the last time."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from chumoku.lab import processes, runner

    expected = {id: runner.expected(id, budget, out) for id in ids}
    columns = (TextColumn("{task.description:<16}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True, soft_wrap=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=sum(expected.values()))

        def progress(id: str, result: Result | None) -> None:
            if result is None:
                bar.update(task, description=id)
                return
            bar.advance(task, expected[id])
            if not quiet:
                bar.console.print(
                    f"{id:<16} {result.verdict:<16} {result.seconds:6.1f} s", markup=False, highlight=False
                )

        return processes.run(ids, budget, out, progress)


def told(results: list[Result]) -> str:
    """Of a few claims everything in words; of many, how they were judged."""
    lines: list[str] = []
    for result in results if len(results) <= 5 else [r for r in results if r.sentence]:
        lines += ["", f"{result.id}: {result.verdict}"]
        if result.claim is not None:
            lines.append(f"  stated   {result.claim.stated.en}")
        outcome: Any = result.outcome
        if outcome is None:
            lines.append(f"  {result.sentence}")
            continue
        if outcome.when is not None and result.verdict == "holds only when":
            lines.append(f"  when     {outcome.when.en}")
        lines.append(f"  found    {outcome.summary.en}")
        if outcome.correction is not None:
            lines.append(f"  the note says {outcome.correction.said}; true is {outcome.correction.true}")
    counts: dict[str, int] = {}
    for result in results:
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
    total = ", ".join(
        f"{number} {verdict if number == 1 else PLURAL.get(verdict, verdict)}"
        for verdict, number in sorted(counts.items())
    )
    return "\n".join([*lines, "", f"{counted(len(results), 'claim')}: {total}."])
