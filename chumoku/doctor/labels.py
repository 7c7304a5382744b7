"""Labels are what the model should predict:

next token      labels[t] = tokens[t + 1]
translation     labels[t] = target[t + 1]; the first target is the begin token, the last label the end token
both            every token has a label, except the last of each document and the prompts of a chat
masked token    labels only at masked positions: 8 of 10 of them are <mask>, and almost none elsewhere
sentences       see `sentence_rows`
others          classes, tags, and sentinels of span corruption: see `label_batches`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from chumoku.data.batches import IGNORE, Batches, MaskedBatches
from chumoku.data.span_corruption import find_sentinels
from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.label_batches import check_labels, check_sentinels, has_sentinels
from chumoku.doctor.sentence_rows import check_sentences
from chumoku.doctor.subject import Batch, Subject
from chumoku.doctor.tools import after_last_label, has_begin_and_end, input_key

BATCHES = 10
UNLABELED, RUN = 0.02, 2.5  # share of tokens; mean length of unlabeled runs that may be intended
SHIFTS = (-2, -1, 0, 1, 2, 3)


def run(subject: Subject) -> Iterator[Finding]:
    subject.require_batches()
    parts = (("training", subject.train, subject.pairs), ("validation", subject.validation, subject.validation_pairs))
    for name, batches, pairs in parts:
        if batches is not None:
            first_batches = [batches.batch(0, index) for index in range(min(BATCHES, len(batches)))]
            where = f"the first {len(first_batches)} batches of {name}"
            if "anchor" in first_batches[0]:
                yield from check_sentences(first_batches, subject, pairs or (), where)
                continue
            names = None if subject.model is None else subject.model.config.labels
            if names is not None:
                yield from check_labels(first_batches, names, subject.tokenizer, where)
                continue
            if subject.tokenizer is not None and has_sentinels(batches, subject.tokenizer):
                yield from check_sentinels(first_batches, find_sentinels(subject.tokenizer), where)
            check = check_masked if is_masked(batches, subject) else check_next_token
            yield from check(first_batches, subject, where)


def is_masked(batches: Batches, subject: Subject) -> bool:
    return isinstance(batches, MaskedBatches) or (subject.model is not None and subject.model.config.kind == "encoder")


def check_next_token(batches: list[Batch], subject: Subject, where: str) -> Iterator[Finding]:
    shares = {shift: match_share(batches, shift) for shift in SHIFTS}
    labeled = sum(int((batch["labels"] != IGNORE).sum()) for batch in batches)
    if labeled == 0:
        yield Finding("labels", "No token has a label.", where, 0.97, "Check how the labels are made.")
    elif shares[1] < 0.999:
        best = max(SHIFTS, key=shares.__getitem__)
        off = (
            f"they are the tokens at offset {best} ({shares[best]:.0%})"
            if shares[best] > 0.9
            else "no other offset matches either"
        )
        yield Finding(
            "labels",
            f"Only {shares[1]:.0%} of the labels are the next token; {off}.",
            where,
            0.97,
            "Shift the labels exactly once: labels[t] = tokens[t + 1].",
        )
    elif "target" in batches[0]:
        yield from check_begin_and_end(batches, subject, where)
        yield from find_unlabeled([label_cells(batch) for batch in batches], where)
    elif not subject.chat:  # the check of chats tests which tokens of a conversation have labels
        yield from find_unlabeled([(batch["labels"] != IGNORE, document_ends(batch)) for batch in batches], where)


def check_begin_and_end(batches: list[Batch], subject: Subject, where: str) -> Iterator[Finding]:
    """Findings about missing begin and end tokens."""
    if subject.tokenizer is None:
        return
    roles = subject.tokenizer.roles
    for name, expected in (("begin", replace(roles, end=None)), ("end", replace(roles, begin=None))):
        rows = torch.cat([has_begin_and_end(batch, expected) for batch in batches])
        if float(rows.double().mean()) < 0.999:
            yield Finding(
                "labels",
                f"{int((~rows).sum()):,} of {len(rows):,} targets do not {name} with the {name} token.",
                where,
                0.97,
                "Use target = <begin> w₁ … wₙ and labels = w₁ … wₙ <end>; otherwise decoding cannot start or stop.",
            )


def label_cells(batch: Batch) -> tuple[Tensor, Tensor]:
    """Which target tokens have a label, and which need none: those after the last label."""
    has_label = batch["labels"] != IGNORE
    return has_label, after_last_label(batch["labels"])


def document_ends(batch: Batch) -> Tensor:
    """Which tokens of a text need no label: the last of each document."""
    edges = torch.zeros_like(batch["labels"], dtype=torch.bool)
    if "documents" in batch:
        edges[:, -1] = True
        edges[:, :-1] = batch["documents"][:, 1:] != batch["documents"][:, :-1]
    return edges


def find_unlabeled(cells: list[tuple[Tensor, Tensor]], where: str) -> Iterator[Finding]:
    """Findings about tokens without a label. Long runs may be intended, such as prompts of which only replies count."""
    count = missing = runs = empty_rows = last = 0
    for has_label, allowed in cells:
        lost = ~has_label & ~allowed
        count += int((~allowed).sum())
        missing += int(lost.sum())
        runs += int(lost[:, 0].sum() + (lost[:, 1:] & ~lost[:, :-1]).sum())
        empty_rows += int((~has_label).all(1).sum())
        last += int((~lost[:, -1]).sum())
    rows = sum(len(has_label) for has_label, _ in cells)
    if missing > UNLABELED * count:
        unintended = missing < RUN * runs or empty_rows > UNLABELED * rows or last == 0
        yield Finding(
            "labels",
            f"{missing / count:.0%} of the tokens have no label and are never learned.",
            where,
            0.9 if unintended else 0.4,
            "Give every token a label, unless this is intended.",
        )


def match_share(batches: list[Batch], shift: int) -> float:
    """The share of labels that equal the token `shift` positions later."""
    same = compared = 0
    for batch in batches:
        tokens, labels = batch[input_key(batch)], batch["labels"]
        has_label = labels != IGNORE
        # Target positions without a label are padding.
        there = (
            has_label & _shift(has_label, shift, False)
            if "target" in batch
            else has_label & _shift(torch.ones_like(has_label), shift, False)
        )
        same += int((there & (_shift(tokens, shift, -1) == labels)).sum())
        compared += int(there.sum())
    return same / compared if compared else 1.0


def _shift(table: Tensor, shift: int, filler: int | bool) -> Tensor:
    """table[:, t + shift] at t."""
    moved = torch.roll(table, -shift, dims=1)
    if shift > 0:
        moved[:, -shift:] = filler
    elif shift < 0:
        moved[:, :-shift] = filler
    return moved


def check_masked(batches: list[Batch], subject: Subject, where: str) -> Iterator[Finding]:
    mask = subject.tokenizer.roles.mask if subject.tokenizer is not None else None
    tokens, labels = (torch.cat([batch[key].flatten() for batch in batches]) for key in ("tokens", "labels"))
    has_label = labels != IGNORE
    if mask is None or int(has_label.sum()) < 50:
        return
    inside, outside = (float((tokens[cells] == mask).double().mean()) for cells in (has_label, ~has_label))
    if inside < 0.6 or outside > 0.02:
        yield Finding(
            "labels",
            f"{inside:.0%} of the tokens with a label are <mask>, and {outside:.1%} of those without: labels and "
            "masked tokens are not at the same positions.",
            where,
            0.95,
            "Set a label exactly where a token was masked, without a shift.",
        )
    if float((tokens[has_label] == labels[has_label]).double().mean()) > 0.5:
        yield Finding("labels", "Most tokens to predict are visible in the input.", where, 0.95, "Mask them first.")


CHECK = Check("labels", "labels are the tokens to predict", cheap=True, run=run, needs_model=False)
