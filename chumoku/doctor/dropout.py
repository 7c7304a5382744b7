"""Answers are not drawn:  in eval mode, the same tokens give the same logits twice."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Patient
from chumoku.doctor.tools import answers, borrowed, distance, sample


def run(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    left_on = [name for name, module in model.named_modules() if module.training and name]
    if left_on and not model.training:
        yield Finding(
            "dropout",
            f"The model is in eval mode, and {len(left_on)} of its parts are in training mode.",
            left_on[0],
            0.97,
            "Call model.eval() once more before asking, and look for who calls train() on a part.",
        )
    batch = sample(patient)
    with borrowed(model), torch.no_grad():
        moved = distance(answers(model, batch), answers(model, batch))
        if moved > 0:
            yield Finding(
                "dropout",
                f"Asked twice in eval mode, the model gives two answers, {moved:.1e} apart: something is drawn.",
                "the model in eval mode",
                0.99,
                "Look for a dropout that does not ask whether the module is training.",
            )


CHECK = Check("dropout", "nothing is drawn in eval mode", cheap=True, run=run, decides=True)
