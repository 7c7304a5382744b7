"""Distillation: a student learns the probabilities of a teacher, summed over tokens, words or texts:

    (1 − w) · CE + w · τ² · KL(p ‖ q)        p = softmax(teacher / τ),  q = softmax(student / τ)
    KL(p ‖ q) = Σ p (log p − log q)

CE is the cross-entropy with the labels. τ² keeps the gradients of both terms at one scale (Hinton et al., 2015). The
teacher computes in its own precision, without gradients and without dropout. In eval mode the loss is CE alone, so
that validation losses of students can be compared with those of other models.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.data.batches import IGNORE
from chumoku.errors import UsageError
from chumoku.models.model import Model
from chumoku.training.objectives.classification import label_loss
from chumoku.training.objectives.token_prediction import Objective, forward


def distillation_loss(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """τ² KL(teacher ‖ student), summed over the places that have a label, in float32: logits [..., V], labels [...]."""
    real = labels.flatten() != IGNORE
    log_q = (student.flatten(0, -2)[real].float() / temperature).log_softmax(-1)
    log_p = (teacher.flatten(0, -2)[real].float() / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(log_q, log_p, reduction="sum", log_target=True)


class Distillation(Objective):
    """Batch → summed loss of a student; the other options are those of `Objective`.

    outputs: the number of logits that both models have; a vocabulary may be padded differently.
    """

    def __init__(
        self, model: Model, teacher: Model, *, temperature: float, weight: float, outputs: int, **options: float
    ) -> None:
        super().__init__(model, **options)
        if model.config.labels is not None:
            self.token_loss = label_loss
        self.temperature, self.weight, self.outputs = temperature, weight, outputs
        # Inside a tuple, it is no submodule: not trained, not cast, not in training mode, not synchronized.
        self._teacher = (teacher.eval().requires_grad_(False),)

    reads_logits = True

    def loss(self, logits: Tensor, hidden: Tensor, batch: dict[str, Tensor]) -> Tensor:
        labels = super().loss(logits, hidden, batch)
        if not self.training:
            return labels
        with torch.no_grad():
            teacher = forward(self._teacher[0], batch).logits
        if teacher is None:
            raise UsageError("The teacher outputs vectors, not logits. Choose another teacher.")
        soft = distillation_loss(
            logits[..., : self.outputs], teacher[..., : self.outputs], batch["labels"], self.temperature
        )
        return (1 - self.weight) * labels + self.weight * soft
