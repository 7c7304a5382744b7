"""chumoku lab: run the claims of the notes as experiments and judge them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.cli.shared import Json, json_line, pad, say
from chumoku.errors import UsageError, pluralize
from chumoku.messages import choose, heading, translate

if TYPE_CHECKING:
    from chumoku.lab.experiment import Budget
    from chumoku.lab.runner import Result

app = typer.Typer(help="Test the claims of the notes by experiment. Without a command: list all claims.")
Out = Annotated[
    Path | None,
    typer.Option(help="Folder of the results.", show_default="runs/lab, or runs/lab-quick if only that has results"),
]
DEFAULT, SHORT = Path("runs/lab"), Path("runs/lab-quick")  # a short run must not replace results of a full one
MAX_BUDGET = 100.0
PLURAL = {"holds": "hold", "holds only when": "hold only under a condition", "does not hold": "do not hold"}


@app.callback(invoke_without_command=True)
def list_claims(context: typer.Context, out: Out = None, as_json: Json = False) -> None:
    """Test the claims of the notes by experiment. Without a command: list all claims."""
    if context.invoked_subcommand is not None:
        return
    from chumoku.lab.experiment import load_claims
    from chumoku.lab.runner import read_result

    rows: list[dict[str, Any]] = []
    out = out or find_results()
    for id, claim in load_claims().items():
        found = read_result(out, id)
        verdict = found[0]["verdict"] if found else None
        rows.append({"id": id, "notes": list(claim.notes), "title": claim.title._asdict(), "verdict": verdict})
    if as_json:
        print(json_line(claims=rows))
        return
    for row in rows:
        verdict = pad(heading(row["verdict"] or ""), 16)
        print(f"{row['id']:<16} {', '.join(row['notes']):<14} {verdict} {choose(**row['title'])}")
    if any(row["verdict"] for row in rows):
        say(f"Verdicts: {out}, a short run." if out == SHORT else f"Verdicts: {out}.")
    say(f"{len(rows)} claims. Run one: chumoku lab run skip. Run all: chumoku lab run all.")


@app.command()
def run(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids of claims, such as `skip rope-relative`, or all.")
    ],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A tenth of the work, about a minute on two cores; claims that need training are not judged.",
        ),
    ] = False,
    budget: Annotated[
        float | None, typer.Option(help="Amount of work; 1 takes four to seven minutes on two cores for all claims.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the results.", show_default="runs/lab, or runs/lab-quick for short runs"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run and judge claims. Writes result.json and a figure for each, and report.html."""
    from chumoku.lab.claims import select_claims

    selected, work = select_claims(ids), parse_budget(quick, budget)
    out = out or (DEFAULT if work.scale >= 1 else SHORT)
    from chumoku.lab import report, runner
    from chumoku.lab.experiment import NOT_JUDGED

    results = run_with_progress(selected, work, out, quiet=as_json)
    page = report.write(out)
    if as_json:
        counts = {verdict: sum(r.verdict == verdict for r in results) for verdict in report.VERDICTS}
        print(json_line(out=str(out), report=str(page), verdicts=counts, results=[r.as_dict() for r in results]))
    else:
        print(format_results(results))
        if any(result.verdict == NOT_JUDGED for result in results):
            say(
                "Not judged: the models were trained for less than the full time. Run without --quick and --budget to\n"
                "get a verdict."
                if work.scale < 1
                else "Not judged: not seen to hold, but no 95 % interval over the seeds refutes it."
            )
        say(f"Report with all results: {page}")
    if any(result.verdict == runner.FAILED for result in results):
        raise typer.Exit(1)


@app.command(name="report")
def report_(out: Out = None, as_json: Json = False) -> None:
    """Write report.html again from the existing results."""
    from chumoku.lab import report

    out = out or find_results()
    page = report.write(out)
    print(json_line(report=str(page), results=len(report.read_results(out))) if as_json else page)


def find_results() -> Path:
    """The default folder of results: that of short runs if only it has any."""
    from chumoku.lab.claims import CLAIMS

    def has_results(folder: Path) -> bool:
        return any((folder / id).is_dir() for id in CLAIMS)

    return SHORT if has_results(SHORT) and not has_results(DEFAULT) else DEFAULT


def parse_budget(quick: bool, scale: float | None) -> Budget:
    from chumoku.lab.experiment import QUICK, Budget

    if quick and scale is not None:
        raise UsageError("--quick means a budget of 0.1; give either --quick or --budget, not both.")
    if quick:
        return QUICK
    if scale is None:
        return Budget()
    if not 0.01 <= scale <= MAX_BUDGET:
        raise UsageError(
            f"--budget is {scale:g}, but must be between 0.01 and {MAX_BUDGET:g}, where 1 is the normal amount."
        )
    return Budget(scale, seeds=2 if scale < 0.5 else 3 if scale < 2 else 5)


def run_with_progress(ids: list[str], budget: Budget, out: Path, *, quiet: bool) -> list[Result]:
    """Run claims with a progress bar that estimates the time from their last runs."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from chumoku.lab import processes, runner

    expected = {id: runner.expected_seconds(id, budget, out) for id in ids}
    columns = (TextColumn("{task.description:<16}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True, soft_wrap=True)
    with Progress(*columns, console=console, transient=True) as bar:
        finished: list[str] = []
        task = bar.add_task(f"0/{translate(pluralize(len(ids), 'claim'))}", total=sum(expected.values()))

        def progress(id: str, result: Result | None) -> None:
            finished.extend([] if result is None else [id])
            running = f", {id}" if result is None else ""
            bar.update(task, description=f"{len(finished)}/{translate(pluralize(len(ids), 'claim'))}{running}")
            if result is None:
                return
            bar.advance(task, expected[id])
            if not quiet:
                bar.console.print(
                    f"{id:<16} {pad(heading(result.verdict), 16)} {result.seconds:6.1f} s",
                    markup=False,
                    highlight=False,
                )

        return processes.run(ids, budget, out, progress)


def format_results(results: list[Result]) -> str:
    """Details of up to five claims (of more, only of those that failed), and the number of each verdict."""
    lines: list[str] = []
    for result in results if len(results) <= 5 else [r for r in results if r.error]:
        lines += ["", f"{result.id}: {heading(result.verdict)}"]
        if result.claim is not None:
            lines.append(f"  {pad(heading('claim'), 8)} {choose(*result.claim.stated)}")
        outcome: Any = result.outcome
        if outcome is None:
            lines.append(f"  {result.error}")
            continue
        if outcome.when is not None and result.verdict == "holds only when":
            lines.append(f"  {pad(heading('when'), 8)} {choose(*outcome.when)}")
        lines.append(f"  {pad(heading('found'), 8)} {choose(*outcome.summary)}")
        if outcome.correction is not None:
            note, true = outcome.correction.note, outcome.correction.true
            lines.append(translate(f"  the note says {note}; correct is {true}"))
    counts: dict[str, int] = {}
    for result in results:
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
    total = ", ".join(
        f"{number} {verdict if number == 1 else PLURAL.get(verdict, verdict)}"
        for verdict, number in sorted(counts.items())
    )
    japanese = "、".join(f"{heading(verdict)} {number}" for verdict, number in sorted(counts.items()))
    claims = choose(f"{pluralize(len(results), 'claim')}: {total}.", f"主張 {len(results)} 件：{japanese}")
    return "\n".join([*lines, "", claims])
