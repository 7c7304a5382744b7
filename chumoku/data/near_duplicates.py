"""Near-duplicates: groups of pairs that are so similar that a split must keep them together.

    similar    one side is equal except for case, spaces, digits and punctuation,
               or one side shares at least 80 % of its letter triples (Jaccard)

Candidates are found by MinHash: 24 hashes per sentence, which agree as often as the sets overlap. Sentences that agree
in any of 8 bands of three hashes are compared, which finds 99.7 % of those at 80 % similarity and nearly all above.
If there are many to compare with, only those that agree in 12 of all 24 hashes are (99.9 % of those at 80 %).
Groups are the connected components of similar pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from chumoku.data.order import mix_bits, random_numbers
from chumoku.data.pairs import Pair, keep_letters
from chumoku.text.progress import Progress, silent

MIN_SIMILARITY = 0.8
HASHES, BAND = 24, 3
MIN_AGREEING, FEW = 12, 32
BLOCK = 1 << 14
MAX_CANDIDATES = 1024


def group_pairs(pairs: Sequence[Pair], progress: Progress = silent) -> list[int]:
    """The group of each pair: the smallest index that it is connected to."""
    groups = Groups(len(pairs))
    rounds = 0

    def report() -> None:
        progress("looking for near-duplicates", rounds, 2 * (1 + HASHES // BAND), "rounds")

    for name in Pair._fields:
        sides: list[str] = []
        first: dict[str, int] = {}
        for index, pair in enumerate(pairs):
            sides.append(keep_letters(getattr(pair, name)))
            groups.join(first.setdefault(sides[-1], index), index)
            report()
        signatures = minhash(sides, report)
        for band in range(0, HASHES, BAND):
            rounds += 1
            join_similar(sides, signatures, slice(band, band + BAND), groups, report)
        rounds += 1
    return [groups.root(index) for index in range(len(pairs))]


def join_similar(
    texts: list[str], signatures: NDArray[np.uint64], band: slice, groups: Groups, report: Callable[[], object]
) -> None:
    """Among texts with equal hashes in the band, join each with the first earlier text that is really similar to it."""
    keys = signatures[:, band]
    order = np.lexsort(keys.T)
    edges = np.flatnonzero(np.r_[True, (keys[order][1:] != keys[order][:-1]).any(1), True])
    long = np.flatnonzero(np.diff(edges) > 1)
    for start, stop in zip(edges[long], edges[long + 1], strict=True):
        candidates: list[int] = []
        triples: dict[int, set[str]] = {}
        report()
        for index in map(int, order[start:stop]):
            own = letter_triples(texts[index])
            likely = candidates
            if len(candidates) > FEW:
                agreeing = (signatures[candidates] == signatures[index]).sum(1) >= MIN_AGREEING
                likely = [candidates[place] for place in np.flatnonzero(agreeing)]
            match = next((other for other in likely if is_similar(own, triples[other])), None)
            if match is not None:
                groups.join(match, index)
            elif len(candidates) < MAX_CANDIDATES:
                candidates.append(index)
                triples[index] = own


def is_similar(one: set[str], other: set[str]) -> bool:
    shorter, longer = sorted((len(one), len(other)))
    # The sizes alone often rule it out.
    return shorter >= MIN_SIMILARITY * longer and len(one & other) >= MIN_SIMILARITY * len(one | other)


class Groups:
    """Union-find."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def root(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = self._parent[self._parent[index]]
            index = self._parent[index]
        return index

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self._parent[high] = low


def letter_triples(text: str) -> set[str]:
    padded = f" {text} "
    return {padded[i : i + 3] for i in range(max(1, len(padded) - 2))}


def minhash(texts: Sequence[str], report: Callable[[], object] = lambda: None) -> NDArray[np.uint64]:
    """[N, 24]: for each of 24 hash functions, the smallest hash among a text's letter triples."""
    keys = random_numbers(HASHES, 20170612)
    blocks = []
    for start in range(0, len(texts), BLOCK):
        report()
        blocks.append(_minhash_block(texts[start : start + BLOCK], keys))
    return np.concatenate(blocks) if blocks else np.empty((0, HASHES), np.uint64)


def _minhash_block(texts: Sequence[str], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    padded = [f" {text or ' '} " for text in texts]
    letters = np.frombuffer("".join(padded).encode("utf-32-le", "replace"), dtype="<u4").astype(np.uint64)
    lengths = np.array([len(text) for text in padded])
    starts = np.cumsum(lengths) - lengths
    with np.errstate(over="ignore"):
        hashes = letters * np.uint64(0x9E3779B97F4A7C15)
        hashes[:-1] += letters[1:] * np.uint64(0xC2B2AE3D27D4EB4F)
        hashes[:-2] += letters[2:] * np.uint64(0x165667B19E3779F9)
    # The triples at a text's last two positions would reach into the next text, so they repeat the last valid one.
    for back in (2, 1):
        places = starts + lengths - back
        hashes[places] = hashes[starts + np.maximum(lengths - 3, 0)]
    return np.stack([np.minimum.reduceat(mix_bits(hashes ^ key), starts) for key in keys], axis=1)
