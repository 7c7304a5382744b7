"""Numbers are numbers, and units live:

weights     every one is finite
tensors     every one of a pass is finite
units       a ReLU that is 0 for every token, an expert that no token chooses, teaches nothing and learns nothing
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Batch, Patient
from chumoku.doctor.tools import answers, borrowed, cut, made_up
from chumoku.models.model import Model
from chumoku.nn.tap import addresses, record

DEAD = 0.5  # of a layer's units
TOKENS = 512  # before a unit is called dead


def run(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        bad = int((~torch.isfinite(tensor)).sum()) if tensor.is_floating_point() else 0
        if bad:
            yield Finding(
                "numbers",
                f"{bad:,} of {tensor.numel():,} weights are not finite.",
                name,
                1.0,
                "Go back to a checkpoint from before, with a lower rate or a longer warm-up.",
            )
            return
    with borrowed(model, precise=False), torch.no_grad(), record(model) as tape:
        answers(model, rows_of(patient, model)[0])
        for address in addresses(model):
            if address in tape and not bool(torch.isfinite(tape[address].float()).all()):
                yield Finding(
                    "numbers", "A pass gives numbers that are not finite.", address, 0.99, "Look at what goes in there."
                )
                return


def run_dead(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    living: dict[str, torch.Tensor] = {}
    seen = 0
    pattern = "**.feedforward.hidden" if model.config.experts == 0 else "**.feedforward.chosen"
    with borrowed(model, precise=False), torch.no_grad():
        for batch in rows_of(patient, model):
            with record(model, pattern) as tape:
                answers(model, batch)
            for address in tape:
                found = alive(tape[address], model)
                living[address] = found + living[address] if address in living else found
            seen += batch["labels"].numel()
            if seen >= TOKENS:
                break
    for address, counts in living.items():
        dead = float((counts == 0).double().mean())
        few = model.config.experts and seen * model.config.experts_per_token < 100 * model.config.experts
        if (dead > DEAD or (model.config.experts and dead > 0)) and not few:
            what = "experts are chosen by no token" if model.config.experts else "units give 0 for every token"
            yield Finding(
                "dead",
                f"{dead:.0%} of the {what}.",
                f"{address}, {seen:,} tokens",
                0.8,
                "Lower the learning rate, lengthen the warm-up, or start with smaller biases; for experts raise "
                "train.balance_loss.",
            )


def alive(tensor: torch.Tensor, model: Model) -> torch.Tensor:
    """How often each unit gave something, or each expert was chosen."""
    if model.config.experts:
        return torch.bincount(tensor.flatten(), minlength=model.config.experts)
    return (tensor.flatten(0, -2).abs() > 1e-9).sum(0)


def rows_of(patient: Patient, model: Model) -> list[Batch]:
    """Enough batches to have met many tokens."""
    batches = patient.train if patient.train is not None else patient.validation
    length = min(64, model.config.context)
    if batches is None:
        return [{k: v.to(model.device) for k, v in made_up(model, 16, length).items()}] * 2
    made = [cut(batches.batch(0, index), 16, length) for index in range(min(8, len(batches)))]
    return [{name: table.to(model.device) for name, table in batch.items()} for batch in made]


CHECK = Check("numbers", "weights and tensors are finite", cheap=True, run=run, decides=True)
DEAD_CHECK = Check("dead", "units and experts are alive", cheap=False, run=run_dead)
