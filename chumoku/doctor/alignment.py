"""Source and target sentences match. Associations are counted on half of the pairs and tested on the other half:

    A[s, t] = log (n_st N / (n_s n_t)), at least 0        how often s and t occur together, compared with chance
    d_i     = xᵢᵀ A yᵢ − mean_j xᵢᵀ A yⱼ                  how much better source i fits its own target than others

Over a block of 64 consecutive pairs, mean(d) / (std(d) / √64) is about 0 ± 1 if the lines are shifted, and much higher
if they match. If a neighbor's target fits better, the lines are certainly shifted. s and t are words, or character
pairs in scripts without spaces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chumoku.data.batches import Batches, source_mask
from chumoku.data.pairs import Pair
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.label_batches import has_sentinels, texts_and_labels
from chumoku.doctor.subject import Subject
from chumoku.text import Tokenizer

BLOCK, SMALLEST, FEWEST, MOST, PARTS = 64, 8, 256, 12_800, 600
SLIPPED, SURE, FITTING, CLEARLY = 2.0, 3.0, 5.0, 7.0
ROWS = 2048
MOST_TEXTS, SHIFTS = 8192, (0, -1, 1, -2, 2)  # texts with classes
WORD = re.compile(r"\w+|[^\w\s]")
UNDIVIDED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
Parts = list[set[Hashable]]


class Rows(NamedTuple):
    """Source and target texts in blocks; each pair is compared with the other pairs of its block."""

    sources: Sequence[str]
    targets: Sequence[str]
    blocks: Sequence[int]  # sizes


def run(subject: Subject) -> Iterator[Finding]:
    if subject.model is not None and subject.model.config.head_kind == "classes":
        yield from check_classes(subject)
        return
    examined = {"the corpus": of_pairs(subject.pairs or [])}
    for name, batches in (("training", subject.train), ("validation", subject.validation)):
        if batches is not None and subject.tokenizer is not None and not has_sentinels(batches, subject.tokenizer):
            source = subject.source_tokenizer or subject.tokenizer
            examined[f"the batches of {name}"] = of_batches(batches, source, subject.tokenizer)
    enough = {where: rows for where, rows in examined.items() if sum(rows.blocks) >= FEWEST}
    if not enough:
        raise Skip(f"this needs at least {FEWEST} pairs")
    for where, rows in enough.items():
        yield from find_misaligned(score_blocks(rows), where, rows)


def check_classes(subject: Subject) -> Iterator[Finding]:
    """Findings if texts fit the classes of neighbors. That they fit none is no finding: words may not tell a class."""
    if subject.tokenizer is None:
        raise Skip("there is no tokenizer")
    examined = 0
    for name, batches in (("training", subject.train), ("validation", subject.validation)):
        if batches is None:
            continue
        texts, labels, sizes = texts_and_labels(batches, subject.tokenizer, rows=MOST_TEXTS, smallest=SMALLEST)
        if len(texts) < FEWEST:
            continue
        examined += len(texts)
        fits = {shift: fit_of_labels(texts, labels, sizes, shift) for shift in SHIFTS}
        best = max(SHIFTS, key=fits.__getitem__)
        if fits[best] > CLEARLY and fits[0] < SLIPPED:
            yield Finding(
                "alignment",
                f"The texts fit the label {abs(best)} row(s) {'later' if best > 0 else 'earlier'}, not their own.",
                f"the batches of {name}",
                0.95,
                "Check that texts and labels are shuffled and divided together.",
            )
    if not examined:
        raise Skip(f"this needs at least {FEWEST} texts with classes")


def fit_of_labels(texts: Sequence[str], labels: Sequence[int], sizes: Sequence[int], shift: int) -> float:
    """By how many standard errors a text fits the label `shift` rows later in its batch better than other labels."""
    number = np.repeat(np.arange(len(sizes)), sizes)
    places = np.arange(len(texts))
    there = (places + shift >= 0) & (places + shift < len(texts))
    there &= number[np.clip(places + shift, 0, len(texts) - 1)] == number
    x = feature_table([split_text(text) for text in texts])[there]
    y = np.eye(max(labels) + 1, dtype=np.float32)[np.asarray(labels)[places[there] + shift]]
    better = []
    for half in (0, 1):
        train_half = number[there] % 2 == half
        scores = x[~train_half] @ associations(x[train_half], y[train_half])
        own = (scores * y[~train_half]).sum(1)
        better.append(own - scores @ y[train_half].mean(0))
    return deviations(np.concatenate(better))


def of_pairs(pairs: Sequence[Pair]) -> Rows:
    """Complete blocks of consecutive pairs, spread over the corpus."""
    starts = range(0, len(pairs) - BLOCK + 1, BLOCK)
    selected_starts = starts[:: max(1, len(starts) * BLOCK // MOST)]
    rows = [pair for start in selected_starts for pair in pairs[start : start + BLOCK]]
    return Rows([pair.source for pair in rows], [pair.target for pair in rows], [BLOCK] * len(selected_starts))


def of_batches(batches: Batches, source: Tokenizer, target: Tokenizer) -> Rows:
    """Rows as in training. A batch is a block: its rows have similar lengths, so length gives no hint."""
    rows = Rows([], [], [])
    for index in range(len(batches)):
        batch = batches.batch(0, index)
        if "source" not in batch or sum(rows.blocks) >= ROWS:
            break
        if len(batch["source"]) >= SMALLEST:
            masked_rows = zip(batch["source"], source_mask(batch), strict=True)
            rows.sources.extend(source.decode_batch([row[mask].tolist() for row, mask in masked_rows]))  # type: ignore[attr-defined]
            rows.targets.extend(target.decode_batch([row[row >= 0].tolist() for row in batch["labels"]]))  # type: ignore[attr-defined]
            rows.blocks.append(len(batch["source"]))  # type: ignore[attr-defined]
    return rows


def split_text(text: str) -> set[Hashable]:
    if UNDIVIDED.search(text):
        return {text[i : i + 2] for i in range(len(text) - 1)} | set(text)
    return set(WORD.findall(text.lower()))


def find_misaligned(fits: NDArray[np.float64], where: str, rows: Rows) -> Iterator[Finding]:
    """Findings from the score of every block: the whole corpus is misaligned, or some blocks are."""
    todo = "Find the line that was lost or split on one side; after it, every source has its neighbor's target."
    if float(fits.clip(min=-SURE).mean()) * np.sqrt(len(fits)) < FITTING:
        what = "Sources and targets do not match: other targets fit equally well."
        yield Finding("alignment", what, where, 0.9, todo)
        return
    # If even good blocks fit only slightly better than random pairs, a single bad block may be chance.
    telling = float(np.percentile(fits, 80)) >= CLEARLY
    slipped = np.flatnonzero(fits < (SLIPPED if telling else -SURE))
    if len(slipped) < max(2, 0.02 * len(fits)):
        return
    first = rows.sources[sum(rows.blocks[: int(slipped[0])])]
    yield Finding(
        "alignment",
        f"In {len(slipped)} of {len(fits)} blocks, targets belong to other sources, first near {first[:30]!r}.",
        where,
        0.85,
        todo,
    )


def score_blocks(rows: Rows) -> NDArray[np.float64]:
    """For every block, by how many standard errors its pairs fit better than other pairings."""
    x, y = (feature_table([split_text(text) for text in side]) for side in (rows.sources, rows.targets))
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
            # In a sorted corpus a shifted target still fits; but then the neighbor's target fits better.
            neighbors = [deviations(own[:-1] - np.diag(scores, 1)), deviations(own[1:] - np.diag(scores, -1))]
            if min(neighbors) < -SURE:
                fits[block] = min(neighbors)
    return fits


def deviations(better: NDArray[np.floating[Any]]) -> float:
    return float(better.mean() / (better.std() / np.sqrt(len(better)) + 1e-9))


def feature_table(side: Parts) -> NDArray[np.float32]:
    """[N, parts]: which frequent parts each text has, without parts that most texts have; rows have norm 1."""
    often = Counter(part for parts in side for part in parts)
    known = [part for part, times in often.most_common(PARTS + 50) if 4 <= times <= 0.5 * len(side)][:PARTS]
    places = {part: place for place, part in enumerate(known)}
    features = np.zeros((len(side), max(1, len(known))), np.float32)
    for row, parts in enumerate(side):
        features[row, [places[part] for part in parts if part in places]] = 1.0
    features /= np.sqrt(np.maximum(1.0, features.sum(1, keepdims=True)))
    return features


def associations(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float32]:
    x, y = (x > 0).astype(np.float32), (y > 0).astype(np.float32)
    met = x.T @ y
    chance = x.sum(0)[:, None] * y.sum(0)[None, :] / max(1, len(x))
    # Smoothing: rare co-occurrences are mostly chance.
    found: NDArray[np.float32] = np.log((met + 0.5) / (chance + 0.5))
    return np.maximum(found, 0.0, out=found)


CHECK = Check("alignment", "sources and targets match", cheap=False, run=run, needs_model=False)
