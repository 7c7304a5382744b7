"""What a run makes, and what its checkpoints keep: a whole model, or an adapter beside one that stays as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from chumoku import lora
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.count import count
from chumoku.models.model import Model
from chumoku.models.precision import at_precision
from chumoku.training.recipe import Recipe
from chumoku.weights.bundle import Bundle, Tokenizers, tensors_of, write_bundle
from chumoku.weights.families import rows_of


class Result(Protocol):
    @property
    def model(self) -> Model: ...

    def tensors(self) -> dict[str, Tensor]:
        """What changes in training, and so is kept in checkpoints."""

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """The result's files, into a folder that is there; `weights` are the tensors, put together and on the CPU."""

    @property
    def description(self) -> str:
        """How much of the model is trained."""


@dataclass(frozen=True)
class ModelResult:
    """The model itself, as a bundle."""

    model: Model
    tokenizers: Tokenizers

    def tensors(self) -> dict[str, Tensor]:
        return tensors_of(self.model)

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        write_bundle(folder, self.model.config, weights, self.tokenizers)

    @property
    def description(self) -> str:
        return f"{sum(parameter.numel() for parameter in self.model.parameters()):,} parameters"


@dataclass(frozen=True)
class AdapterResult:
    """Small matrices beside those of the model `base`, in PEFT's files."""

    model: Model
    base: str

    def tensors(self) -> dict[str, Tensor]:
        return dict(lora.trainable(self.model))

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        lora.save(self.model, folder, base=self.base, rows=rows_of(self.model.config))

    @property
    def description(self) -> str:
        found = lora.saving(self.model)
        return (
            f"an adapter of {found.trained:,} parameters ({found.trained / found.total:.2%}) beside {found.total:,} "
            f"that stay as they are, which saves {found.bytes_saved / (1 << 20):,.0f} MiB of gradients and moments"
        )


def create_result(
    recipe: Recipe, config: ModelConfig, tokenizers: Tokenizers, *, init: Bundle | None, device: torch.device
) -> Result:
    """A fresh model, one that is there, or an adapter beside one that is there."""
    if init is None:
        return ModelResult(build(config, seed=recipe.train.seed, device=device), tokenizers)
    model = prepare_init_model(init.model, config, device)
    if recipe.lora is None or recipe.init is None:
        return ModelResult(model, tokenizers)
    if recipe.lora.base != "float32":
        model = at_precision(model, recipe.lora.base)
    lora.attach(model, recipe.lora, seed=recipe.train.seed)
    return AdapterResult(model, base_name(recipe.init))


def count_trained_parameters(recipe: Recipe, config: ModelConfig) -> int:
    """How many numbers change: all, or those of an adapter; targets that are not there are told of here."""
    if recipe.lora is None:
        return count(config).parameters
    model = build(config, device="meta")
    lora.attach(model, recipe.lora)
    return sum(parameter.numel() for parameter in lora.trainable(model).values())


def prepare_init_model(model: Model, config: ModelConfig, device: torch.device) -> Model:
    """A model that is there, in float32, with what the recipe says of dropout and context."""
    fresh = build(config, device="meta")
    weights = {name: tensor.detach().to(device, torch.float32) for name, tensor in tensors_of(model).items()}
    fresh.load_state_dict(weights, strict=False, assign=True)  # names are the same; strict wants a shared table twice
    for parameter in fresh.parameters():
        parameter.requires_grad_(True)
    return fresh.eval()


def base_name(init: str) -> str:
    """What an adapter calls its model: a name at the hub, or where it lies."""
    return init if init.startswith("hf:") else str(Path(init).absolute())


def hash_base_weights(result: Result) -> dict[str, Any]:
    """What an adapter's run depends on beside its own tensors: every weight beneath it."""
    if not isinstance(result, AdapterResult):
        return {}
    own, found = result.tensors(), hashlib.sha256()
    for name, tensor in tensors_of(result.model).items():
        if name not in own:
            found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return {"base": found.hexdigest()}
