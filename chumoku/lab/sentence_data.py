"""The embedded corpus as small numbers: sentences cut into units, units into ids, rows of one length.

    こたつ | で | みかん | を | 食べる | (end)        (begin) | I | eat | a | mandarin | at | the | kotatsu | . | (end)

The Japanese units are the grammar's own, the English ones are words and full stops. Only sentences of the COMMON most
frequent units are kept, so that each is seen often by a model that trains for seconds. Training and test never share
a combination of content words (`chumoku.data.grammar`): a test sentence has to be composed.
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
from chumoku.data.grammar.sentence import Sentence

PAD, BEGIN, END, MASK = 0, 1, 2, 3
SPECIAL = ("(pad)", "(begin)", "(end)", "(mask)")
IGNORE = -100
DRAWN, COMMON = 60_000, 220
SHOWPIECE = ("こたつ", "で", "みかん", "を", "食べる")
_WORD = re.compile(r"[A-Za-z'-]+\.?(?= )|[A-Za-z'-]+|[^\sA-Za-z]")


class Vocabulary:
    """Units and their numbers; the four special ones come first."""

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
    test: tuple[Sentence, ...]  # the showpiece stands first
    source: Vocabulary
    target: Vocabulary


def english(sentence: str) -> list[str]:
    """Mr. Tanaka's dog isn't here.  →  Mr. | Tanaka's | dog | isn't | here | ."""
    return _WORD.findall(sentence)


def joined(words: Sequence[str]) -> str:
    """Words as a sentence again."""
    return re.sub(r" (?=[^\sA-Za-z'(-])", "", " ".join(words))


@functools.cache
def drawn() -> tuple[Sentence, ...]:
    return tuple(grammar.sentences(DRAWN))


@functools.cache
def sentences() -> Sentences:
    """The sentences of common units alone, divided by combination."""
    times = Counter(unit for one in drawn() for unit in one.units)
    common = {unit for unit, _ in times.most_common(COMMON)} | set(SHOWPIECE)
    kept = [one for one in drawn() if common.issuperset(one.units)]
    train, _, test = grammar.divide(kept, seed=0, held_out=0.05)
    return Sentences(
        tuple(train),
        tuple(test),
        Vocabulary(unit for one in (*train, *test) for unit in one.units),
        Vocabulary(word for one in (*train, *test) for word in english(one.target)),
    )


def rows(
    sequences: Sequence[Sequence[int]], *, before: int | None = None, after: int | None = None, filler: int = PAD
) -> Tensor:
    """Sequences as one table, filled up on the right."""
    first, last = ([] if token is None else [token] for token in (before, after))
    table = torch.full((len(sequences), max(map(len, sequences)) + len(first) + len(last)), filler)
    for row, ids in zip(table, sequences, strict=True):
        whole = [*first, *ids, *last]
        row[: len(whole)] = torch.tensor(whole)
    return table


def shifted(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """What a decoder is fed, (begin) w1 w2 …, and what it is to say, w1 w2 … (end)."""
    return rows(sequences, before=BEGIN), rows(sequences, after=END, filler=IGNORE)


def trimmed(table: Tensor, chosen: Tensor, *, filler: int = PAD) -> Tensor:
    """Some rows of a table, without the columns that none of them fills."""
    taken = table[chosen]
    return taken[:, : int((taken != filler).sum(1).max())]
