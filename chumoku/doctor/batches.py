"""Batches hold the corpus:  one is not like the other, and a text in them is as long as it is in the corpus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import torch

from chumoku.data.pairs import Pair
from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Batch, Patient
from chumoku.doctor.tools import key_of
from chumoku.text import Tokenizer
from chumoku.training.objectives import IGNORE

BATCHES, FEWEST = 10, 3
CUT = 0.1  # a share of rows


def run(patient: Patient) -> Iterator[Finding]:
    patient.the_batches()
    parts = (("training", patient.train, patient.pairs), ("validation", patient.validation, patient.held_pairs))
    for name, batches, pairs in parts:
        if batches is not None:
            made = [batches.batch(0, index) for index in range(min(BATCHES, len(batches)))]
            where = f"the first {len(made)} batches of {name}"
            yield from repeated(made, where)
            yield from shortened(made, patient, pairs or (), where)


def repeated(made: list[Batch], where: str) -> Iterator[Finding]:
    contents = [sorted(map(tuple, whole(batch).tolist())) for batch in made]
    different = len({tuple(rows) for rows in contents})
    if len(made) < FEWEST or different > len(made) / 2:
        return
    # Where even one batch holds a row twice, or has but one, the text itself may say the same all along.
    distinct = 1 < len(contents[0]) == len(set(contents[0]))
    yield Finding(
        "batches",
        f"Of {len(made)} batches only {different} are different: most of the corpus is never learned.",
        where,
        0.95 if distinct else 0.4,
        "Look at how a batch's number becomes places in the corpus.",
    )


def whole(batch: Batch) -> torch.Tensor:
    """Tokens as they were before some were hidden."""
    tokens, labels = batch[key_of(batch)], batch["labels"]
    return tokens if "target" in batch else torch.where(labels == IGNORE, tokens, labels)


def shortened(made: list[Batch], patient: Patient, pairs: Sequence[Pair], where: str) -> Iterator[Finding]:
    if not made or "source" not in made[0] or not pairs or patient.tokenizer is None:
        return
    source = patient.source_tokenizer or patient.tokenizer
    rows = [
        [row[mask].tolist() for batch in made for row, mask in zip(batch["source"], batch["source_mask"], strict=True)],
        [row[row != IGNORE].tolist() for batch in made for row in batch["labels"]],
    ]
    for side, (name, tokenizer) in enumerate((("sources", source), ("targets", patient.tokenizer))):
        texts = [pair[side].strip() for pair in pairs]
        short = cut(rows[side], texts, tokenizer)
        if len(short) > CUT * len(rows[side]):
            yield Finding(
                "batches",
                f"{len(short):,} of {len(rows[side]):,} {name} are only the beginning of a text of the corpus: "
                f"{short[0][:30]!r}.",
                where,
                0.9,
                "Look for a length at which rows are cut; drop long texts instead, or raise it.",
            )


def cut(rows: list[list[int]], texts: list[str], tokenizer: Tokenizer) -> list[str]:
    """Rows that are no text of the corpus, but begin one."""
    known, ordered = set(texts), sorted(texts)
    found = []
    for text in map(str.strip, tokenizer.decode_batch(rows)):
        place = bisect_left(ordered, text)
        if text not in known and place < len(ordered) and ordered[place].startswith(text):
            found.append(text)
    return found


CHECK = Check("batches", "batches differ, and hold whole texts", cheap=True, run=run, of_model=False)
