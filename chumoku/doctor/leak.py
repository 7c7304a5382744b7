"""Validation measures what was not learned:

pairs   no pair of the validation part is one of training, but for case, spaces and punctuation; hardly any is nearly
text    no stretch of 60 letters of the validation part stands in training, but for what stands there again and again
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from chumoku.data.near_duplicates import HASHES, alike, minhash, triples_of
from chumoku.data.pairs import Pair
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient

EXACT, NEAR = 0.005, 0.1  # shares of the validation part that are too many
BAND, MOST_MET = 4, 20  # six bands of four hashes find 95 % of what is alike by 0.8
STRETCH, STEP = 60, 20
OFTEN = 5  # a prompt or a notice in every document is not what a validation part is to be kept from
MOST, MOST_HELD = 200_000, 2000
LETTERS = 30_000_000
Numbers = NDArray[np.uint64]
TODO = "Take them out of training, or divide again (data.validation_share divides by content)."


def run(patient: Patient) -> Iterator[Finding]:
    if patient.pairs and patient.held_pairs:
        yield from pairs(patient.pairs[:MOST], spread(patient.held_pairs))
    elif patient.texts and patient.held_texts:
        yield from texts(patient.texts, patient.held_texts)
    else:
        raise Skip("there are not both a training and a validation part")


def spread(pairs: Sequence[Pair]) -> list[Pair]:
    return list(pairs[:: max(1, len(pairs) // MOST_HELD)])


def plain(text: str) -> str:
    """Letters and digits alone, in lower case."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum())


def pairs(train: Sequence[Pair], held: Sequence[Pair]) -> Iterator[Finding]:
    known = {(plain(pair.source), plain(pair.target)) for pair in train}
    same = [pair for pair in held if (plain(pair.source), plain(pair.target)) in known]
    if len(same) > EXACT * len(held):
        yield found(len(same), len(held), "pairs are", f"{same[0].source[:30]} → {same[0].target[:40]}", exact=True)
        return
    near = [held[place] for place in nearly(train, held)]
    if len(near) > NEAR * len(held):
        yield found(
            len(near), len(held), "pairs are nearly", f"{near[0].source[:30]} → {near[0].target[:40]}", exact=False
        )


def nearly(train: Sequence[Pair], held: Sequence[Pair]) -> Iterator[int]:
    """Places of held pairs that have a twin in training: eight of ten letter triples of both sides are shared."""
    rows = [f"{plain(pair.source)} {plain(pair.target)}" for pair in (*train, *held)]
    signatures = minhash(rows)
    tables: list[dict[bytes, list[int]]] = []
    for band in range(0, HASHES, BAND):
        table: dict[bytes, list[int]] = {}
        for place, key in enumerate(np.ascontiguousarray(signatures[: len(train), band : band + BAND])):
            table.setdefault(key.tobytes(), []).append(place)
        tables.append(table)
    for place in range(len(held)):
        mine = signatures[len(train) + place]
        keys = [mine[BAND * number : BAND * number + BAND].tobytes() for number in range(len(tables))]
        met = {other for key, table in zip(keys, tables, strict=True) for other in table.get(key, ())[:MOST_MET]}
        own = triples_of(rows[len(train) + place])
        if any(alike(own, triples_of(rows[other])) for other in met):
            yield place


def texts(train: Sequence[str], held: Sequence[str]) -> Iterator[Finding]:
    known, asked = ("".join(map(plain, lines))[:LETTERS] for lines in (train, held))
    starts = range(0, max(0, len(asked) - STRETCH), STEP)
    if not starts:
        raise Skip("the validation part is shorter than a sentence")
    times = counts(rolling(asked), rolling(known))
    own = covered(times >= OFTEN)[::STEP] < STRETCH / 2
    same = np.flatnonzero((times[::STEP] > 0) & own)
    mine = np.flatnonzero(own)
    if len(same) > EXACT * 4 * max(1, len(mine)):
        where = int(same[0]) * STEP
        yield found(len(same), len(mine), "stretches of 60 letters stand", asked[where : where + 50], exact=True)


def counts(asked: Numbers, known: Numbers) -> NDArray[np.int64]:
    """How often each number that is asked for is known."""
    values, place = np.unique(asked, return_inverse=True)
    if not len(values):
        return np.zeros(0, np.int64)
    found = np.minimum(np.searchsorted(values, known), len(values) - 1)
    times: NDArray[np.int64] = np.bincount(found[values[found] == known], minlength=len(values))[place]
    return times


def covered(often: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For every stretch, how many of its letters lie in one that stands everywhere."""
    edges = np.zeros(len(often) + STRETCH + 1, np.int64)
    edges[: len(often)] += often
    edges[STRETCH : STRETCH + len(often)] -= often
    letters = np.r_[0, (edges.cumsum() > 0).cumsum()]
    found: NDArray[np.int64] = letters[STRETCH : STRETCH + len(often)] - letters[: len(often)]
    return found


def rolling(text: str) -> Numbers:
    """A number for every stretch of 60 letters: Σ c_i b^i, by sums from the beginning, in arithmetic modulo 2^64."""
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


def found(count: int, total: int, what: str, example: str, *, exact: bool) -> Finding:
    return Finding(
        "leak",
        f"{count:,} of {total:,} validation {what} in the training part: {example!r}.",
        "the split of the corpus",
        0.95 if exact else 0.75,
        TODO,
    )


CHECK = Check("leak", "no validation text is learned", cheap=False, run=run, of_model=False)
