"""The built-in corpus as token ids: sentences are split into units, units become ids, ids become padded rows.

    こたつ | で | みかん | を | 食べる | (end)        (begin) | I | eat | a | mandarin | at | the | kotatsu | . | (end)

Japanese units come from the grammar, English units are words and punctuation. Only sentences of the COMMON_UNITS most
frequent units are used, so that a model that trains for seconds sees each of them often. Training and test data never
share a combination of content words (`chumoku.data.grammar`).
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.data import grammar
from chumoku.data.batches import IGNORE
from chumoku.data.grammar.sentence import Sentence

PAD, BEGIN, END, MASK = 0, 1, 2, 3
SPECIAL = ("(pad)", "(begin)", "(end)", "(mask)")
GENERATED, COMMON_UNITS = 60_000, 220
EXAMPLE = ("こたつ", "で", "みかん", "を", "食べる")
_WORD = re.compile(r"[A-Za-z'-]+\.?(?= )|[A-Za-z'-]+|[^\sA-Za-z]")


class Vocabulary:
    """Units and their ids; the four special tokens come first."""

    def __init__(self, units: Iterable[str]) -> None:
        self.units = (*SPECIAL, *sorted(set(units)))
        self.ids = {unit: number for number, unit in enumerate(self.units)}

    def __len__(self) -> int:
        return len(self.units)

    def encode(self, units: Sequence[str]) -> list[int]:
        return [self.ids[unit] for unit in units]

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self.units[number] for number in ids]


class Sentences(NamedTuple):
    train: tuple[Sentence, ...]
    test: tuple[Sentence, ...]  # EXAMPLE is the first one
    source: Vocabulary
    target: Vocabulary


def split_english(sentence: str) -> list[str]:
    """Split into words and punctuation: Mr. Tanaka's dog.  →  Mr. | Tanaka's | dog | ."""
    return _WORD.findall(sentence)


def join_words(words: Sequence[str]) -> str:
    """Join words to a sentence: the inverse of `split_english`."""
    return re.sub(r" (?=[^\sA-Za-z'(-])", "", " ".join(words))


@functools.cache
def generate_sentences() -> tuple[Sentence, ...]:
    return tuple(grammar.sentences(GENERATED))


@functools.cache
def load_sentences() -> Sentences:
    """Sentences of common units, split into training and test by their combination of words."""
    counts = Counter(unit for one in generate_sentences() for unit in one.units)
    common = {unit for unit, _ in counts.most_common(COMMON_UNITS)} | set(EXAMPLE)
    usable = [one for one in generate_sentences() if common.issuperset(one.units)]
    train, _, test = grammar.divide(usable, seed=0, held_out=0.05)
    return Sentences(
        tuple(train),
        tuple(test),
        Vocabulary(unit for one in (*train, *test) for unit in one.units),
        Vocabulary(word for one in (*train, *test) for word in split_english(one.target)),
    )


def pad_rows(
    sequences: Sequence[Sequence[int]], *, before: int | None = None, after: int | None = None, filler: int = PAD
) -> Tensor:
    """Sequences as one tensor, padded on the right."""
    first, last = ([] if token is None else [token] for token in (before, after))
    table = torch.full((len(sequences), max(map(len, sequences)) + len(first) + len(last)), filler)
    for row, ids in zip(table, sequences, strict=True):
        tokens = [*first, *ids, *last]
        row[: len(tokens)] = torch.tensor(tokens)
    return table


def shift_right(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Decoder inputs, (begin) w1 w2 …, and targets, w1 w2 … (end)."""
    return pad_rows(sequences, before=BEGIN), pad_rows(sequences, after=END, filler=IGNORE)


def take_rows(table: Tensor, chosen: Tensor, *, filler: int = PAD) -> Tensor:
    """Some rows of a table, without columns that are padding in all of them."""
    selected = table[chosen]
    return selected[:, : int((selected != filler).sum(1).max())]
