"""Each side is in its own language. A side's language is what its own letters say:

    s(x) = mean over letter pairs of x of  log P_source(pair) − log P_target(pair)      above 0: looks like a source

A pair is swapped when its source looks like a target and its target like a source. It is not translated when both sides
are the same, in a corpus whose other pairs have two languages.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from chumoku.data.pairs import Pair, is_in_script
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient

BUCKETS, MOST, FEWEST = 4096, 5000, 50
SWAPPED, SAME, MANY = 0.005, 0.03, 0.1  # shares of pairs
SURE = 0.3  # nats a letter pair


def run(patient: Patient) -> Iterator[Finding]:
    if not patient.pairs:
        raise Skip("there are no pairs")
    rows = list(patient.pairs[:: max(1, len(patient.pairs) // MOST)])
    if len(rows) < FEWEST:
        raise Skip(f"{len(rows)} pairs are too few to know a language by")
    yield from scripts(patient, rows)
    yield from untranslated(rows)
    scores = looks(rows)
    wrong = np.flatnonzero((scores[:, 0] < -SURE) & (scores[:, 1] > SURE))
    if len(wrong) > max(1, SWAPPED * len(rows)):
        source, target = rows[wrong[0]]
        yield Finding(
            "languages",
            f"{len(wrong):,} of {len(rows):,} pairs have their languages swapped: {source[:30]!r} → {target[:30]!r}.",
            "the corpus",
            0.9,
            "Turn these pairs around, or take them out; data.languages does so where scripts differ.",
        )


def untranslated(rows: Sequence[Pair]) -> Iterator[Finding]:
    same = [pair for pair in rows if plain(pair.source) == plain(pair.target) and any(map(str.isalpha, pair.source))]
    others = [pair for pair in rows if plain(pair.source) != plain(pair.target)]
    if len(same) <= SAME * len(rows) or len(others) < FEWEST:
        return
    source, target = looks(others).mean(0)
    # Where both sides are of one language (corrections, puzzles), some pairs have nothing to be changed.
    if source > SURE and target < -SURE:
        yield Finding(
            "languages",
            f"{len(same):,} of {len(rows):,} pairs are not translated: {same[0].source[:30]!r} on both sides.",
            "the corpus",
            0.85 if len(same) > MANY * len(rows) else 0.4,
            "Take them out, or a model learns to copy.",
        )


def plain(text: str) -> str:
    return " ".join(text.casefold().split())


def scripts(patient: Patient, rows: Sequence[Pair]) -> Iterator[Finding]:
    """Whether the sides are in the scripts that the recipe says."""
    languages = patient.recipe.data.languages if patient.recipe is not None else None
    read = len(patient.pairs or ()) + sum(patient.dropped.values())
    other = patient.dropped.get("wrong script", 0)
    if languages and other > 0.2 * read:
        yield Finding(
            "languages", f"{other:,} of {read:,} pairs are not in the scripts of {languages[0]} and {languages[1]}.",
            "the corpus", 0.8, "Look at data.languages and data.columns: source first.",
        )  # fmt: skip
    elif languages:
        turned = sum(
            is_in_script(pair.source, languages[1]) and is_in_script(pair.target, languages[0]) for pair in rows
        )
        straight = sum(
            is_in_script(pair.source, languages[0]) and is_in_script(pair.target, languages[1]) for pair in rows
        )
        if turned > straight:
            yield Finding(
                "languages", f"Sources look like {languages[1]} and targets like {languages[0]}.", "the corpus", 0.8,
                "Turn data.columns or data.languages around.",
            )  # fmt: skip


def looks(rows: Sequence[Pair]) -> NDArray[np.float64]:
    """[N, 2]: how much each side looks like a source."""
    counts = [[letter_pairs(text) for text in pair] for pair in rows]
    sums = np.ones((2, BUCKETS)) * 0.5
    for pair in counts:
        for side, numbers in enumerate(pair):
            np.add.at(sums[side], numbers, 1.0)
    ratio = np.log(sums[0] / sums[0].sum()) - np.log(sums[1] / sums[1].sum())
    return np.array([[float(ratio[numbers].mean()) if len(numbers) else 0.0 for numbers in pair] for pair in counts])


def letter_pairs(text: str) -> NDArray[np.int64]:
    lowered = f" {text.lower()} "[:400]
    return np.array(
        [zlib.crc32(lowered[i : i + 2].encode("utf-8", "replace")) % BUCKETS for i in range(len(lowered) - 1)]
    )


CHECK = Check("languages", "each side is in its own language", cheap=False, run=run, of_model=False)
