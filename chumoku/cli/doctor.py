"""chumoku doctor: what is silently wrong with a recipe, a model, its tokenizer or its corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import Json, Precision, json_line

if TYPE_CHECKING:
    from rich.console import Console

    from chumoku.doctor.finding import Check, Finding
    from chumoku.doctor.runner import Report


def doctor(
    patient: Annotated[str, typer.Argument(help="A recipe (its name or .toml), a model, or the folder of a run.")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Of a recipe, as in model.position=learned.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the cheap half, which train makes too.")] = False,
    precision: Precision = None,
    as_json: Json = False,
) -> None:
    """Look for silent bugs: leaks, padding, caches, labels, gradients, tokenizers, duplicates, damage and more.

    Ends with 1 when something is broken, with 0 when nothing is.
    """
    from rich.console import Console

    from chumoku.doctor.open_subject import admitted
    from chumoku.doctor.runner import CHECKS, examine
    from chumoku.nn.plain import plain, plain_formulas, running

    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    chosen = [check for check in CHECKS if check.cheap or not quick]
    with admitted(
        patient, changes or [], say=lambda sentence: console.print(sentence, markup=False), precision=precision
    ) as found:
        wanted = found.recipe is not None and found.recipe.train.plain
        with plain(wanted or plain_formulas()):
            console.print(f"The model runs {running()}.", markup=False)
            report = examine(found, checks=chosen, told=lambda *done: tell(console, *done))
    if as_json:
        print(json_line(patient=patient, **report.as_dict()))
    else:
        console.print(verdict(report), markup=False)
    if report.broken:
        raise typer.Exit(1)


def tell(console: Console, check: Check, findings: list[Finding], skipped: str | None) -> None:
    """A line for every check as it is done, and its findings below."""
    sign = "–" if skipped is not None else "✗" if findings else "✓"
    console.print(f"{sign} {check.name:<13} {f'not made: {skipped}' if skipped else check.about}", markup=False)
    for finding in findings:
        console.print(f"    {finding.what}", markup=False)
        console.print(f"    where: {finding.where} · sure: {finding.sure:.0%}", markup=False)
        console.print(f"    to do: {finding.todo}", markup=False)


def verdict(report: Report) -> str:
    count = len(report.findings)
    said = "Nothing was found" if count == 0 else f"{count} finding{'s' if count > 1 else ''}"
    worth = "" if count == 0 or report.broken else ", none of which breaks anything for certain"
    checks = len(report.passed) + len({finding.check for finding in report.findings})
    return f"{said}{worth}: {checks} checks in {report.seconds:.0f} s, {len(report.skipped)} not made."
