"""Validation data is not in the training data:

pairs   no validation pair equals a training pair up to case, spaces and punctuation; few are near duplicates
text    no 60 characters of the validation text occur in the training text, except boilerplate that repeats often
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from chumoku.data.near_duplicates import HASHES, is_similar, letter_triples, minhash
from chumoku.data.pairs import Pair
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject

EXACT, NEAR = 0.005, 0.1  # shares of the validation data above which a finding is reported
BAND, MOST_MET = 4, 20  # six bands of four hashes find 95 % of the pairs with a similarity of 0.8
STRETCH, STEP = 60, 20
OFTEN = 5  # text that occurs this often (a prompt, a notice) is boilerplate, not a leak
MOST, MOST_HELD = 200_000, 2000
LETTERS = 30_000_000
Numbers = NDArray[np.uint64]
TODO = "Remove them from the training data, or split again (data.validation_share splits by content)."


def run(subject: Subject) -> Iterator[Finding]:
    if subject.pairs and subject.validation_pairs:
        yield from find_leaked_pairs(subject.pairs[:MOST], subsample(subject.validation_pairs))
    elif subject.texts and subject.validation_texts:
        yield from find_leaked_text(subject.texts, subject.validation_texts)
    else:
        raise Skip("there is no validation data beside the training data")


def subsample(pairs: Sequence[Pair]) -> list[Pair]:
    return list(pairs[:: max(1, len(pairs) // MOST_HELD)])


def normalize(text: str) -> str:
    """Only letters and digits, in lower case."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum())


def find_leaked_pairs(train: Sequence[Pair], validation: Sequence[Pair]) -> Iterator[Finding]:
    known = {(normalize(pair.source), normalize(pair.target)) for pair in train}
    same = [pair for pair in validation if (normalize(pair.source), normalize(pair.target)) in known]
    if len(same) > EXACT * len(validation):
        example = f"{same[0].source[:30]} → {same[0].target[:40]}"
        what = f"{len(same):,} of {len(validation):,} validation pairs are in the training data: {example!r}."
        yield finding(what, exact=True)
        return
    near = [validation[place] for place in near_duplicates(train, validation)]
    if len(near) > NEAR * len(validation):
        example = f"{near[0].source[:30]} → {near[0].target[:40]}"
        what = (
            f"{len(near):,} of {len(validation):,} validation pairs are near duplicates of pairs in the training data: "
            f"{example!r}."
        )
        yield finding(what, exact=False)


def near_duplicates(train: Sequence[Pair], validation: Sequence[Pair]) -> Iterator[int]:
    """The indices of validation pairs with a near duplicate in training: 80 % of their character triples are shared."""
    rows = [f"{normalize(pair.source)} {normalize(pair.target)}" for pair in (*train, *validation)]
    signatures = minhash(rows)
    tables: list[dict[bytes, list[int]]] = []
    for band in range(0, HASHES, BAND):
        table: dict[bytes, list[int]] = {}
        for place, key in enumerate(np.ascontiguousarray(signatures[: len(train), band : band + BAND])):
            table.setdefault(key.tobytes(), []).append(place)
        tables.append(table)
    for place in range(len(validation)):
        mine = signatures[len(train) + place]
        keys = [mine[BAND * number : BAND * number + BAND].tobytes() for number in range(len(tables))]
        met = {other for key, table in zip(keys, tables, strict=True) for other in table.get(key, ())[:MOST_MET]}
        own = letter_triples(rows[len(train) + place])
        if any(is_similar(own, letter_triples(rows[other])) for other in met):
            yield place


def find_leaked_text(train: Sequence[str], validation: Sequence[str]) -> Iterator[Finding]:
    known, validation_text = ("".join(map(normalize, lines))[:LETTERS] for lines in (train, validation))
    starts = range(0, max(0, len(validation_text) - STRETCH), STEP)
    if not starts:
        raise Skip("the validation text is shorter than a sentence")
    times = count_occurrences(hash_passages(validation_text), hash_passages(known))
    own = covered_characters(times >= OFTEN)[::STEP] < STRETCH / 2
    same = np.flatnonzero((times[::STEP] > 0) & own)
    mine = np.flatnonzero(own)
    if len(same) > EXACT * 4 * max(1, len(mine)):
        where = int(same[0]) * STEP
        what = (
            f"{len(same):,} of {len(mine):,} validation passages of {STRETCH} characters are in the training data: "
            f"{validation_text[where : where + 50]!r}."
        )
        yield finding(what, exact=True)


def count_occurrences(queries: Numbers, known: Numbers) -> NDArray[np.int64]:
    """How often each number of `queries` occurs in `known`."""
    values, place = np.unique(queries, return_inverse=True)
    if not len(values):
        return np.zeros(0, np.int64)
    found = np.minimum(np.searchsorted(values, known), len(values) - 1)
    times: NDArray[np.int64] = np.bincount(found[values[found] == known], minlength=len(values))[place]
    return times


def covered_characters(often: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For every passage, how many of its characters are part of a passage marked in `often`."""
    edges = np.zeros(len(often) + STRETCH + 1, np.int64)
    edges[: len(often)] += often
    edges[STRETCH : STRETCH + len(often)] -= often
    letters = np.r_[0, (edges.cumsum() > 0).cumsum()]
    found: NDArray[np.int64] = letters[STRETCH : STRETCH + len(often)] - letters[: len(often)]
    return found


def hash_passages(text: str) -> Numbers:
    """A hash for every passage of 60 characters, modulo 2^64."""
    letters = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint64)
    if len(letters) <= STRETCH:
        return np.empty(0, np.uint64)
    found = np.zeros(len(letters) - STRETCH, np.uint64)
    with np.errstate(over="ignore"):
        for place in range(STRETCH):
            found *= np.uint64(0x9E3779B97F4A7C15)
            found += letters[place : place + len(found)]
            found ^= found >> np.uint64(29)
    return found


def finding(what: str, *, exact: bool) -> Finding:
    return Finding("leak", what, "the train/validation split", 0.95 if exact else 0.75, TODO)


CHECK = Check("leak", "validation data is not in the training data", cheap=False, run=run, needs_model=False)
