"""Preference objectives: the chosen answer w becomes more likely than the rejected l, compared with a reference model.

    h       (log π(w) − log π_ref(w)) − (log π(l) − log π_ref(l)),   log π(y) = Σ_t log P(y_t | prompt, y_1 … y_{t−1})
    dpo     −(1 − ε) log σ(β h) − ε log σ(−β h)      ε: the share of pairs that may be labeled wrongly
    ipo     (h − 1 / 2β)²                            log π(y) is the mean over tokens instead of the sum
    hinge   max(0, 1 − β h)

The sum over pairs is divided once, by the pairs of all batches and processes of a step. The reference of an adapter is
the model without it, so there is no second model. When all weights are trained, the reference's log-probabilities come
with the batch: they were computed before the first step.

Beside the loss, a run logs means over pairs:
    margin      h, by how much training prefers the chosen answer
    accuracy    1 if h > 0, 0 if h < 0; before the first step h is 0, which counts as a half
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku import lora
from chumoku.data.batches import IGNORE
from chumoku.models.model import Model
from chumoku.training.metrics import Metrics
from chumoku.training.objectives.answer_logprobs import eval_mode, label_logprobs
from chumoku.training.objectives.token_prediction import Objective
from chumoku.training.settings import PreferenceSettings


def dpo(h: Tensor, settings: PreferenceSettings) -> Tensor:
    scaled, smoothing = settings.beta * h, settings.label_smoothing
    return -(1 - smoothing) * F.logsigmoid(scaled) - smoothing * F.logsigmoid(-scaled)


def ipo(h: Tensor, settings: PreferenceSettings) -> Tensor:
    return (h - 1 / (2 * settings.beta)) ** 2


def hinge(h: Tensor, settings: PreferenceSettings) -> Tensor:
    return F.relu(1 - settings.beta * h)


METHODS: dict[str, Callable[[Tensor, PreferenceSettings], Tensor]] = {"dpo": dpo, "ipo": ipo, "hinge": hinge}


def answer_logprobs(model: Model, batch: dict[str, Tensor]) -> Tensor:
    """log π of both answers of each pair, [P, 2], in float32."""
    tokens, labels = (batch[name].flatten(0, 1) for name in ("tokens", "labels"))
    return label_logprobs(model, tokens, labels).sum(1).view(-1, 2)


class PreferenceObjective(Objective):
    """Batch of preferences → loss summed over pairs."""

    def __init__(self, model: Model, settings: PreferenceSettings) -> None:
        super().__init__(model)
        self.settings = settings
        self.metrics, self.validate_first = Metrics("margin", "accuracy"), True

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        reference = batch["reference"] if "reference" in batch else self.reference(batch)
        ratios = answer_logprobs(self.model, batch) - reference
        if self.settings.method == "ipo":
            ratios = ratios / (batch["labels"] != IGNORE).sum(-1)
        h = ratios[:, 0] - ratios[:, 1]
        self.metrics.add(len(h), margin=h.sum(), accuracy=((h.sign() + 1) / 2).sum())
        losses = METHODS[self.settings.method](h, self.settings)
        return (losses * batch["terms"]).sum()

    @torch.no_grad()
    def reference(self, batch: dict[str, Tensor]) -> Tensor:
        """The log-probabilities of the model without its adapter and without dropout."""
        with lora.without_adapter(self.model), eval_mode(self.model):
            return answer_logprobs(self.model, batch)
