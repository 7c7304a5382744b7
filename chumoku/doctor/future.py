"""No future leaks:  tokens[t:] changed ⇒ logits[:t] unchanged, in eval mode and in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Patient, batch_norms
from chumoku.doctor.tools import (
    LENGTH,
    NEAR,
    answers,
    borrowed,
    changed,
    distance,
    far,
    key_of,
    learning,
    masked_way,
    size,
    tolerance,
)
from chumoku.models.model import Model

Way = Callable[[Model, Batch], Tensor]
LARGEST = 200_000_000  # numbers of a model that is asked for as much in any case
WAYS: dict[str, Way] = {"": answers, ", with a mask": masked_way}


def run(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    if model.config.kind == "encoder":
        raise Skip("an encoder sees everything, and is meant to")
    # Once as far as the model reaches, then in every other way too.
    batches = iter([far(patient, least=NEAR if size(model) <= LARGEST else LENGTH)])
    near = far(patient, most=NEAR)
    with borrowed(model), torch.no_grad():
        modes = {"in eval mode": nullcontext()} | ({} if batch_norms(model) else {"in training": learning(model)})
        for mode, inside in modes.items():
            with inside:
                for way, ask in WAYS.items():
                    moved, place = leak(model, next(batches, near), ask)
                    if moved > tolerance(model):
                        yield Finding(
                            "future",
                            f"A token changed at place {place} changes what is predicted before it, by {moved:.1e}.",
                            f"the decoder {mode}{way}",
                            0.99,
                            "Look at the causal mask: query i may see key j only where j ≤ i.",
                        )
                        return


def leak(model: Model, batch: Batch, ask: Way) -> tuple[float, int]:
    """How far answers move before a place from which on the tokens change; the worst of a few places."""
    key, before = key_of(batch), ask(model, batch)
    length = batch[key].shape[1]
    worst = (0.0, 0)
    for place in sorted({1, length // 2, length - 1} - {0}):
        other = batch[key].clone()
        other[:, place:] = changed(other[:, place:], model.config.vocabulary)
        after = ask(model, {**batch, key: other})
        worst = max(worst, (distance(before[:, :place], after[:, :place]), place))
    return worst


CHECK = Check("future", "no token sees a later one", cheap=True, run=run)
