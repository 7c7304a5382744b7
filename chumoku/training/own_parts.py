"""A caller's own model and data instead of a recipe's: what `train` accepts, and the recipe with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.config import settings_to_dict
from chumoku.decoding.engines.unmodified import changed_module
from chumoku.errors import UsageError
from chumoku.models.model import Model
from chumoku.nn.quantized import is_quantized
from chumoku.training.loop import Callback
from chumoku.training.recipe import Recipe, read_tables
from chumoku.weights.bundle import Bundle


class OwnParts(NamedTuple):
    """What a caller of `train` brings along instead of a recipe's parts."""

    model: Bundle | None = None
    train_data: Any = None
    validation_data: Any = None
    callbacks: Sequence[Callback] = ()
    data_folder: Path | None = None


def check_trainable(model: Model) -> None:
    """Refuse a model that its config does not describe completely: the run builds its own from the config."""
    changed = changed_module(model)
    if changed is None and is_quantized(model):
        changed = "its weights are quantized"
    if changed is not None:
        raise UsageError(
            f"This model differs from its config: {changed}. A run builds its model from the config, so the difference "
            "would be lost. Train it in a loop of your own (examples/own_training_loop.py)."
        )


def own_tables(
    recipe: Recipe | Mapping[str, Any] | Path | str, model: Bundle | None, *, own: bool
) -> Mapping[str, Any]:
    """The tables of a recipe, with the config of the caller's own model, and without files if the data is own."""
    if isinstance(recipe, (str, Path)):
        tables: Mapping[str, Any] = read_tables(recipe)
    else:
        tables = recipe.as_dict() if isinstance(recipe, Recipe) else recipe
    if model is not None:
        config = settings_to_dict(model.config)
        if tables.get("model") and tables["model"] != config:
            raise UsageError("The recipe has a [model], and model=… is another one. Leave [model] out.")
        tables = {**tables, "model": config}
    return {**tables, "data": {"kind": "own"}} if own else tables
