"""chumoku train: a recipe becomes a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.errors import ChumokuError

if TYPE_CHECKING:
    from rich.console import Console

    from chumoku.models.model import Model
    from chumoku.training.dataset import TrainingData


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe file (.toml).")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="As in train.steps=100 model.position=learned.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in train.out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings, size, memory and time; do nothing.")
    ] = False,
    unexamined: Annotated[
        bool, typer.Option("--unexamined", help="Leave out the doctor's cheap half, or train in spite of it.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON; what is told goes to stderr.")
    ] = False,
) -> None:
    """Train the model that a recipe describes. Interrupt it as you like: --resume goes on as if nothing had been."""
    from chumoku.training.recipe import load_recipe

    loaded = load_recipe(recipe, changes or [])
    if dry_run:
        from chumoku.training.plan import show

        show(loaded, as_json=as_json)
        return
    from rich.console import Console

    from chumoku.training.run import train as run

    console = Console(stderr=as_json)

    def examine(data: TrainingData, model: Model) -> None:
        examined(data, model, console)

    trained = run(loaded, resume=resume, console=console, examine=None if unexamined else examine)
    if as_json:
        import json

        found = {"folder": str(trained.folder), "ended": trained.ended, "step": trained.step}
        print(json.dumps({**found, "best_loss": trained.best_loss, "seconds": round(trained.seconds, 1)}))
    if not trained.finished:
        raise typer.Exit(trained.exit_code)


def examined(data: TrainingData, model: Model, console: Console) -> None:
    """The cheap half of the doctor, a second or two: what it finds is told, and what is broken is not trained."""
    from chumoku.doctor import run_quick_checks

    with console.status("The doctor looks at model and corpus …"):
        findings = run_quick_checks(data, model)
    for one in findings:
        console.print(f"The doctor: {one.what} ({one.where}; sure: {one.sure:.0%}) {one.todo}", markup=False)
    broken = [one.check for one in findings if one.broken]
    if broken:
        raise ChumokuError(
            f"Nothing was trained: the doctor found something broken ({', '.join(dict.fromkeys(broken))}). Mend it, "
            "look closer with `chumoku doctor`, or train in spite of it with --unexamined."
        )
