"""chumoku count: how large a model is, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from chumoku.models.config import ModelConfig
    from chumoku.models.count import Count

LARGEST = 1 << 24


def count(
    model: Annotated[str, typer.Argument(help="A preset (gpt2, transformer-base, …) or a recipe file (.toml).")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="As in model.layers=2.")] = None,
    length: Annotated[int | None, typer.Option(min=1, max=LARGEST, help="Tokens a sequence; default: context.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=LARGEST, help="Sequences at a time.")] = 1,
    precision: Annotated[
        str, typer.Option(help="Of the weights when decoding: float32, bf16, fp16, int8, int4.")
    ] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Print a model's parameters by part, FLOPs a token, and memory for training and decoding."""
    from chumoku.models.count import count as count_model

    config = read_model(model, changes or [])
    counted = count_model(config, length=length, batch=batch, precision=precision)
    if as_json:
        import json

        print(json.dumps({"model": model, **counted.as_dict()}))
    else:
        show(model, config, counted)


def read_model(model: str, changes: list[str]) -> ModelConfig:
    """The config of a preset or of a recipe's [model] table, with key=value words laid over it."""
    from chumoku.config import load_toml, override
    from chumoku.errors import UsageError
    from chumoku.models.presets import model_config

    for word in changes:
        if "=" in word and not word.startswith("model."):
            raise UsageError(f"{word} does not concern the model; its keys begin with model., as in model.width=64.")
        if word.startswith("model.preset="):
            raise UsageError("The model to count is already named; give the other preset's name instead.")
    recipe = load_toml(model) if Path(model).suffix == ".toml" else {"model": {"preset": model}}
    table = override(recipe, changes).get("model")
    if not isinstance(table, dict):
        raise UsageError(f"{model} has no [model] table, so there is nothing to count.")
    return model_config(table)


def show(name: str, config: ModelConfig, counted: Count) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{name}: {config.kind}, {counted.parameters:,} parameters", title_justify="left")
    for column, justify in (
        ("part", "left"),
        ("parameters", "right"),
        ("share", "right"),
        ("arithmetic", "left"),
    ):
        table.add_column(column, justify=justify, no_wrap=column != "arithmetic")  # type: ignore[arg-type]
    for part, numbers in counted.parts.items():
        if numbers.parameters:
            share = f"{numbers.parameters / counted.parameters:.1%}"
            table.add_row(part, f"{numbers.parameters:,}", share, numbers.arithmetic)
    table.add_section()
    table.add_row("total", f"{counted.parameters:,}", "100.0%", "")
    console = Console()
    console.print(table)
    rows = Table.grid(padding=(0, 2))
    where = f"length {counted.length:,}"
    if counted.active != counted.parameters:
        rows.add_row("used by one token", f"{counted.active:,} parameters")
    rows.add_row("forward", f"{counted.forward_flops / 1e6:,.1f} MFLOP a token at {where}")
    rows.add_row("forward and backward", f"{counted.training_flops / 1e6:,.1f} MFLOP a token")
    rows.add_row(
        "memory, training",
        f"{size(counted.training_bytes)} weights, gradients and Adam (float32) + about "
        f"{size(counted.activation_bytes)} activations at {where}, batch {counted.batch:,}",
    )
    rows.add_row(
        "memory, decoding",
        f"{size(counted.weight_bytes)} weights ({counted.precision}) + {size(counted.cache_bytes)} cache"
        f" at {where}, batch {counted.batch:,}",
    )
    console.print(rows)


def size(count: int) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:,.1f} TiB"
