"""Batches contain the corpus:  batches differ from each other, and their texts are not cut short."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import torch

from chumoku.data.batches import IGNORE, source_mask
from chumoku.data.pairs import Pair
from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Batch, Subject
from chumoku.doctor.tools import input_key
from chumoku.text import Tokenizer

BATCHES, FEWEST = 10, 3
CUT = 0.1  # share of rows that may be cut short


def run(subject: Subject) -> Iterator[Finding]:
    subject.require_batches()
    parts = (("training", subject.train, subject.pairs), ("validation", subject.validation, subject.validation_pairs))
    for name, batches, pairs in parts:
        if batches is not None:
            first_batches = [batches.batch(0, index) for index in range(min(BATCHES, len(batches)))]
            where = f"the first {len(first_batches)} batches of {name}"
            yield from find_repeated(first_batches, where)
            yield from find_truncated(first_batches, subject, pairs or (), where)


def find_repeated(first_batches: list[Batch], where: str) -> Iterator[Finding]:
    contents = [sorted(map(tuple, unmasked_tokens(batch).tolist())) for batch in first_batches]
    different = len({tuple(rows) for rows in contents})
    if len(first_batches) < FEWEST or different > len(first_batches) / 2:
        return
    # If one batch contains a row twice, or only one row, the corpus itself may be repetitive.
    distinct = 1 < len(contents[0]) == len(set(contents[0]))
    yield Finding(
        "batches",
        f"Only {different} of {len(first_batches)} batches are different: most of the corpus is never trained on.",
        where,
        0.95 if distinct else 0.4,
        "Check how a batch index is turned into positions in the corpus.",
    )


def unmasked_tokens(batch: Batch) -> torch.Tensor:
    """The tokens of a batch before masking."""
    tokens, labels = batch[input_key(batch)], batch["labels"]
    if "target" in batch or labels.shape != tokens.shape:
        return tokens
    return torch.where(labels == IGNORE, tokens, labels)


def find_truncated(
    first_batches: list[Batch], subject: Subject, pairs: Sequence[Pair], where: str
) -> Iterator[Finding]:
    if not first_batches or "source" not in first_batches[0] or not pairs or subject.tokenizer is None:
        return
    source = subject.source_tokenizer or subject.tokenizer
    rows = [
        [
            row[mask].tolist()
            for batch in first_batches
            for row, mask in zip(batch["source"], source_mask(batch), strict=True)
        ],
        [row[row != IGNORE].tolist() for batch in first_batches for row in batch["labels"]],
    ]
    for side, (name, tokenizer) in enumerate((("sources", source), ("targets", subject.tokenizer))):
        texts = [pair[side].strip() for pair in pairs]
        short = truncated_texts(rows[side], texts, tokenizer)
        if len(short) > CUT * len(rows[side]):
            yield Finding(
                "batches",
                f"{len(short):,} of {len(rows[side]):,} {name} contain only the beginning of a corpus text: "
                f"{short[0][:30]!r}.",
                where,
                0.9,
                "Find the length limit that cuts rows; raise it, or drop long texts instead.",
            )


def truncated_texts(rows: list[list[int]], texts: list[str], tokenizer: Tokenizer) -> list[str]:
    """The rows that are a proper prefix of a corpus text, and not a corpus text themselves."""
    known, ordered = set(texts), sorted(texts)
    found = []
    for text in map(str.strip, tokenizer.decode_batch(rows)):
        place = bisect_left(ordered, text)
        if text not in known and place < len(ordered) and ordered[place].startswith(text):
            found.append(text)
    return found


CHECK = Check("batches", "batches differ and contain complete texts", cheap=True, run=run, needs_model=False)
