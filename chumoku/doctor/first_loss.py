"""A model that knows nothing guesses evenly:  first loss ≈ ln V."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient, fresh
from chumoku.doctor.tools import borrowed, sample
from chumoku.training.objectives import count_labels

ABOVE, BELOW = 1.5, 1.0  # logits of deviation 1, as with tied tables of unit vectors, cost half a nat


def run(patient: Patient) -> Iterator[Finding]:
    model, objective = patient.the_model(), patient.the_objective()
    if not fresh(model):
        raise Skip("this model has learned already")
    batch = sample(patient, rows=16)
    with borrowed(model, precise=False), torch.no_grad():
        objective.eval()
        loss = float(objective(batch)) / max(1, count_labels(batch))
    even = math.log(model.config.vocabulary)
    if not even - BELOW <= loss <= even + ABOVE:
        yield Finding(
            "first loss",
            f"Before any training the loss is {loss:.2f}, and ln V is {even:.2f}.",
            f"the fresh model, {count_labels(batch)} tokens",
            0.9,
            "Above: weights begin too large. Below: the answer is in the question (labels, masks).",
        )


CHECK = Check("first loss", "the first loss is near ln V", cheap=True, run=run)
