"""Objectives: what a training step minimizes, as a sum over tokens.

    next token     −log P(w_{t+1} | w_1 … w_t)
    masked token   −log P(w_t | the rest), where w_t is hidden
    translation    −log P(y_t | x, y_1 … y_{t−1}), with a share ε of the target spread over all tokens

The sum is divided once, by the number of all tokens of all batches and processes of a step, so that several small
batches add up to one large batch exactly. Labels of −100 are not learned.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import UsageError
from chumoku.models.model import Model, Output
from chumoku.nn import masks

IGNORE = -100


def count_labels(batch: dict[str, Tensor]) -> int:
    """How many tokens of a batch have a label."""
    return int((batch["labels"] != IGNORE).sum())


class Objective(nn.Module):
    """A model and its loss: a batch goes in, the summed loss comes out. In eval mode nothing is smoothed or added."""

    def __init__(
        self, model: Model, *, label_smoothing: float = 0.0, balance_loss: float = 0.0, router_z_loss: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise UsageError(
                f"A label smoothing of {label_smoothing} is not allowed; it must be at least 0 and below 1."
            )
        self.model, self.label_smoothing = model, label_smoothing
        self.balance_loss, self.router_z_loss = balance_loss, router_z_loss

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        output = forward(self.model, batch)
        if output.logits is None:
            raise UsageError("This model has no logits to learn from: its head gives a vector. Choose head = 'masked'.")
        labels = batch["labels"]
        total = F.cross_entropy(
            output.logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORE,
            reduction="sum",
            label_smoothing=self.label_smoothing if self.training else 0.0,
        )
        if output.losses is not None:
            routers = self.balance_loss * output.losses.balance + self.router_z_loss * output.losses.z
            total = total + routers * (labels != IGNORE).sum()
        return total


def forward(model: Model, batch: dict[str, Tensor]) -> Output:
    """The model on a batch of `chumoku.data.batches`, whatever its kind."""
    output: Output
    if "source" in batch:
        # Padding behind a target is never looked at, so attention needs no mask for it; counting routers do.
        real = batch["labels"] != IGNORE if model.config.experts else None
        output = model(batch["source"], batch["target"], source_mask=batch["source_mask"], target_mask=real)
    elif "documents" in batch:
        output = model(batch["tokens"], mask=masks.packed(batch["documents"]), positions=batch["positions"])
    else:
        output = model(batch["tokens"])
    return output
