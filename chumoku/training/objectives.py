"""Objectives: what a training step minimises, as a sum over tokens and the number of tokens.

    next token     −log P(w_{t+1} | w_1 … w_t)
    masked token   −log P(w_t | the rest), where w_t is hidden
    translation    −log P(y_t | x, y_1 … y_{t−1}), with a share ε of the target spread over all tokens

Sum and number are kept apart, so that several small batches, or several processes, add up to one large batch exactly:
divide once, by the number of all tokens. Labels of −100 are not learnt.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.model import Model, Output
from chumoku.nn import masks

IGNORE = -100


class Loss(NamedTuple):
    total: Tensor  # summed over tokens
    tokens: Tensor  # how many were learnt
    output: Output


def objective(model: Model, batch: dict[str, Tensor], *, smoothing: float = 0.0) -> Loss:
    """The loss of a batch made by `chumoku.data.batches`, whatever the kind of the model."""
    if not 0 <= smoothing < 1:
        raise UsageError(f"A label smoothing of {smoothing} cannot be; it lies from 0 to below 1.")
    output = _forward(model, batch)
    if output.logits is None:
        raise UsageError("This model has no logits to learn from: its head gives a vector. Choose head = 'masked'.")
    labels = batch["labels"]
    total = F.cross_entropy(
        output.logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORE,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return Loss(total, (labels != IGNORE).sum(), output)


def _forward(model: Model, batch: dict[str, Tensor]) -> Output:
    output: Output
    if model.config.kind == "encoder-decoder":
        output = model(batch["source"], batch["target"], source_mask=batch["source_mask"])
    elif "documents" in batch:
        output = model(batch["tokens"], mask=masks.packed(batch["documents"]), positions=batch["positions"])
    else:
        output = model(batch["tokens"])
    return output
