"""Prefix cache: rows of finished texts are kept, and a new text that begins with the same tokens starts from a copy.

    row in the cache    a b c d e f        new prompt    a b c d x y        copied    a b c d        prefilled    x y

A row is copied only for the client that wrote it: otherwise one client could find out, from the time of an answer or
the number of cached tokens, what another one has written. (The server knows clients by their address: behind a proxy
that does not pass addresses on, all of its users are one client.) It is also copied only for the same adapter: another
one has other keys and values. The `key` of a row stands for both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

MIN_COMMON_TOKENS = 16  # from which a copy is made


class CachedRow(NamedTuple):
    """The tokens of a row that are in the engine's cache, and the key of the requests that may copy it."""

    tokens: list[int]
    key: Hashable
    request_number: int = 0  # the oldest rows are removed first


class Prefix(NamedTuple):
    row: int
    length: int


def count_common(first: Sequence[int], second: Sequence[int], *, end: int | None = None) -> int:
    """How many tokens are equal from the beginning, up to `end`."""
    low, high = 0, min(len(first), len(second), len(first) if end is None else end)
    if first[:MIN_COMMON_TOKENS] != second[:MIN_COMMON_TOKENS]:
        high = min(high, MIN_COMMON_TOKENS)
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def find_prefix(
    tokens: Sequence[int], key: Hashable, rows: Iterable[CachedRow], earliest: Iterable[int]
) -> Prefix | None:
    """The row with the longest common beginning, if it is worth a copy; at least one token is left to compute.

    earliest    the fewest tokens to which a copy of each row can be truncated
    """
    end = len(tokens) - 1
    lengths = [count_common(tokens, row.tokens, end=end) if row.key == key else 0 for row in rows]
    lengths = [length if length >= least else 0 for length, least in zip(lengths, earliest, strict=True)]
    best = max(range(len(lengths)), key=lengths.__getitem__, default=None)
    return None if best is None or lengths[best] < MIN_COMMON_TOKENS else Prefix(best, lengths[best])


def will_be_cached(tokens: Sequence[int], other: Sequence[int], computed: int) -> bool:
    """Whether a common beginning is worth a copy, and is not computed yet in the other row."""
    return count_common(tokens, other, end=len(tokens) - 1) >= max(MIN_COMMON_TOKENS, computed + 1)


def keep_row(kept: dict[int, CachedRow], row: int, new: CachedRow) -> None:
    """Add a row to those that are kept, and remove rows with the same key whose tokens are a prefix of its own."""
    for place, one in list(kept.items()):
        if one.key == new.key and new.tokens[: len(one.tokens)] == one.tokens:
            del kept[place]
    if len(new.tokens) >= MIN_COMMON_TOKENS:
        kept[row] = new
