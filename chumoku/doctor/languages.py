"""Each side is in its own language, judged by its character pairs:

    s(x) = mean over character pairs of x of  log P_source(pair) − log P_target(pair)      above 0: looks like a source

A pair is swapped if its source looks like a target and its target like a source. It is untranslated if both sides are
equal in a corpus whose other pairs have two languages.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from chumoku.data.pairs import Pair, is_in_script
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject

BUCKETS, MOST, FEWEST = 4096, 5000, 50
SWAPPED, SAME, MANY = 0.005, 0.03, 0.1  # shares of pairs
SURE = 0.3  # nats per character pair


def run(subject: Subject) -> Iterator[Finding]:
    if not subject.pairs:
        raise Skip("there are no pairs")
    rows = list(subject.pairs[:: max(1, len(subject.pairs) // MOST)])
    if len(rows) < FEWEST:
        raise Skip(f"{len(rows)} pairs are too few to recognize a language")
    yield from check_scripts(subject, rows)
    yield from find_untranslated(rows)
    scores = source_scores(rows)
    wrong = np.flatnonzero((scores[:, 0] < -SURE) & (scores[:, 1] > SURE))
    if len(wrong) > max(1, SWAPPED * len(rows)):
        source, target = rows[wrong[0]]
        yield Finding(
            "languages",
            f"{len(wrong):,} of {len(rows):,} pairs have their languages swapped: {source[:30]!r} → {target[:30]!r}.",
            "the corpus",
            0.9,
            "Swap these pairs back or remove them; data.languages removes them if the scripts differ.",
        )


def find_untranslated(rows: Sequence[Pair]) -> Iterator[Finding]:
    same = [
        pair for pair in rows if normalize(pair.source) == normalize(pair.target) and any(map(str.isalpha, pair.source))
    ]
    others = [pair for pair in rows if normalize(pair.source) != normalize(pair.target)]
    if len(same) <= SAME * len(rows) or len(others) < FEWEST:
        return
    source, target = source_scores(others).mean(0)
    # If both sides are in one language (text correction, puzzles), equal pairs are normal.
    if source > SURE and target < -SURE:
        yield Finding(
            "languages",
            f"{len(same):,} of {len(rows):,} pairs are not translated: {same[0].source[:30]!r} on both sides.",
            "the corpus",
            0.85 if len(same) > MANY * len(rows) else 0.4,
            "Remove them; otherwise the model learns to copy.",
        )


def normalize(text: str) -> str:
    return " ".join(text.casefold().split())


def check_scripts(subject: Subject, rows: Sequence[Pair]) -> Iterator[Finding]:
    """Findings about sides that are not in the scripts of the recipe's languages."""
    languages = subject.recipe.data.languages if subject.recipe is not None else None
    read = len(subject.pairs or ()) + sum(subject.dropped.values())
    other = subject.dropped.get("wrong script", 0)
    if languages and other > 0.2 * read:
        yield Finding(
            "languages", f"{other:,} of {read:,} pairs are not in the scripts of {languages[0]} and {languages[1]}.",
            "the corpus", 0.8, "Check data.languages and data.columns: the source comes first.",
        )  # fmt: skip
    elif languages:
        swapped = sum(
            is_in_script(pair.source, languages[1]) and is_in_script(pair.target, languages[0]) for pair in rows
        )
        correct = sum(
            is_in_script(pair.source, languages[0]) and is_in_script(pair.target, languages[1]) for pair in rows
        )
        if swapped > correct:
            yield Finding(
                "languages", f"Sources look like {languages[1]} and targets like {languages[0]}.", "the corpus", 0.8,
                "Swap the two values of data.columns or data.languages.",
            )  # fmt: skip


def source_scores(rows: Sequence[Pair]) -> NDArray[np.float64]:
    """[N, 2]: s(x) of both sides of every pair."""
    counts = [[character_pairs(text) for text in pair] for pair in rows]
    sums = np.ones((2, BUCKETS)) * 0.5
    for pair in counts:
        for side, numbers in enumerate(pair):
            np.add.at(sums[side], numbers, 1.0)
    ratio = np.log(sums[0] / sums[0].sum()) - np.log(sums[1] / sums[1].sum())
    return np.array([[float(ratio[numbers].mean()) if len(numbers) else 0.0 for numbers in pair] for pair in counts])


def character_pairs(text: str) -> NDArray[np.int64]:
    lowered = f" {text.lower()} "[:400]
    return np.array(
        [zlib.crc32(lowered[i : i + 2].encode("utf-8", "replace")) % BUCKETS for i in range(len(lowered) - 1)]
    )


CHECK = Check("languages", "each side is in its own language", cheap=False, run=run, needs_model=False)
