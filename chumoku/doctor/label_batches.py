"""Labels of texts and words:

classes, tags   every label is one of the model's; more than one of them occurs
tags            only tokens of words have a tag, not the tokens around a text and not padding
classes         the labels are those of their own texts, not of neighbors (see `alignment`)
spans           a target has the sentinels of its source, in the same order (see `data.span_corruption`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from chumoku.data.batches import IGNORE, Batches
from chumoku.data.span_corruption import find_sentinels
from chumoku.doctor.finding import Finding
from chumoku.doctor.subject import Batch
from chumoku.text import Tokenizer

FEWEST = 30  # labels from which on more than one of them should occur
OUTSIDE = 0.001  # share of labels that may be outside of words


def check_labels(
    batches: list[Batch], names: Sequence[str], tokenizer: Tokenizer | None, where: str
) -> Iterator[Finding]:
    """Findings about the labels of these batches; `names` are the model's labels."""
    labels = torch.cat([batch["labels"].flatten() for batch in batches])
    given = labels[labels != IGNORE]
    if not len(given):
        yield Finding("labels", "No text has a label.", where, 0.97, "Check how the labels are made.")
    elif int(given.min()) < 0 or int(given.max()) >= len(names):
        yield Finding(
            "labels",
            f"The labels are {int(given.min())} to {int(given.max())}, but this model has {len(names)} labels, "
            f"0 to {len(names) - 1}.",
            where,
            0.97,
            "Compare the labels of the batches with config.labels.",
        )
    elif len(given) >= FEWEST and int(given.min()) == int(given.max()):
        name = names[int(given[0])]
        what = f"All {len(given):,} labels are '{name[:40]}', so there is nothing to learn."
        yield Finding("labels", what, where, 0.9, "Check how the labels are made, and whether the texts are shuffled.")
    elif batches[0]["labels"].ndim == 2 and tokenizer is not None:
        yield from find_outside(batches, tokenizer, len(given), where)


def find_outside(batches: list[Batch], tokenizer: Tokenizer, count: int, where: str) -> Iterator[Finding]:
    """Findings about tags of tokens that belong to no word."""
    around = torch.tensor([*tokenizer.frame[0], *tokenizer.frame[1]], dtype=torch.long)
    outside = 0
    for batch in batches:
        no_word = torch.isin(batch["tokens"], around) | ~batch.get("mask", torch.ones_like(batch["tokens"]).bool())
        outside += int((no_word & (batch["labels"] != IGNORE)).sum())
    if outside > OUTSIDE * count:
        yield Finding(
            "labels",
            f"{outside:,} of {count:,} tags are at tokens around a text or at padding, not at words.",
            where,
            0.95,
            "Set the tag of a word at its first token, without a shift.",
        )


def check_sentinels(batches: list[Batch], sentinels: list[int], where: str) -> Iterator[Finding]:
    """Findings about targets of span corruption whose sentinels are not those of their sources."""
    numbers = torch.tensor(sentinels)
    rows = [pair for batch in batches for pair in zip(batch["source"], batch["labels"], strict=True)]
    wrong = sum(row[torch.isin(row, numbers)].tolist() != to[torch.isin(to, numbers)].tolist() for row, to in rows)
    if wrong:
        yield Finding(
            "labels",
            f"{wrong:,} of {len(rows):,} targets do not have the sentinels of their sources in the same order.",
            where,
            0.97,
            "Number the hidden spans of a source and those of its target in the same way.",
        )


def has_sentinels(batches: Batches, tokenizer: Tokenizer | None) -> bool:
    """Whether these are batches of span corruption."""
    first = batches.batch(0, 0) if len(batches) else {}
    if tokenizer is None or "source" not in first:
        return False
    return bool(torch.isin(first["source"], torch.tensor(find_sentinels(tokenizer), dtype=torch.long)).any())


def texts_and_labels(
    batches: Batches, tokenizer: Tokenizer, *, rows: int, smallest: int
) -> tuple[list[str], list[int], list[int]]:
    """Texts and their classes as in training, and the sizes of the batches; up to about `rows` texts."""
    texts: list[str] = []
    labels: list[int] = []
    sizes: list[int] = []
    for index in range(len(batches)):
        batch = batches.batch(0, index)
        if batch["labels"].ndim != 1 or sum(sizes) >= rows:
            break
        if len(batch["labels"]) >= smallest:
            texts += tokenizer.decode_batch([row.tolist() for row in batch["tokens"]])
            labels += batch["labels"].tolist()
            sizes.append(len(batch["labels"]))
    return texts, labels, sizes
