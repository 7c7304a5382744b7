"""chumoku train: train the model of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import message_on_sigterm
from chumoku.errors import ChumokuError
from chumoku.messages import translate

if TYPE_CHECKING:
    from rich.console import Console

    from chumoku.models.model import Model
    from chumoku.training.datasets import TrainingData


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a .toml file, a built-in name, or a run's folder.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="For example train.steps=100 model.position=learned."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in train.out.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show settings, size, memory, time and, for chats, preferences and prompts, a sample; train nothing.",
        ),
    ] = False,
    unexamined: Annotated[bool, typer.Option("--unexamined", help="Skip the doctor's quick checks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON; messages go to stderr.")] = False,
) -> None:
    """Train the model of a recipe. An interrupted run continues with --resume, with the same result."""
    from chumoku.training.data_files import find_data_files
    from chumoku.training.recipe import load_recipe

    loaded = load_recipe(recipe, changes or [])
    find_data_files(loaded.data)  # reports wrong paths before torch is imported
    if dry_run:
        from chumoku.training.plan import show

        show(loaded, as_json=as_json)
        return
    from rich.console import Console

    from chumoku.training.run import train as run

    console = Console(stderr=as_json)

    def examine(data: TrainingData, model: Model) -> None:
        check_before_training(data, model, console)

    with message_on_sigterm():
        trained = run(loaded, resume=resume, console=console, examine=None if unexamined else examine)
    if as_json:
        import json

        found = {"folder": str(trained.folder), "ended": trained.ended, "step": trained.step}
        print(json.dumps({**found, "best_loss": trained.best_loss, "seconds": round(trained.seconds, 1)}))
    if not trained.finished:
        raise typer.Exit(trained.exit_code)


def check_before_training(data: TrainingData, model: Model, console: Console) -> None:
    """Run the doctor's quick checks (a second or two) and print the findings; ChumokuError if something is broken."""
    from chumoku.doctor import is_quickly_checked, run_quick_checks

    if not is_quickly_checked(model):
        console.print(
            translate("The doctor checks only the data: this model is large. `chumoku doctor` checks the model too.")
        )
    with console.status(translate("The doctor checks the model and the corpus …")):
        findings = run_quick_checks(data, model)
    for one in findings:
        line = f"The doctor: {one.what} ({one.where}; sure: {one.sure:.0%}) {one.todo}"
        console.print(translate(line), markup=False)
    broken = [one.check for one in findings if one.broken]
    if broken:
        raise ChumokuError(
            f"Nothing was trained: the doctor found a problem ({', '.join(dict.fromkeys(broken))}). Fix it, see more "
            "with `chumoku doctor`, or train anyway with --unexamined."
        )
