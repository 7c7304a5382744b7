"""A model that knows nothing guesses evenly:  first loss ≈ ln V."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from chumoku.doctor.bench import borrowed, sample
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.patient import Patient, fresh
from chumoku.training.objectives import learnt

ABOVE, BELOW = 1.5, 1.0  # logits of deviation 1, as with tied tables of unit vectors, cost half a nat


def run(patient: Patient) -> Iterator[Finding]:
    model, objective = patient.the_model(), patient.the_objective()
    if not fresh(model):
        raise Skip("this model has learnt already")
    batch = sample(patient, rows=16)
    with borrowed(model, precise=False), torch.no_grad():
        objective.eval()
        loss = float(objective(batch)) / max(1, learnt(batch))
    even = math.log(model.config.vocabulary)
    if not even - BELOW <= loss <= even + ABOVE:
        yield Finding(
            "first loss",
            f"Before any training the loss is {loss:.2f}, and ln V is {even:.2f}.",
            f"the fresh model, {learnt(batch)} tokens",
            0.9,
            "Above: weights begin too large. Below: the answer is in the question (labels, masks).",
        )


CHECK = Check("first loss", "the first loss is near ln V", cheap=True, run=run)
