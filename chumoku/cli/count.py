"""chumoku count: the size of a model, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.cli.shared import KNOWN, Json, json_line, model_path, say
from chumoku.messages import heading, translate

if TYPE_CHECKING:
    from chumoku.models.config import ModelConfig
    from chumoku.models.count import Count

LARGEST = 1 << 24


def count(
    model: Annotated[
        str,
        typer.Argument(help=f"A preset (gpt2, transformer-base, …), a recipe (name or .toml), or a model: {KNOWN}."),
    ],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as model.layers=2.")
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST, help="Vocabulary size; default: the size in the recipe's [tokenizer]."),
    ] = None,
    length: Annotated[int | None, typer.Option(min=1, max=LARGEST, help="Sequence length; default: context.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=LARGEST, help="Sequences in a batch.")] = 1,
    precision: Annotated[
        str, typer.Option(help="Weight precision for decoding: float32, bf16, fp16, int8, int4.")
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Print a model's parameters by part, FLOPs per token, and memory for training and decoding."""
    from chumoku.models.count import count as count_model

    config, assumed = read_model(model, changes or [], vocabulary)
    counted = count_model(config, length=length, batch=batch, precision=precision)
    if as_json:
        print(json_line(model=model, **counted.as_dict(), vocabulary=config.vocabulary, assumed=assumed or None))
    else:
        show(model, config, counted)
        if assumed:
            say(assumed)


def read_model(model: str, changes: list[str], vocabulary: int | None = None) -> tuple[ModelConfig, str]:
    """The config of a preset, recipe or stored model with key=value changes, and a sentence about assumptions."""
    from chumoku.errors import UsageError
    from chumoku.training.recipe import apply_changes

    for word in changes:
        if "=" in word and not word.startswith("model."):
            raise UsageError(f"{word} does not change the model; use keys such as model.width=64.")
        if word.startswith("model.preset="):
            raise UsageError("The model to count is already named; give the other preset's name instead.")
    tables = read_model_tables(model)
    if tables is None:
        return config_of_stored(model, changes, vocabulary), ""
    tables = apply_changes(tables, changes)
    if not isinstance(tables.get("model"), dict):
        raise UsageError(f"{model} has no [model] table, so there is nothing to count.")
    return config_of_recipe(model, tables, vocabulary)


def read_model_tables(model: str) -> dict[str, Any] | None:
    """The tables of a recipe or preset; None if the name is a stored model."""
    from chumoku.models.presets import PRESETS
    from chumoku.pretrained import NAMES, installed_models
    from chumoku.training.recipe import BUILT_IN, read_tables

    place = Path(model)
    stored = place.exists() or model in installed_models()
    if place.suffix == ".toml" or (model not in PRESETS and not stored and (BUILT_IN / f"{model}.toml").exists()):
        return read_tables(model)
    if model in PRESETS or not (stored or model in NAMES or model.startswith("hf:")):
        return {"model": {"preset": model}}
    return None


def config_of_recipe(name: str, tables: dict[str, Any], vocabulary: int | None) -> tuple[ModelConfig, str]:
    from chumoku.config import parse_settings
    from chumoku.errors import UsageError
    from chumoku.models.presets import read_model_config
    from chumoku.training.label_config import head_values
    from chumoku.training.recipe import config_from_init
    from chumoku.training.settings import TokenizerSettings
    from chumoku.training.vocabulary import vocabulary_sizes
    from chumoku.weights.identify_model import local_path

    kind = tables.get("data", {}).get("kind")
    table = {**tables["model"], **head_values(kind, tables["model"])}
    init = table.get("init")
    if init is None:
        if vocabulary is None and "tokenizer" not in tables and "preset" in table:
            return read_model_config(table), ""
        tokenizer = parse_settings(TokenizerSettings, tables.get("tokenizer", {}), prefix="tokenizer.")
        sizes = vocabulary_sizes(table, tokenizer, override=vocabulary)
        return read_model_config(sizes.over(table)), sizes.sentence
    if isinstance(init, str) and not init.startswith("hf:") and not local_path(init).exists():
        raise UsageError(
            f"{name} starts from {init}, which does not exist. Name the model, for example model.init=smollm2.gguf."
        )
    return config_from_init(init, table, data_kind=kind), f"The config is that of {init}."


def config_of_stored(model: str, changes: list[str], vocabulary: int | None) -> ModelConfig:
    """The config of a trained model."""
    from chumoku.errors import UsageError
    from chumoku.model_path import base_model_of, is_adapter
    from chumoku.weights.open_model import read_model_config

    if changes or vocabulary is not None:
        word = changes[0] if changes else "--vocabulary"
        raise UsageError(f"{model} is already trained, so {word} cannot change its config.")
    path = model_path(model)
    return read_model_config(base_model_of(Path(path)) if is_adapter(path) else path)


def show(name: str, config: ModelConfig, counted: Count) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=translate(f"{name}: {config.kind}, {counted.parameters:,} parameters"), title_justify="left")
    for column, justify in (("part", "left"), ("parameters", "right"), ("share", "right"), ("arithmetic", "left")):
        table.add_column(heading(column), justify=justify, no_wrap=column != "arithmetic")  # type: ignore[arg-type]
    for part, numbers in counted.parts.items():
        if numbers.parameters:
            share = f"{numbers.parameters / counted.parameters:.1%}"
            table.add_row(heading(part), f"{numbers.parameters:,}", share, numbers.arithmetic)
    table.add_section()
    table.add_row(heading("total"), f"{counted.parameters:,}", "100.0%", "")
    console = Console()
    console.print(table)
    where = f"length {counted.length:,}"
    lines = {
        "used by one token": f"{counted.active:,} parameters",
        "forward": f"{counted.forward_flops / 1e6:,.1f} MFLOP per token at {where}",
        "forward and backward": f"{counted.training_flops / 1e6:,.1f} MFLOP per token",
        "memory, training": f"{format_bytes(counted.training_bytes)} weights, gradients and Adam (float32) + about "
        f"{format_bytes(counted.activation_bytes)} activations at {where}, batch {counted.batch:,}",
        "memory, decoding": f"{format_bytes(counted.weight_bytes)} weights ({counted.precision}) + "
        f"{format_bytes(counted.cache_bytes)} cache at {where}, batch {counted.batch:,}",
    }
    if counted.active == counted.parameters:
        del lines["used by one token"]
    rows = Table.grid(padding=(0, 2))
    for name, line in lines.items():
        rows.add_row(heading(name), translate(line))
    console.print(rows)


def format_bytes(count: int) -> str:
    """A number of bytes as text."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:,.1f} TiB"
