"""Batch mates change nothing:  f(row alone) = f(row beside others), in eval mode and in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Patient, batch_norms
from chumoku.doctor.tools import answers, beside, borrowed, distance, learning, tolerance


def run(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    batch = beside(patient)
    with borrowed(model), torch.no_grad():
        modes: dict[str, AbstractContextManager[None]] = {"in eval mode": nullcontext(), "in training": learning(model)}
        for mode, inside in modes.items():
            with inside:
                together = answers(model, batch)
                alone = torch.cat(
                    [
                        answers(model, {name: table[[row]] for name, table in batch.items()})
                        for row in range(len(together))
                    ]
                )
            moved = distance(together, alone)
            if moved > tolerance(model):
                guilty = batch_norms(model)
                # In training a batch norm does so by its formula, and whoever chose it has chosen that.
                chosen = bool(guilty) and model.config.norm == "batch" and mode == "in training"
                yield Finding(
                    "mates",
                    f"A row's answers depend on the rows beside it: alone they differ by {moved:.1e}.",
                    f"the model {mode}" + (f"; {guilty[0]} is a batch norm" if guilty else ""),
                    0.4 if chosen else 0.99,
                    "A batch norm does this by its nature; norm = 'layer' or 'rms' does not."
                    if chosen
                    else "Use norm = 'layer' or 'rms'."
                    if guilty
                    else "Look for sums over the batch, and masks of other rows.",
                )
                return


CHECK = Check("mates", "rows of a batch do not change each other", cheap=True, run=run)
