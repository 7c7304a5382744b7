"""The teacher of a recipe with [distillation]: a model of any format that opens here."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from chumoku.config import settings_to_dict
from chumoku.errors import UsageError
from chumoku.model_path import resolve_run
from chumoku.models.model import Model
from chumoku.models.precision import to_precision
from chumoku.training.datasets import TrainingData
from chumoku.training.recipe import Recipe
from chumoku.weights.bundle import Bundle
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.open_model import load


def load_teacher(recipe: Recipe, device: torch.device) -> Bundle | None:
    """The teacher with its tokenizers, in the precision of its file; None if the recipe has none."""
    if recipe.distillation is None:
        return None
    opened = load(resolve_run(recipe.distillation.teacher), device=device, dequantize=device.type == "cuda")
    opened.require_tokenizer()
    model = opened.model
    if model.dtype == torch.bfloat16 and device.type == "cpu":
        model = to_precision(model, "bf16")  # CPUs compute bf16 weights in float32
    return Bundle(model, opened.tokenizer, opened.source_tokenizer, opened.generation_config)


def check_teacher(teacher: Bundle, data: TrainingData) -> None:
    """Refuse a teacher whose logits do not mean the same as the student's."""
    for side in ("tokenizer", "source_tokenizer"):
        if getattr(teacher, side).fingerprint != getattr(data, side).fingerprint:
            raise UsageError("The teacher has another tokenizer than the student, so their tokens are not the same.")
    if teacher.config.labels != data.config.labels:
        raise UsageError("The teacher has other labels than the student. Train it on the same labels.")


def shared_outputs(teacher: Bundle) -> int:
    """The number of logits that teacher and student share: labels, or the tokens of their tokenizer."""
    return teacher.config.label_count or teacher.tokenizer.size


def describe_teacher(recipe: Recipe, teacher: Bundle | None) -> dict[str, Any]:
    """The settings of [distillation], with a hash of the teacher's weights instead of its name."""
    if recipe.distillation is None or teacher is None:
        return {}
    return {"distillation": {**settings_to_dict(recipe.distillation), "teacher": hash_weights(teacher.model)}}


def hash_weights(model: Model) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors_of(model).items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
