"""Random choices that are the same in every version of Python.

Only `random.Random.random` guarantees the same numbers for a seed in every version; `choice` and `shuffle` do not. So
every choice here uses it:

    pick(items) = items[⌊u · n⌋]        weighted: the first item whose cumulated weight exceeds u · total
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Dice:
    def __init__(self, seed: int) -> None:
        self.roll: Callable[[], float] = random.Random(seed).random

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self.roll() * len(items))]

    def chance(self, probability: float) -> bool:
        return self.roll() < probability


class Weighted(Generic[Item]):
    """Items that are drawn in proportion to their weights."""

    def __init__(self, items: Sequence[Item], weights: Sequence[float]) -> None:
        self.items = items
        self._bounds = list(accumulate(weights))

    def draw(self, dice: Dice) -> Item:
        return self.items[bisect_right(self._bounds, dice.roll() * self._bounds[-1])]
