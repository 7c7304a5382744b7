"""Prefix cache: rows of finished texts are kept, and a new text that begins with the same tokens starts from a copy.

    row in the cache    a b c d e f        new prompt    a b c d x y        copied    a b c d        prefilled    x y

A row is copied only for the client that wrote it: otherwise one client could find out, from the time of an answer or
the number of cached tokens, what another one has written.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

LEAST = 16  # common tokens from which a copy is made


class CachedRow(NamedTuple):
    """The tokens of a row that are in the engine's cache, and whose they are."""

    tokens: list[int]
    client: Hashable
    number: int = 0  # of its request; the oldest rows are removed first


class Prefix(NamedTuple):
    row: int
    length: int


def count_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens are equal from the beginning."""
    low, high = 0, min(len(first), len(second))
    if first[:LEAST] != second[:LEAST]:
        high = min(high, LEAST)
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def find_prefix(tokens: Sequence[int], client: Hashable, rows: Iterable[CachedRow]) -> Prefix | None:
    """The row with the longest common beginning, if it is worth a copy; at least one token is left to compute."""
    lengths = [count_common(tokens[:-1], row.tokens) if row.client == client else 0 for row in rows]
    best = max(range(len(lengths)), key=lengths.__getitem__, default=None)
    return None if best is None or lengths[best] < LEAST else Prefix(best, lengths[best])


def is_coming(tokens: Sequence[int], other: Sequence[int], computed: int) -> bool:
    """Whether a common beginning is worth a copy, and is not computed yet in the other row."""
    return count_common(tokens[:-1], other) >= max(LEAST, computed + 1)


def keep_row(kept: dict[int, CachedRow], row: int, new: CachedRow) -> None:
    """Add a row to those that are kept, instead of rows of the same client that it begins with."""
    for place, one in list(kept.items()):
        if one.client == new.client and new.tokens[: len(one.tokens)] == one.tokens:
            del kept[place]
    if len(new.tokens) >= LEAST:
        kept[row] = new
