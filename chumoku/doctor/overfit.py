"""The model can overfit one batch:  the loss on a few rows halves within STEPS steps of AdamW."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject
from chumoku.doctor.tools import check_trainable, count_parameters, restore_after, sample_batch, train_mode
from chumoku.training.objectives import Objective, count_labels
from chumoku.training.objectives.distillation import Distillation

STEPS, LARGEST = 80, 60_000_000
ENOUGH = 0.2  # nats per token; a loss below this counts as learned


def run(subject: Subject) -> Iterator[Finding]:
    model, objective = subject.require_model(), subject.require_objective()
    check_trainable(model)
    if isinstance(objective, Distillation):
        raise Skip("a student learns what its teacher says, not only the labels")
    if count_parameters(model) > LARGEST:
        raise Skip("this model is too large to train here, even on one batch")
    batch = sample_batch(subject, length=12)
    tokens = count_labels(batch)
    if tokens == 0:
        raise Skip("the first rows have no labels")
    learning_rate = min(3e-3, max(1e-4, 0.2 / model.config.width))
    with restore_after(model, precise=False), train_mode(model):
        weights = [parameter.requires_grad_() for parameter in model.parameters() if parameter.is_floating_point()]
        evaluation = subject.default_objective().eval()
        first = last = total_loss(evaluation, batch) / tokens
        optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=0.0, fused=True)
        objective.train()
        for number in range(1, STEPS + 1):
            optimizer.zero_grad()
            (objective(batch) / tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if number % 10 == 0:
                last = total_loss(evaluation, batch) / tokens
                if last < max(first / 2, ENOUGH):
                    return
    yield Finding(
        "overfit",
        f"{STEPS} steps on one batch of {tokens} tokens changed the loss from {first:.2f} to {last:.2f}: the model "
        "cannot overfit it.",
        "the model and its objective",
        0.85,
        "Look for a loss with the wrong sign, changing labels, detached gradients, or frozen weights.",
    )


@torch.no_grad()
def total_loss(evaluation: Objective, batch: dict[str, torch.Tensor]) -> float:
    return float(evaluation(batch))


CHECK = Check("overfit", "the model can overfit one batch", cheap=False, run=run)
