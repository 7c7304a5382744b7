"""One batch can be learned by heart:  the loss on a few rows halves within some steps of AdamW."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient
from chumoku.doctor.tools import borrowed, check_trainable, learning, sample, size
from chumoku.training.objectives import Objective, count_labels

STEPS, LARGEST = 80, 60_000_000
ENOUGH = 0.2  # nats a token: nothing is left to be halved


def run(patient: Patient) -> Iterator[Finding]:
    model, objective = patient.the_model(), patient.the_objective()
    check_trainable(model)
    if size(model) > LARGEST:
        raise Skip("this model is too large to be trained here, even on one batch")
    batch = sample(patient, length=12)
    tokens = count_labels(batch)
    if tokens == 0:
        raise Skip("there is nothing to learn in the first rows")
    rate = min(3e-3, max(1e-4, 0.2 / model.config.width))
    with borrowed(model, precise=False), learning(model):
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        judge = Objective(model)
        first = last = measured(judge, batch) / tokens
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        objective.train()
        for number in range(1, STEPS + 1):
            optimizer.zero_grad()
            (objective(batch) / tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if number % 10 == 0:
                last = measured(judge, batch) / tokens
                if last < max(first / 2, ENOUGH):
                    return
    yield Finding(
        "overfit",
        f"{STEPS} steps on one batch of {tokens} tokens brought the loss from {first:.2f} to {last:.2f}: it cannot be "
        "learned by heart.",
        "the model and its objective",
        0.85,
        "Look for a loss of the wrong sign, labels that change, a gradient that is cut off, frozen weights.",
    )


@torch.no_grad()
def measured(judge: Objective, batch: dict[str, torch.Tensor]) -> float:
    return float(judge(batch))


CHECK = Check("overfit", "one batch can be learned by heart", cheap=False, run=run)
