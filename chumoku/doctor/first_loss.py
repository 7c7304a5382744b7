"""An untrained model predicts uniformly:  first loss ≈ ln V, of C classes or tags ln C."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject, is_untrained
from chumoku.doctor.tools import restore_after, sample_batch
from chumoku.training.objectives import count_labels

ABOVE, BELOW = 1.5, 1.0  # nats; logits with standard deviation 1 (tied embeddings) already add 0.5


def run(subject: Subject) -> Iterator[Finding]:
    model, objective = subject.require_model(), subject.require_objective()
    if subject.has_sentences():
        raise Skip("the loss of vectors depends on the temperature")
    if not is_untrained(model):
        raise Skip("this model is already trained")
    batch = sample_batch(subject, rows=16)
    with restore_after(model, precise=False), torch.no_grad():
        objective.eval()
        loss = float(objective(batch)) / max(1, count_labels(batch))
    choices = "V" if model.config.labels is None else "C"
    uniform = math.log(model.config.label_count or model.config.vocabulary)
    if not uniform - BELOW <= loss <= uniform + ABOVE:
        yield Finding(
            "first loss",
            f"Before training the loss is {loss:.2f}; ln {choices} is {uniform:.2f}.",
            f"the untrained model, {count_labels(batch)} tokens",
            0.9,
            "Too high: the initial weights are too large. Too low: the input contains the answer (labels, masks).",
        )


CHECK = Check("first loss", "the first loss is near ln V", cheap=True, run=run)
