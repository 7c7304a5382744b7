"""Rows of sentences are what a sentence encoder should learn:

positive          belongs to the anchor of its row
false negatives   rows with an equal anchor or positive share a group, so that they are not each other's negatives
negatives         a batch has rows of other groups; without them there is nothing to learn
padding           positions after a text are masked and contain the pad token
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from chumoku.data.batches import ALL, Batches, Share
from chumoku.data.order import Indices
from chumoku.data.pairs import Pair
from chumoku.data.sentences import SIDES
from chumoku.doctor.finding import Finding
from chumoku.doctor.subject import Batch, Subject
from chumoku.text import Tokenizer

WRONG = 0.02  # share of rows


class AnchorBatches:
    """Batches of sentences with the keys that every check knows: the tokens of the anchors, as their own labels."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def samples(self, epoch: int, index: int) -> Indices:
        return self._batches.samples(epoch, index)

    def batch(self, epoch: int, index: int, share: Share = ALL) -> Batch:
        batch = self._batches.batch(epoch, index, share)
        return {**batch, "tokens": batch["anchor"], "labels": batch["anchor"]}


def check_sentences(batches: list[Batch], subject: Subject, pairs: Sequence[Pair], where: str) -> Iterator[Finding]:
    tokenizer = subject.tokenizer
    if tokenizer is not None and pairs:
        yield from _find_wrong_positives(batches, tokenizer, pairs, where)
    missed = sum(map(count_missed_duplicates, batches))
    rows = sum(len(batch["group"]) for batch in batches)
    if missed > WRONG * rows:
        yield Finding(
            "labels",
            f"{missed:,} of {rows:,} rows have the same anchor or positive as another row of their batch, but not the "
            "same group: each is a negative of the other.",
            where,
            0.95,
            "Give rows with an equal text one group, so that they are left out as negatives.",
        )
    if all(len(set(batch["group"].tolist())) == 1 for batch in batches):
        yield Finding(
            "labels",
            "All rows of a batch have one group, so no row has a negative.",
            where,
            0.95,
            "Only rows with equal or similar texts may share a group.",
        )


def _find_wrong_positives(
    batches: list[Batch], tokenizer: Tokenizer, pairs: Sequence[Pair], where: str
) -> Iterator[Finding]:
    known: dict[str, set[str]] = {}
    for pair in pairs:
        known.setdefault(pair.source, set()).add(pair.target)
    tested = wrong = 0
    for batch in batches:
        anchors, positives = (tokenizer.decode_batch(unpadded_rows(batch, side)) for side in SIDES[:2])
        for anchor, positive in zip(anchors, positives, strict=True):
            tested += anchor in known
            wrong += anchor in known and positive not in known[anchor]
    if wrong > WRONG * tested:
        yield Finding(
            "labels",
            f"{wrong:,} of {tested:,} anchors have a positive that the corpus does not pair with them.",
            where,
            0.97,
            "Check that anchors and positives of a batch come from the same rows of the corpus, in the same order.",
        )


def count_missed_duplicates(batch: Batch) -> int:
    """How many rows have an anchor or positive of a row with another group."""
    groups_of: dict[tuple[str, tuple[int, ...]], set[int]] = {}
    keys = [[(side, tuple(row)) for row in unpadded_rows(batch, side)] for side in SIDES[:2]]
    for side in keys:
        for key, group in zip(side, batch["group"].tolist(), strict=True):
            groups_of.setdefault(key, set()).add(group)
    return sum(any(len(groups_of[key]) > 1 for key in row) for row in zip(*keys, strict=True))


def unpadded_rows(batch: Batch, side: str) -> list[list[int]]:
    mask = batch.get(f"{side}_mask", torch.ones_like(batch[side], dtype=torch.bool))
    return [row[real].tolist() for row, real in zip(batch[side], mask, strict=True)]


def count_wrong_padding(batch: Batch, pad: int | None) -> Counter[str]:
    """How many masked positions are not the pad token, and how many pad tokens are not masked."""
    wrong: Counter[str] = Counter()
    if pad is None:
        return wrong
    for side in SIDES:
        if side in batch:
            table: Tensor = batch[side]
            mask = batch.get(f"{side}_mask", torch.ones_like(table, dtype=torch.bool))
            wrong[f"Masked {side} positions contain a token other than <pad>"] += int((~mask & (table != pad)).sum())
            wrong[f"Positions of the {side} with <pad> are not masked"] += int((mask & (table == pad)).sum())
    return wrong
