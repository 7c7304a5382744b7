"""Eval mode is deterministic:  the same tokens give the same logits twice."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Subject
from chumoku.doctor.tools import distance, restore_after, run_model, sample_batch


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    left_on = [name for name, module in model.named_modules() if module.training and name]
    if left_on and not model.training:
        yield Finding(
            "dropout",
            f"The model is in eval mode, but {len(left_on)} of its modules are in training mode.",
            left_on[0],
            0.97,
            "Call model.eval() again before inference, and find the code that calls train() on a module.",
        )
    batch = sample_batch(subject)
    with restore_after(model), torch.no_grad():
        difference = distance(run_model(model, batch), run_model(model, batch))
        if difference > 0:
            yield Finding(
                "dropout",
                f"Two passes in eval mode differ by {difference:.1e}: something is random.",
                "the model in eval mode",
                0.99,
                "Look for dropout that ignores module.training.",
            )


CHECK = Check("dropout", "nothing is random in eval mode", cheap=True, run=run, blocks_others=True)
