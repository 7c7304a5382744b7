"""chumoku train: a recipe becomes a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe file (.toml).")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="As in train.steps=100 model.position=learned.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in train.out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings, size, memory and time; do nothing.")
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

    trained = run(loaded, resume=resume, console=Console(stderr=as_json))
    if as_json:
        import json

        found = {"folder": str(trained.folder), "ended": trained.ended, "step": trained.step}
        print(json.dumps({**found, "best_loss": trained.best_loss, "seconds": round(trained.seconds, 1)}))
    if not trained.finished:
        raise typer.Exit(trained.exit_code)
