"""Values are finite, and no units are dead:

weights     all are finite
tensors     all tensors of a forward pass are finite
units       a ReLU unit that is 0 for every token, or an expert that no token uses, cannot learn
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Batch, Subject
from chumoku.doctor.tools import crop, input_key, random_batch, restore_after, run_model
from chumoku.models.model import Model
from chumoku.nn.tap import addresses, record

DEAD = 0.5  # share of a layer's units
TOKENS = 512  # tokens to test before a unit counts as dead


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        bad = int((~torch.isfinite(tensor)).sum()) if tensor.is_floating_point() else 0
        if bad:
            yield Finding(
                "numbers",
                f"{bad:,} of {tensor.numel():,} weights are not finite.",
                name,
                1.0,
                "Go back to an earlier checkpoint and use a lower learning rate or a longer warm-up.",
            )
            return
    with restore_after(model, precise=False), torch.no_grad(), record(model) as tape:
        run_model(model, sample_batches(subject, model)[0])
        for address in addresses(model):
            if address in tape and not bool(torch.isfinite(tape[address].float()).all()):
                what, todo = "A forward pass gives NaN or infinity.", "Check the inputs of this module."
                yield Finding("numbers", what, address, 0.99, todo)
                return


def run_dead(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    active: dict[str, torch.Tensor] = {}
    tokens_tested = 0
    pattern = "**.feedforward.hidden" if model.config.experts == 0 else "**.feedforward.chosen"
    with restore_after(model, precise=False), torch.no_grad():
        for batch in sample_batches(subject, model):
            with record(model, pattern) as tape:
                run_model(model, batch)
            for address in tape:
                found = count_active(tape[address], model)
                active[address] = found + active[address] if address in active else found
            tokens_tested += batch[input_key(batch)].numel()
            if tokens_tested >= TOKENS:
                break
    for address, counts in active.items():
        dead = float((counts == 0).double().mean())
        few = model.config.experts and tokens_tested * model.config.experts_per_token < 100 * model.config.experts
        if (dead > DEAD or (model.config.experts and dead > 0)) and not few:
            yield Finding(
                "dead",
                f"{dead:.0%} of the experts are used by no token."
                if model.config.experts
                else f"{dead:.0%} of the units are 0 for every token.",
                f"{address}, {tokens_tested:,} tokens",
                0.8,
                "Lower the learning rate, lengthen the warm-up, or start with smaller biases; for experts raise "
                "train.balance_loss.",
            )


def count_active(tensor: torch.Tensor, model: Model) -> torch.Tensor:
    """How often each unit was not 0, or each expert was used."""
    if model.config.experts:
        return torch.bincount(tensor.flatten(), minlength=model.config.experts)
    return (tensor.flatten(0, -2).abs() > 1e-9).sum(0)


def sample_batches(subject: Subject, model: Model) -> list[Batch]:
    """A few batches of the corpus, or random ones."""
    batches = subject.train if subject.train is not None else subject.validation
    length = min(64, model.config.context)
    if batches is None:
        return [{k: v.to(model.device) for k, v in random_batch(model, 16, length).items()}] * 2
    cropped = [crop(batches.batch(0, index), 16, length) for index in range(min(8, len(batches)))]
    return [{name: table.to(model.device) for name, table in batch.items()} for batch in cropped]


CHECK = Check("numbers", "weights and activations are finite", cheap=True, run=run, blocks_others=True)
DEAD_CHECK = Check("dead", "no units or experts are dead", cheap=False, run=run_dead)
