"""chumoku doctor: find silent bugs in a recipe, a model, its tokenizer or its corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import KNOWN, Json, Precision, json_line

if TYPE_CHECKING:
    from rich.console import Console

    from chumoku.doctor.finding import Check, Finding
    from chumoku.doctor.runner import Report


def doctor(
    subject: Annotated[str, typer.Argument(help=f"A recipe (name or .toml), or a model: {KNOWN}.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="For a recipe, for example model.position=learned."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the quick checks, which train also runs.")] = False,
    precision: Precision = None,
    as_json: Json = False,
) -> None:
    """Look for silent bugs: leaks, padding, caches, labels, gradients, tokenizers, duplicates, damage and more.

    The exit code is 1 if something is broken, else 0.
    """
    from rich.console import Console

    from chumoku.doctor.open_subject import open_subject
    from chumoku.doctor.runner import CHECKS, examine
    from chumoku.nn.plain import describe_mode, plain, plain_formulas

    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    checks = [check for check in CHECKS if check.cheap or not quick]
    with open_subject(
        subject, changes or [], notify=lambda sentence: console.print(sentence, markup=False), precision=precision
    ) as found:
        use_plain = found.recipe is not None and found.recipe.train.plain
        with plain(use_plain or plain_formulas()):
            console.print(f"The model runs {describe_mode()}.", markup=False)
            report = examine(found, checks=checks, on_check=lambda *done: print_check(console, *done))
    if as_json:
        print(json_line(patient=subject, **report.as_dict()))
    else:
        console.print(summarize(report), markup=False)
    if report.broken:
        raise typer.Exit(1)


def print_check(console: Console, check: Check, findings: list[Finding], skipped: str | None) -> None:
    """Print a line for a finished check, and its findings below."""
    sign = "–" if skipped is not None else "✗" if findings else "✓"
    console.print(f"{sign} {check.name:<13} {f'skipped: {skipped}' if skipped else check.description}", markup=False)
    for finding in findings:
        console.print(f"    {finding.what}", markup=False)
        console.print(f"    where: {finding.where} · sure: {finding.sure:.0%}", markup=False)
        console.print(f"    to do: {finding.todo}", markup=False)


def summarize(report: Report) -> str:
    count = len(report.findings)
    findings = "No findings" if count == 0 else f"{count} finding{'s' if count > 1 else ''}"
    hint = "" if count == 0 or report.broken else ", none of them certainly a bug"
    checks = len(report.passed) + len({finding.check for finding in report.findings})
    return f"{findings}{hint}: {checks} checks in {report.seconds:.0f} s, {len(report.skipped)} skipped."
