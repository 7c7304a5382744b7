"""Classification and tagging, summed over texts or words:

    classes   −log P(c | x)             c the class of the text x
    tags      −Σ_w log P(c_w | x)       c_w the tag of word w, predicted at its first token

P is the softmax of the logits, optionally with label smoothing ε. Labels of −100 are ignored.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from chumoku.data.batches import IGNORE
from chumoku.models.model import Model
from chumoku.training.objectives.token_prediction import Objective


def label_loss(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy summed over all labels, in float32: logits [B, C] and labels [B], or [B, T, C] and [B, T]."""
    return F.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORE,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


class Classification(Objective):
    """Batch → summed loss of a model with classes or tags; the options are those of `Objective`."""

    def __init__(self, model: Model, **options: float) -> None:
        super().__init__(model, **options)
        self.token_loss = label_loss
