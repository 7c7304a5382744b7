"""Training and validation: divided by content, so that what resembles each other stays together.

Pairs that share a side, or nearly do, form a group (see `near_duplicates`); a group's hash decides where it goes.
Validation then measures what was not trained on, and the same pair lands on the same side in every run.
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
    progress: Progress = silent,
) -> tuple[list[int], list[int]]:
    """Indices of training and validation pairs; a group (pairs that resemble each other) is never divided.

    Each group is placed by the hash of its content, so adding text elsewhere moves nothing. A group larger than the
    whole validation part would be goes to training.
    """
    check_share(validation)
    if validation == 0:
        return list(range(len(pairs))), []
    members: dict[int, list[int]] = {}
    for index, group in enumerate(group_pairs(pairs, progress)):
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
        raise UsageError(f"The share of validation pairs is {validation}, and it must be at least 0 and below 1.")
