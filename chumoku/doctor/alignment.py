"""Source and target belong together. Which parts go together is learned from half of the pairs and tried on the others:

    A[s, t] = log (n_st N / (n_s n_t)), at least 0        how often parts s and t meet, against chance
    d_i     = xᵢᵀ A yᵢ − mean_j xᵢᵀ A yⱼ                  does pair i fit better than its source with others' targets?

Over a block of 64 pairs in a row, mean(d) / (deviation(d) / √64) is about 0 ± 1 where lines have slipped, and far above
where they have not; where a neighbor's target fits better, they have slipped for certain. Parts are words, or pairs of
letters where words are not divided.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chumoku.data.batches import Batches
from chumoku.data.pairs import Pair
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient
from chumoku.text import Tokenizer

BLOCK, SMALLEST, FEWEST, MOST, PARTS = 64, 8, 256, 12_800, 600
SLIPPED, SURE, FITTING, CLEARLY = 2.0, 3.0, 5.0, 7.0
ROWS = 2048
WORD = re.compile(r"\w+|[^\w\s]")
UNDIVIDED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
Parts = list[set[Hashable]]


class Rows(NamedTuple):
    """Texts on both sides, in blocks within which strangers are sought."""

    sources: Sequence[str]
    targets: Sequence[str]
    blocks: Sequence[int]  # sizes


def run(patient: Patient) -> Iterator[Finding]:
    examined = {"the corpus": of_pairs(patient.pairs or [])}
    for name, batches in (("training", patient.train), ("validation", patient.validation)):
        if batches is not None and patient.tokenizer is not None:
            source = patient.source_tokenizer or patient.tokenizer
            examined[f"the batches of {name}"] = of_batches(batches, source, patient.tokenizer)
    enough = {where: rows for where, rows in examined.items() if sum(rows.blocks) >= FEWEST}
    if not enough:
        raise Skip(f"there are not the {FEWEST} pairs from which this can be told")
    for where, rows in enough.items():
        yield from told(fitting(rows), where, rows)


def of_pairs(pairs: Sequence[Pair]) -> Rows:
    """Whole blocks of neighbors, from all over the corpus."""
    starts = range(0, len(pairs) - BLOCK + 1, BLOCK)
    chosen = starts[:: max(1, len(starts) * BLOCK // MOST)]
    rows = [pair for start in chosen for pair in pairs[start : start + BLOCK]]
    return Rows([pair.source for pair in rows], [pair.target for pair in rows], [BLOCK] * len(chosen))


def of_batches(batches: Batches, source: Tokenizer, target: Tokenizer) -> Rows:
    """Rows as they are learned from. A batch is a block: its rows are of like length, so that length tells nothing."""
    rows = Rows([], [], [])
    for index in range(len(batches)):
        batch = batches.batch(0, index)
        if "source" not in batch or sum(rows.blocks) >= ROWS:
            break
        if len(batch["source"]) >= SMALLEST:
            given = zip(batch["source"], batch["source_mask"], strict=True)
            rows.sources.extend(source.decode_batch([row[mask].tolist() for row, mask in given]))  # type: ignore[attr-defined]
            rows.targets.extend(target.decode_batch([row[row >= 0].tolist() for row in batch["labels"]]))  # type: ignore[attr-defined]
            rows.blocks.append(len(batch["source"]))  # type: ignore[attr-defined]
    return rows


def parts_of(text: str) -> set[Hashable]:
    if UNDIVIDED.search(text):
        return {text[i : i + 2] for i in range(len(text) - 1)} | set(text)
    return set(WORD.findall(text.lower()))


def told(fits: NDArray[np.float64], where: str, rows: Rows) -> Iterator[Finding]:
    """`fits` is a number for every block; the corpus as a whole, then the places where it slips."""
    todo = "Find the line that was lost or split on one side; from there on every source has its neighbor's target."
    if float(fits.clip(min=-SURE).mean()) * np.sqrt(len(fits)) < FITTING:
        what = "Sources and targets do not belong together: any other target fits as well."
        yield Finding("alignment", what, where, 0.9, todo)
        return
    # Where even good blocks fit hardly better than strangers, one that does not may do so by chance.
    telling = float(np.percentile(fits, 80)) >= CLEARLY
    slipped = np.flatnonzero(fits < (SLIPPED if telling else -SURE))
    if len(slipped) < max(2, 0.02 * len(fits)):
        return
    first = rows.sources[sum(rows.blocks[: int(slipped[0])])]
    yield Finding(
        "alignment",
        f"In {len(slipped)} of {len(fits)} stretches, targets belong to other sources, first about {first[:30]!r}.",
        where,
        0.85,
        todo,
    )


def fitting(rows: Rows) -> NDArray[np.float64]:
    """For every block, by how many deviations pairs fit better than strangers."""
    x, y = (table([parts_of(text) for text in side]) for side in (rows.sources, rows.targets))
    ends = np.cumsum(rows.blocks)
    number = np.repeat(np.arange(len(ends)), rows.blocks)
    fits = np.zeros(len(ends))
    for half in (0, 1):
        train_half = number % 2 == half
        association = associations(x[train_half], y[train_half])
        for block in range(1 - half, len(ends), 2):
            place = slice(ends[block] - rows.blocks[block], ends[block])
            scores = x[place] @ association @ y[place].T
            own = np.diag(scores)
            fits[block] = deviations(own - (scores.sum(1) - own) / (len(own) - 1))
            # In a sorted corpus neighbors are alike, and even a neighbor's target fits; but then it fits better.
            beside = [deviations(own[:-1] - np.diag(scores, 1)), deviations(own[1:] - np.diag(scores, -1))]
            if min(beside) < -SURE:
                fits[block] = min(beside)
    return fits


def deviations(better: NDArray[np.floating[Any]]) -> float:
    return float(better.mean() / (better.std() / np.sqrt(len(better)) + 1e-9))


def table(side: Parts) -> NDArray[np.float32]:
    """[N, parts]: which of the most frequent parts a text has, but for those that most texts have; rows of length 1."""
    often = Counter(part for parts in side for part in parts)
    known = [part for part, times in often.most_common(PARTS + 50) if 4 <= times <= 0.5 * len(side)][:PARTS]
    places = {part: place for place, part in enumerate(known)}
    made = np.zeros((len(side), max(1, len(known))), np.float32)
    for row, parts in enumerate(side):
        made[row, [places[part] for part in parts if part in places]] = 1.0
    made /= np.sqrt(np.maximum(1.0, made.sum(1, keepdims=True)))
    return made


def associations(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float32]:
    x, y = (x > 0).astype(np.float32), (y > 0).astype(np.float32)
    met = x.T @ y
    chance = x.sum(0)[:, None] * y.sum(0)[None, :] / max(1, len(x))
    # Rare meetings are chance: they count only as far as they exceed it.
    found: NDArray[np.float32] = np.log((met + 0.5) / (chance + 0.5))
    return np.maximum(found, 0.0, out=found)


CHECK = Check("alignment", "sources and targets belong together", cheap=False, run=run, of_model=False)
