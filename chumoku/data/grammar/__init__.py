"""The embedded corpus: a small grammar of Japanese and English, so that a translator can be trained without a download.

    generate(count, seed)  →  count distinct pairs        こたつでみかんを食べる → I eat a mandarin at the kotatsu.
    split(count, seed)     →  train | validation | test   by combination of content words, not by sentence

The split asks whether a model composes: a combination that is held out, such as (食べる, みかん, こたつ), is never
seen in training in any tense, order or politeness, yet each of its words is. Where a combination belongs is decided by
a hash of itself and the seed:

    h(combination, seed) ∈ [0, 1)        h < p → test,    p ≤ h < 2p → validation,    else train        p = held_out

The same seed gives the same corpus on every Python.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from chumoku.data.grammar.dice import Dice
from chumoku.data.grammar.sentence import Sentence
from chumoku.data.grammar.sentence_types import draw
from chumoku.data.pairs import Pair
from chumoku.errors import UsageError

__all__ = ["SHOWPIECE", "Pair", "Split", "generate", "split"]

_PATIENCE = 2000
_WORD = re.compile(r"[A-Za-z'-]+")


class Split(NamedTuple):
    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


SHOWPIECE = Pair("こたつでみかんを食べる", "I eat a mandarin at the kotatsu.")
_SHOWPIECE = Sentence(("こたつ", "で", "みかん", "を", "食べる"), SHOWPIECE.target, ("食べる", "みかん", "こたつ"))


def generate(count: int, *, seed: int = 0) -> list[Pair]:
    """`count` distinct pairs, drawn at random from the whole grammar."""
    return [_pair(sentence) for sentence in sentences(count, seed=seed)]


def split(count: int, *, seed: int = 0, held_out: float = 0.05) -> Split:
    """About `count` pairs in three parts; `held_out` is the share of combinations in test, and again in validation.

    Held-out sentences with a word that training never shows are left out, so a few pairs may be missing from `count`.
    The showpiece, こたつでみかんを食べる, is in the test part, and never in another.
    """
    if not 0 < held_out < 0.5:
        raise UsageError(
            f"held_out is {held_out}, and test and validation each take that share. Choose 0 < held_out < 0.5."
        )
    train, validation, test = divide(sentences(count, seed=seed), seed=seed, held_out=held_out)
    return Split([_pair(s) for s in train], [_pair(s) for s in validation], [_pair(s) for s in test])


def sentences(count: int, *, seed: int = 0) -> list[Sentence]:
    """`count` distinct sentences with the units and the combination of each."""
    dice, found, misses = Dice(seed), dict[str, Sentence](), 0
    while len(found) < count:
        sentence = draw(dice)
        source = sentence.source
        misses = misses + 1 if source in found else 0
        if misses > _PATIENCE:
            raise UsageError(
                f"The grammar has hardly more than {len(found):,} sentences, and {count:,} were asked for."
            )
        found[source] = sentence
    return list(found.values())


def divide(
    corpus: Iterable[Sentence], *, seed: int, held_out: float
) -> tuple[list[Sentence], list[Sentence], list[Sentence]]:
    """Train, validation and test, by the hash of each combination; the showpiece stands first in test."""
    parts: tuple[list[Sentence], list[Sentence], list[Sentence]] = ([], [], [_SHOWPIECE])
    for sentence in corpus:
        if sentence.source != SHOWPIECE.source:
            parts[_part(sentence.combination, seed, held_out)].append(sentence)
    train, validation, test = parts
    known = {word for sentence in train for word in words(sentence)}
    return train, _covered(validation, known), _covered(test, known)


def words(sentence: Sentence) -> set[str]:
    """The words of both sides: Japanese units, and English words as they are written."""
    return {*sentence.units, *_WORD.findall(sentence.target)}


def _covered(held_out: list[Sentence], known: set[str]) -> list[Sentence]:
    return [sentence for sentence in held_out if words(sentence) <= known]


def _part(combination: tuple[str, ...], seed: int, held_out: float) -> int:
    """0 train, 1 validation, 2 test."""
    if combination == _SHOWPIECE.combination:
        return 2
    digest = hashlib.sha256("\0".join((str(seed), *combination)).encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return 2 if place < held_out else 1 if place < 2 * held_out else 0


def _pair(sentence: Sentence) -> Pair:
    return Pair(sentence.source, sentence.target)
