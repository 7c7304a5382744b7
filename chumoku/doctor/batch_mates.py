"""Rows of a batch are independent:  f(row alone) = f(row in a batch), in eval mode and in training mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Subject, batch_norms
from chumoku.doctor.tools import distance, many_rows, restore_after, run_model, tolerance, train_mode


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    batch = many_rows(subject)
    with restore_after(model), torch.no_grad():
        modes: dict[str, AbstractContextManager[None]] = {
            "eval mode": nullcontext(),
            "training mode": train_mode(model),
        }
        for mode, inside in modes.items():
            with inside:
                together = run_model(model, batch)
                alone = torch.cat(
                    [
                        run_model(model, {name: table[[row]] for name, table in batch.items()})
                        for row in range(len(together))
                    ]
                )
            difference = distance(together, alone)
            if difference > tolerance(model):
                norms = batch_norms(model)
                # In training mode batch norm mixes rows by definition, so this is only a hint.
                expected = bool(norms) and model.config.norm == "batch" and mode == "training mode"
                yield Finding(
                    "mates",
                    f"The output of a row depends on other rows of the batch: alone it differs by {difference:.1e}.",
                    f"the model in {mode}; {norms[0]} is a batch norm" if norms else f"the model in {mode}",
                    0.4 if expected else 0.99,
                    "Batch norm does this by definition; norm = 'layer' or 'rms' does not."
                    if expected
                    else "Use norm = 'layer' or 'rms'."
                    if norms
                    else "Look for sums over the batch dimension, and masks of other rows.",
                )
                return


CHECK = Check("mates", "rows of a batch do not influence each other", cheap=True, run=run)
