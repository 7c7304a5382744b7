"""chumoku keys: every key of a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from chumoku.cli.shared import Json, json_line, quiet_pipe, say
from chumoku.messages import from_table


def keys(
    pattern: Annotated[
        str,
        typer.Argument(help="Part of a key's name (dropout), or a whole name with * (model.rotary.*); default: all."),
    ] = "",
    as_json: Json = False,
) -> None:
    """List the keys of a recipe, each with its type, default and meaning."""
    from chumoku.training.recipe_keys import list_keys

    quiet_pipe()
    found = list_keys(pattern)
    if as_json:
        print(json_line(keys=[key._asdict() for key in found]))
        return
    for key in found:
        say(f"{key.name}  ({key.type}; default {key.default})")
        print(f"    {from_table(key.meaning, 'keys')}")
