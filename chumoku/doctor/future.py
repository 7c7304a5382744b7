"""No future leaks:  changing tokens[t:] does not change logits[:t], in eval mode and in training mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Subject, batch_norms
from chumoku.doctor.tools import (
    LENGTH,
    MAX_DOUBLE,
    NEAR,
    change_tokens,
    count_parameters,
    distance,
    input_key,
    long_row,
    restore_after,
    run_model,
    run_model_masked,
    tolerance,
    train_mode,
)
from chumoku.models.model import Model

Way = Callable[[Model, Batch], Tensor]
LARGEST = 200_000_000  # parameters up to which NEAR tokens are always tested
WAYS: tuple[Way, ...] = (run_model, run_model_masked)


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    if model.config.kind == "encoder":
        raise Skip("an encoder sees all tokens")
    # One long row first; the other modes and the masked way use a short one.
    batches = iter([long_row(subject, least=NEAR if count_parameters(model) <= LARGEST else LENGTH)])
    near = long_row(subject, most=NEAR)
    with restore_after(model), torch.no_grad():
        modes = {"eval mode": nullcontext()} | ({} if batch_norms(model) else {"training mode": train_mode(model)})
        for mode, inside in modes.items():
            with inside:
                for ask in WAYS:
                    difference, place = leak(model, next(batches, near), ask)
                    if difference > tolerance(model):
                        yield Finding(
                            "future",
                            f"Tokens from position {place} on change earlier predictions by {difference:.1e}.",
                            f"the decoder in {mode}, with a mask"
                            if ask is run_model_masked
                            else f"the decoder in {mode}",
                            0.99,
                            "Check the causal mask: query i may see key j only if j ≤ i.",
                        )
                        return


def leak(model: Model, batch: Batch, ask: Way) -> tuple[float, int]:
    """The largest change of outputs before a position where tokens change, and that position; a few are tried."""
    key, before = input_key(batch), ask(model, batch)
    length = batch[key].shape[1]
    worst = (0.0, 0)
    places = {1, length // 2, length - 1} if count_parameters(model) <= MAX_DOUBLE else {length // 2}
    for place in sorted(places - {0}):
        other = batch[key].clone()
        other[:, place:] = change_tokens(other[:, place:], model.config.vocabulary)
        after = ask(model, {**batch, key: other})
        worst = max(worst, (distance(before[:, :place], after[:, :place]), place))
    return worst


CHECK = Check("future", "no token sees a later token", cheap=True, run=run)
