"""Splitting pairs into training and validation by content, so that similar pairs stay together.

Pairs with an equal or similar side form a group (see `near_duplicates`), and a hash of the group decides its part.
So validation contains no near-duplicates of training pairs, and a pair is in the same part in every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from chumoku.data.near_duplicates import group_pairs
from chumoku.data.pairs import Pair, keep_letters
from chumoku.errors import UsageError
from chumoku.text.progress import Progress, silent

Parts = tuple[list[int], list[int]]  # the indices of training pairs, and of validation pairs
Split = Callable[..., Parts]  # `split_pairs`, or a `CachedSplit`


def split_pairs(
    pairs: Sequence[Pair],
    *,
    validation: float = 0.01,
    seed: int = 0,
    groups: Sequence[int] | None = None,
    progress: Progress = silent,
) -> Parts:
    """The indices of training and validation pairs. Similar pairs are never separated.

    A hash of the content decides the part of each group, so adding other text changes nothing. A group that is larger
    than the expected validation part goes to training. `groups` is the result of `group_pairs` if it is already known.
    """
    check_share(validation)
    if validation == 0:
        return list(range(len(pairs))), []
    members: dict[int, list[int]] = {}
    for index, group in enumerate(group_pairs(pairs, progress) if groups is None else groups):
        members.setdefault(group, []).append(index)
    train_indices: list[int] = []
    validation_indices: list[int] = []
    for indices in members.values():
        key = min(f"{keep_letters(pairs[i].source)}\t{keep_letters(pairs[i].target)}" for i in indices)
        digest = hashlib.blake2b(f"{seed}\t{key}".encode("utf-8", "replace"), digest_size=8).digest()
        chosen = int.from_bytes(digest) < validation * 2**64 and len(indices) <= max(1, validation * len(pairs))
        (validation_indices if chosen else train_indices).extend(indices)
    return sorted(train_indices), sorted(validation_indices)


class CachedSplit:
    """`split_pairs` that keeps its last result, which it returns for pairs with the same content.

    The pairs that a tokenizer is trained on are read again to encode them, and finding similar ones takes much longer
    than reading.
    """

    def __init__(self) -> None:
        self._key: tuple[bytes, float, int] | None = None
        self._parts: Parts = ([], [])

    def __call__(
        self, pairs: Sequence[Pair], *, validation: float = 0.01, seed: int = 0, progress: Progress = silent
    ) -> Parts:
        content = hashlib.blake2b()
        for pair in pairs:
            content.update(repr(tuple(pair)).encode("utf-8", "replace"))
        key = (content.digest(), validation, seed)
        if key != self._key:
            self._parts = split_pairs(pairs, validation=validation, seed=seed, progress=progress)
            self._key = key
        return self._parts


def check_share(validation: float) -> None:
    if not 0 <= validation < 1:
        raise UsageError(f"The share of validation pairs is {validation}; it must be at least 0 and below 1.")
