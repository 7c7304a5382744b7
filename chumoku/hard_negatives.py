"""Hard negatives: for each pair (anchor, positive) the texts that a trained encoder confuses with the positive.

    candidates   the positives of all other rows, the nearest to the anchor first (exact search)
    kept         rows of another group (`near_duplicates`) with cos(a, n) ≤ (1 − margin) · cos(a, p)

What is nearly as close as the positive is probably another right answer; the margin leaves it out. The triplets are the
data of another training run (data.columns = [0, 1, 2]).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from chumoku.data.near_duplicates import group_pairs
from chumoku.data.pairs import Pair
from chumoku.decoding.embed import Prompt
from chumoku.decoding.vector_index import nearest
from chumoku.errors import UsageError
from chumoku.pipeline import Pipeline
from chumoku.search import choose_prompt
from chumoku.text.progress import Progress, silent

NEAREST = 50  # candidates of each anchor
CHUNK = 1 << 12  # texts embedded between two reports of progress
Triplet = tuple[str, str, str]


def mine_negatives(
    pipeline: Pipeline,
    pairs: Sequence[tuple[str, str]],
    *,
    count: int = 1,
    margin: float = 0.05,
    progress: Progress = silent,
    note: Callable[[str], object] = warnings.warn,
) -> list[Triplet]:
    """Triplets (anchor, positive, hard negative), up to `count` for each pair; a pair without any is left out.

    note    called with a sentence if texts were cut
    """
    if count < 1 or not 0 <= margin < 1:
        raise UsageError(f"count is {count} and margin {margin}; count must be 1 or more, margin 0 or more, below 1.")
    rows = [Pair(*pair) for pair in pairs]
    groups = group_pairs(rows, progress)
    sides = []
    prompts: tuple[tuple[str, Prompt], ...] = (("source", "query"), ("target", "document"))
    for name, prompt in prompts:
        texts, parts = [getattr(row, name) for row in rows], []
        for start in range(0, len(texts), CHUNK):
            progress(f"embedding ({name})", start, len(texts), "texts")
            some = texts[start : start + CHUNK]
            chosen = choose_prompt(pipeline, prompt)
            parts.append(pipeline.embed(some, prompt=chosen, note=note))
        sides.append(F.normalize(torch.cat(parts), dim=-1))
    anchors, positives = sides
    limits = ((anchors * positives).sum(1) * (1 - margin)).tolist()
    triplets: list[Triplet] = []
    scores, places = nearest(anchors, positives, NEAREST)
    for number, (row_scores, row_places) in enumerate(zip(scores.tolist(), places.tolist(), strict=True)):
        negatives: dict[str, None] = {}
        for score, place in zip(row_scores, row_places, strict=True):
            if groups[place] != groups[number] and score <= limits[number] and len(negatives) < count:
                negatives[rows[place].target] = None
        triplets += [(rows[number].source, rows[number].target, negative) for negative in negatives]
    return triplets
