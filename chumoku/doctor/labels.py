"""Labels are what the model is to say:

next token      labels[t] = tokens[t + 1]
translation     labels[t] = target[t + 1], and the last one is the end
masked token    labels only where something is hidden: 8 of 10 there are <mask>, and hardly any elsewhere
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from chumoku.data.batches import Batches, MaskedBatches
from chumoku.doctor.bench import key_of
from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.patient import Batch, Patient
from chumoku.training.objectives import IGNORE

BATCHES = 10
SHIFTS = (-2, -1, 0, 1, 2, 3)


def run(patient: Patient) -> Iterator[Finding]:
    patient.the_batches()
    for name, batches in (("training", patient.train), ("validation", patient.validation)):
        if batches is not None:
            made = [batches.batch(0, index) for index in range(min(BATCHES, len(batches)))]
            where = f"the first {len(made)} batches of {name}"
            yield from hidden(made, patient, where) if is_masked(batches, patient) else following(made, where)


def is_masked(batches: Batches, patient: Patient) -> bool:
    return isinstance(batches, MaskedBatches) or (patient.model is not None and patient.model.config.kind == "encoder")


def following(batches: list[Batch], where: str) -> Iterator[Finding]:
    shares = {shift: share(batches, shift) for shift in SHIFTS}
    learnt = sum(int((batch["labels"] != IGNORE).sum()) for batch in batches)
    if learnt == 0:
        yield Finding("labels", "There is nothing to learn: no token has a label.", where, 0.97, "Look at the labels.")
    elif shares[1] < 0.999:
        best = max(SHIFTS, key=shares.__getitem__)
        off = (
            f"they are the tokens {best} places on ({shares[best]:.0%})"
            if shares[best] > 0.9
            else "they are no neighbours"
        )
        yield Finding(
            "labels",
            f"Only {shares[1]:.0%} of the labels are the token that follows; {off}.",
            where,
            0.97,
            "Shift once, and only once: labels[t] = tokens[t + 1].",
        )


def share(batches: list[Batch], shift: int) -> float:
    """Of the labels that have a real token `shift` places on, how many are that token."""
    same = seen = 0
    for batch in batches:
        tokens, labels = batch[key_of(batch)], batch["labels"]
        given = labels != IGNORE
        # A target's cells without a label are padding; behind the last label stands nothing real.
        there = (
            given & _moved(given, shift, False)
            if "target" in batch
            else given & _moved(torch.ones_like(given), shift, False)
        )
        same += int((there & (_moved(tokens, shift, -1) == labels)).sum())
        seen += int(there.sum())
    return same / seen if seen else 1.0


def _moved(table: Tensor, shift: int, filler: int | bool) -> Tensor:
    """table[:, t + shift] at t."""
    moved = torch.roll(table, -shift, dims=1)
    if shift > 0:
        moved[:, -shift:] = filler
    elif shift < 0:
        moved[:, :-shift] = filler
    return moved


def hidden(batches: list[Batch], patient: Patient, where: str) -> Iterator[Finding]:
    mask = patient.tokenizer.roles.mask if patient.tokenizer is not None else None
    tokens, labels = (torch.cat([batch[key].flatten() for batch in batches]) for key in ("tokens", "labels"))
    given = labels != IGNORE
    if mask is None or int(given.sum()) < 50:
        return
    inside, outside = (float((tokens[cells] == mask).double().mean()) for cells in (given, ~given))
    if inside < 0.6 or outside > 0.02:
        yield Finding(
            "labels",
            f"{inside:.0%} of the tokens with a label are <mask>, and {outside:.1%} of those without: labels and "
            "hidden tokens do not stand in the same places.",
            where,
            0.95,
            "Give a label exactly where a token was hidden; there is no shift here.",
        )
    if float((tokens[given] == labels[given]).double().mean()) > 0.5:
        yield Finding("labels", "Most tokens that are to be guessed can be read.", where, 0.95, "Hide them first.")


CHECK = Check("labels", "labels are what is to be said", cheap=True, run=run, of_model=False)
