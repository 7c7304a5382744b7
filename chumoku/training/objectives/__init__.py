"""Training objectives, one in each file. An objective is a module: batch → loss summed over what the batch counts.

`count_labels` says how many terms that sum has. The training loop divides once, by the terms of all batches and
processes of a step, so that several small batches equal one large batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chumoku.config import settings_to_dict
from chumoku.models.model import Model
from chumoku.text.tokenizer import Tokenizer
from chumoku.training.objectives.classification import Classification
from chumoku.training.objectives.contrastive import ContrastiveObjective
from chumoku.training.objectives.distillation import Distillation
from chumoku.training.objectives.grpo import GrpoObjective
from chumoku.training.objectives.preference import PreferenceObjective
from chumoku.training.objectives.token_prediction import Objective, count_labels, forward, token_loss

if TYPE_CHECKING:
    from chumoku.training.recipe import Recipe

__all__ = [
    "Classification",
    "ContrastiveObjective",
    "Distillation",
    "GrpoObjective",
    "Objective",
    "PreferenceObjective",
    "count_labels",
    "default_objective",
    "forward",
    "make_objective",
    "token_loss",
]


def make_objective(
    recipe: Recipe, model: Model, tokenizer: Tokenizer | None = None, *, teacher: Model | None = None, outputs: int = 0
) -> Objective:
    """The objective of a recipe; with a teacher, distillation of its first `outputs` logits.

    tokenizer    of the objectives that generate text
    """
    if recipe.grpo is not None and tokenizer is not None:
        return GrpoObjective(model, recipe.grpo, tokenizer)
    if recipe.preference is not None:
        return PreferenceObjective(model, recipe.preference)
    routers = {key: getattr(recipe.train, key) for key in ("balance_loss", "router_z_loss")}
    if recipe.contrastive is not None:
        return ContrastiveObjective(model, **settings_to_dict(recipe.contrastive), **routers)
    weights = {"label_smoothing": recipe.train.label_smoothing, **routers}
    if recipe.distillation is not None and teacher is not None:
        settings = {"temperature": recipe.distillation.temperature, "weight": recipe.distillation.weight}
        return Distillation(model, teacher, outputs=outputs, **settings, **weights)
    return default_objective(model, **weights)


def default_objective(model: Model, **options: float) -> Objective:
    """The objective that a model's head is trained with; the options are those of `Objective`."""
    return Classification(model, **options) if model.config.labels is not None else Objective(model, **options)
