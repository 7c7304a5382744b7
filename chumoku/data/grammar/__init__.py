"""The built-in corpus: a small grammar of Japanese and English, to train a translator without a download.

    generate(count, seed)  →  count distinct pairs        こたつでみかんを食べる → I eat a mandarin at the kotatsu.
    split(count, seed)     →  train | validation | test   by combination of content words, not by sentence

The split tests whether a model composes words: a held-out combination, such as (食べる, みかん, こたつ), is not in
training in any tense, order or politeness, but each of its words is. A hash of the combination and the seed decides
its part:

    h(combination, seed) ∈ [0, 1)        h < p → test,    p ≤ h < 2p → validation,    else train        p = held_out

The same seed gives the same corpus in every version of Python.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from chumoku.data.grammar.dice import Dice
from chumoku.data.grammar.sentence import Sentence
from chumoku.data.pairs import Pair
from chumoku.errors import UsageError

__all__ = ["DEMO_PAIR", "Pair", "Split", "generate", "split"]

_MAX_MISSES = 2000
_WORD = re.compile(r"[A-Za-z'-]+")


class Split(NamedTuple):
    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


DEMO_PAIR = Pair("こたつでみかんを食べる", "I eat a mandarin at the kotatsu.")
_DEMO_SENTENCE = Sentence(("こたつ", "で", "みかん", "を", "食べる"), DEMO_PAIR.target, ("食べる", "みかん", "こたつ"))


def generate(count: int, *, seed: int = 0) -> list[Pair]:
    """`count` distinct random pairs from the grammar."""
    return [_to_pair(sentence) for sentence in sentences(count, seed=seed)]


def split(count: int, *, seed: int = 0, held_out: float = 0.05) -> Split:
    """About `count` pairs in three parts. `held_out` is the share of combinations in test, and the same in validation.

    Held-out sentences with a word that is not in training are left out, so there may be slightly fewer than `count`.
    The demo sentence, こたつでみかんを食べる, is always in the test part only.
    """
    if not 0 < held_out < 0.5:
        raise UsageError(
            f"held_out is {held_out}, but test and validation each take that share. Choose 0 < held_out < 0.5."
        )
    train, validation, test = divide(sentences(count, seed=seed), seed=seed, held_out=held_out)
    return Split([_to_pair(s) for s in train], [_to_pair(s) for s in validation], [_to_pair(s) for s in test])


def sentences(count: int, *, seed: int = 0) -> list[Sentence]:
    """`count` distinct sentences with the units and the combination of each."""
    from chumoku.data.grammar.sentence_types import draw_sentence  # reads the lexicon's files

    dice, by_source, misses = Dice(seed), dict[str, Sentence](), 0
    while len(by_source) < count:
        sentence = draw_sentence(dice)
        source = sentence.source
        misses = misses + 1 if source in by_source else 0
        if misses > _MAX_MISSES:
            raise UsageError(f"The grammar has hardly more than {len(by_source):,} sentences, too few for {count:,}.")
        by_source[source] = sentence
    return list(by_source.values())


def divide(
    corpus: Iterable[Sentence], *, seed: int, held_out: float
) -> tuple[list[Sentence], list[Sentence], list[Sentence]]:
    """Train, validation and test sentences, by the hash of each combination. The demo sentence is first in test."""
    parts: tuple[list[Sentence], list[Sentence], list[Sentence]] = ([], [], [_DEMO_SENTENCE])
    for sentence in corpus:
        if sentence.source != DEMO_PAIR.source:
            parts[_choose_part(sentence.combination, seed, held_out)].append(sentence)
    train, validation, test = parts
    known = {word for sentence in train for word in words(sentence)}
    return train, _keep_known_words(validation, known), _keep_known_words(test, known)


def words(sentence: Sentence) -> set[str]:
    """The words of both sides: Japanese units and English words."""
    return {*sentence.units, *_WORD.findall(sentence.target)}


def _keep_known_words(held_out: list[Sentence], known: set[str]) -> list[Sentence]:
    return [sentence for sentence in held_out if words(sentence) <= known]


def _choose_part(combination: tuple[str, ...], seed: int, held_out: float) -> int:
    """0 train, 1 validation, 2 test."""
    if combination == _DEMO_SENTENCE.combination:
        return 2
    digest = hashlib.sha256("\0".join((str(seed), *combination)).encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    return 2 if position < held_out else 1 if position < 2 * held_out else 0


def _to_pair(sentence: Sentence) -> Pair:
    return Pair(sentence.source, sentence.target)
