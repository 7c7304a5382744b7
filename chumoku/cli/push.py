"""chumoku push: upload a model to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chumoku.cli.shared import Json, json_line


def push(
    model: Annotated[Path, typer.Argument(help="A model folder: a run's last/ or best/, or one that convert wrote.")],
    repository: Annotated[str, typer.Argument(help="owner/name at the Hub; created if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Create it as a private repository.")] = False,
    message: Annotated[str | None, typer.Option(help="Commit message.")] = None,
    as_json: Json = False,
) -> None:
    """Upload a model with its card and certificate to the Hugging Face Hub. Log in first with `hf auth login`."""
    from chumoku.cli.count import format_bytes
    from chumoku.weights.push import push

    found = push(model, repository, private=private, message=message)
    if as_json:
        print(json_line(**found._asdict()))
        return
    for name, size in found.files.items():
        print(f"  {name:<28} {format_bytes(size):>12}")
    certified = "certificate.json" in found.files
    print(
        f"Published at {found.url}" + ("." if certified else ", without a certificate: `chumoku convert` writes one.")
    )
