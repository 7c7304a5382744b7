"""Splitting pairs into training and validation by content, so that similar pairs stay together.

Pairs with an equal or similar side form a group (see `near_duplicates`), and a hash of the group decides its part.
So validation contains no near-duplicates of training pairs, and a pair is in the same part in every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from chumoku.data.near_duplicates import group_pairs
from chumoku.data.pairs import Pair, keep_letters
from chumoku.errors import UsageError
from chumoku.text.progress import Progress, silent


def split_pairs(
    pairs: Sequence[Pair],
    *,
    validation: float = 0.01,
    seed: int = 0,
    groups: Sequence[int] | None = None,
    progress: Progress = silent,
) -> tuple[list[int], list[int]]:
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


def check_share(validation: float) -> None:
    if not 0 <= validation < 1:
        raise UsageError(f"The share of validation pairs is {validation}; it must be at least 0 and below 1.")
