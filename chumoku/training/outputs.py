"""The result of a run, and the tensors its checkpoints store: a full model, or an adapter of a frozen model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from chumoku import lora
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.count import count
from chumoku.models.generation_config import GenerationConfig
from chumoku.models.heads import LabelHead
from chumoku.models.initialization import initialize
from chumoku.models.model import Model
from chumoku.models.precision import to_precision
from chumoku.pretrained import find_shipped
from chumoku.training.recipe import Recipe
from chumoku.weights.bundle import Bundle, Tokenizers, write_bundle
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.families import transformers_rows


class Result(Protocol):
    @property
    def model(self) -> Model: ...

    def tensors(self) -> dict[str, Tensor]:
        """The trained tensors, which checkpoints store."""

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the result into an existing folder; `weights` are the full tensors on the CPU."""

    @property
    def description(self) -> str:
        """How many parameters are trained, as text."""


@dataclass(frozen=True)
class ModelResult:
    """A full model, written as a bundle."""

    model: Model
    tokenizers: Tokenizers
    generation_config: GenerationConfig = field(default_factory=GenerationConfig)  # of the model it started from

    def tensors(self) -> dict[str, Tensor]:
        return tensors_of(self.model)

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        write_bundle(folder, self.model.config, weights, self.tokenizers)
        self.generation_config.write(folder)

    @property
    def description(self) -> str:
        return f"{sum(parameter.numel() for parameter in self.model.parameters()):,} parameters"


@dataclass(frozen=True)
class AdapterResult:
    """A LoRA adapter of the model `base`, written in PEFT's format."""

    model: Model
    base: str

    def tensors(self) -> dict[str, Tensor]:
        return dict(lora.trainable_parameters(self.model))

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        lora.save(self.model, folder, base=self.base, rows=transformers_rows(self.model.config))

    @property
    def description(self) -> str:
        found = lora.memory_savings(self.model)
        return (
            f"an adapter of {found.trained:,} parameters ({found.trained / found.total:.2%}) for {found.total:,} "
            f"frozen ones, which saves {found.bytes_saved / (1 << 20):,.0f} MiB of gradients and optimizer state"
        )


def create_result(
    recipe: Recipe, config: ModelConfig, tokenizers: Tokenizers, *, init: Bundle | None, device: torch.device
) -> Result:
    """The model to train: new, loaded from `init`, or `init` with an adapter."""
    if init is None:
        return ModelResult(build(config, seed=recipe.train.seed, device=device), tokenizers)
    model = prepare_init_model(init.model, config, device, seed=recipe.train.seed)
    if recipe.lora is None or recipe.init is None:
        return ModelResult(model, tokenizers, init.generation_config)
    if recipe.lora.base != "float32":
        model = to_precision(model, recipe.lora.base)
    lora.attach(model, recipe.lora, seed=recipe.train.seed)
    return AdapterResult(model, base_name(recipe.init))


def count_trained_parameters(recipe: Recipe, config: ModelConfig) -> int:
    """The number of trained parameters: all, or the adapter's. LoRA targets that do not exist raise an error."""
    if recipe.lora is None:
        return count(config).parameters
    model = build(config, device="meta")
    lora.attach(model, recipe.lora)
    return sum(parameter.numel() for parameter in lora.trainable_parameters(model).values())


def prepare_init_model(model: Model, config: ModelConfig, device: torch.device, *, seed: int = 0) -> Model:
    """A copy of the initial model in float32, with the dropout, context and head of the recipe's config.

    seed: of the weights of a new head
    """
    fresh = build(config, device="meta")
    new_head = (config.head, config.labels) != (model.config.head, model.config.labels)
    weights = {
        name: tensor.detach().to(device, torch.float32, copy=True)
        for name, tensor in tensors_of(model).items()
        if not (new_head and name.startswith("head."))
    }
    fresh.load_state_dict(weights, strict=False, assign=True)  # strict would require a tied table twice
    if new_head and isinstance(fresh.head, LabelHead):
        fresh.head.to_empty(device=device)
        initialize(fresh.head, config, torch.Generator(device).manual_seed(seed))
    for parameter in fresh.parameters():
        parameter.requires_grad_(True)
    return fresh.eval()


def base_name(init: str) -> str:
    """The model name stored in an adapter: a hub name, that of a shipped model, or an absolute path."""
    return init if init.startswith("hf:") or find_shipped(init) else str(Path(init).absolute())


def hash_base_weights(result: Result) -> dict[str, Any]:
    """For an adapter, a hash of all frozen weights, on which the run depends; else nothing."""
    if not isinstance(result, AdapterResult):
        return {}
    own = result.tensors()
    return {"base": hash_weights({name: one for name, one in tensors_of(result.model).items() if name not in own})}


def hash_weights(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors, in their order."""
    found = hashlib.sha256()
    for tensor in tensors.values():
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()
