"""Labels are what the model is to say:

next token      labels[t] = tokens[t + 1]
translation     labels[t] = target[t + 1], the first target is the beginning and the last label the end
both            every token is learned, but for the first of another document
masked token    labels only where something is hidden: 8 of 10 there are <mask>, and hardly any elsewhere
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from chumoku.data.batches import Batches, MaskedBatches
from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Batch, Patient
from chumoku.doctor.tools import behind, framed, key_of
from chumoku.training.objectives import IGNORE

BATCHES = 10
UNLEARNED, RUN = 0.02, 2.5  # a share of tokens; how long a stretch is that may be left out on purpose
SHIFTS = (-2, -1, 0, 1, 2, 3)


def run(patient: Patient) -> Iterator[Finding]:
    patient.the_batches()
    for name, batches in (("training", patient.train), ("validation", patient.validation)):
        if batches is not None:
            made = [batches.batch(0, index) for index in range(min(BATCHES, len(batches)))]
            where = f"the first {len(made)} batches of {name}"
            yield from hidden(made, patient, where) if is_masked(batches, patient) else following(made, patient, where)


def is_masked(batches: Batches, patient: Patient) -> bool:
    return isinstance(batches, MaskedBatches) or (patient.model is not None and patient.model.config.kind == "encoder")


def following(batches: list[Batch], patient: Patient, where: str) -> Iterator[Finding]:
    shares = {shift: share(batches, shift) for shift in SHIFTS}
    labeled = sum(int((batch["labels"] != IGNORE).sum()) for batch in batches)
    if labeled == 0:
        yield Finding("labels", "There is nothing to learn: no token has a label.", where, 0.97, "Look at the labels.")
    elif shares[1] < 0.999:
        best = max(SHIFTS, key=shares.__getitem__)
        off = (
            f"they are the tokens {best} places on ({shares[best]:.0%})"
            if shares[best] > 0.9
            else "they are no neighbors"
        )
        yield Finding(
            "labels",
            f"Only {shares[1]:.0%} of the labels are the token that follows; {off}.",
            where,
            0.97,
            "Shift once, and only once: labels[t] = tokens[t + 1].",
        )
    elif "target" in batches[0]:
        yield from frames(batches, patient, where)
        yield from unlearned([inside(batch) for batch in batches], where)
    else:
        yield from unlearned([(batch["labels"] != IGNORE, meant(batch)) for batch in batches], where)


def frames(batches: list[Batch], patient: Patient, where: str) -> Iterator[Finding]:
    """Whether targets begin and end."""
    if patient.tokenizer is None:
        return
    roles = patient.tokenizer.roles
    for name, asked in (("begin", replace(roles, end=None)), ("end", replace(roles, begin=None))):
        rows = torch.cat([framed(batch, asked) for batch in batches])
        if float(rows.double().mean()) < 0.999:
            yield Finding(
                "labels",
                f"{int((~rows).sum()):,} of {len(rows):,} targets do not {name} with the {name} token.",
                where,
                0.97,
                "target = <begin> w₁ … wₙ, labels = w₁ … wₙ <end>: without them nobody knows where to begin or stop.",
            )


def inside(batch: Batch) -> tuple[Tensor, Tensor]:
    """Which tokens of targets have a label, and which may have none: those behind the last that has."""
    given = batch["labels"] != IGNORE
    return given, behind(batch["labels"])


def meant(batch: Batch) -> Tensor:
    """Which tokens of a text may have no label: the last of a document."""
    edges = torch.zeros_like(batch["labels"], dtype=torch.bool)
    if "documents" in batch:
        edges[:, -1] = True
        edges[:, :-1] = batch["documents"][:, 1:] != batch["documents"][:, :-1]
    return edges


def unlearned(cells: list[tuple[Tensor, Tensor]], where: str) -> Iterator[Finding]:
    """Tokens that nobody learns. In long stretches they may be meant so, as questions of which only answers count."""
    count = missing = runs = empty_rows = last = 0
    for given, allowed in cells:
        lost = ~given & ~allowed
        count += int((~allowed).sum())
        missing += int(lost.sum())
        runs += int(lost[:, 0].sum() + (lost[:, 1:] & ~lost[:, :-1]).sum())
        empty_rows += int((~given).all(1).sum())
        last += int((~lost[:, -1]).sum())
    rows = sum(len(given) for given, _ in cells)
    if missing > UNLEARNED * count:
        scattered = missing < RUN * runs or empty_rows > UNLEARNED * rows or last == 0
        yield Finding(
            "labels",
            f"{missing / count:.0%} of the tokens have no label, and so are never learned.",
            where,
            0.9 if scattered else 0.4,
            "Give every token a label, unless it is meant so.",
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
