"""Training objectives, one in each file. An objective is a module: batch → loss summed over what the batch counts.

`count_labels` says how many terms that sum has. The training loop divides once, by the terms of all batches and
processes of a step, so that several small batches equal one large batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chumoku.models.model import Model
from chumoku.training.objectives.preference import PreferenceObjective
from chumoku.training.objectives.token_prediction import Objective, count_labels, forward, token_loss

if TYPE_CHECKING:
    from chumoku.training.recipe import Recipe

__all__ = ["Objective", "PreferenceObjective", "count_labels", "forward", "make_objective", "token_loss"]


def make_objective(recipe: Recipe, model: Model) -> Objective:
    """The objective of a recipe."""
    if recipe.preference is not None:
        return PreferenceObjective(model, recipe.preference)
    weights = {key: getattr(recipe.train, key) for key in ("label_smoothing", "balance_loss", "router_z_loss")}
    return Objective(model, **weights)
