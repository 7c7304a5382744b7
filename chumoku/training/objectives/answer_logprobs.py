"""log P(y_t | prompt, y_1 … y_{t−1}) of the labels of a decoder's batch, for objectives that compare answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.data.batches import IGNORE
from chumoku.models.model import Model


def label_logprobs(model: Model, tokens: Tensor, labels: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The log-probability of each label in float32, [B, T]; 0 where there is no label.

    temperature    the logits are divided by it, as when the labels were sampled
    """
    logits = model(tokens).logits.float()  # causal attention never sees the padding, which is on the right
    if temperature != 1:
        logits = logits / temperature
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="none")
    return -losses.view_as(labels)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode inside the block."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
