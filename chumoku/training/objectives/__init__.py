"""Training objectives, one in each file. An objective is a module: batch → loss summed over what the batch counts.

`count_labels` says how many terms that sum has. The training loop divides once, by the terms of all batches and
processes of a step, so that several small batches equal one large batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chumoku.models.model import Model
from chumoku.training.objectives.classification import Classification
from chumoku.training.objectives.token_prediction import Objective, count_labels, forward, token_loss

if TYPE_CHECKING:
    from chumoku.training.recipe import Recipe

__all__ = [
    "Classification",
    "Objective",
    "count_labels",
    "default_objective",
    "forward",
    "make_objective",
    "token_loss",
]


def make_objective(recipe: Recipe, model: Model) -> Objective:
    """The objective of a recipe."""
    weights = {key: getattr(recipe.train, key) for key in ("label_smoothing", "balance_loss", "router_z_loss")}
    return default_objective(model, **weights)


def default_objective(model: Model, **options: float) -> Objective:
    """The objective that a model's head is trained with; the options are those of `Objective`."""
    return Classification(model, **options) if model.config.labels is not None else Objective(model, **options)
