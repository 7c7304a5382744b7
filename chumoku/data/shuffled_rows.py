"""Rows in a new order in every epoch, divided into batches that differ by at most one row."""

from __future__ import annotations

import numpy as np

from chumoku.data.batches import check_index
from chumoku.data.order import Indices, Permutation


class ShuffledRows:
    """Base class of batches of `count` rows, up to `rows` in each; the order depends only on (seed, epoch)."""

    def __init__(self, count: int, *, rows: int, seed: int) -> None:
        self.count, self.seed = count, seed
        batches = -(-count // rows)
        self._starts = np.arange(batches + 1) * count // batches

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def fewest_rows(self) -> int:
        """The number of rows in the smallest batch: the most processes that can share a batch."""
        return int(np.diff(self._starts).min())

    def samples(self, epoch: int, index: int) -> Indices:
        """The numbers of the rows of a batch."""
        check_index(self, index)
        positions = np.arange(self._starts[index], self._starts[index + 1])
        return Permutation(self.count, seed=self.seed, epoch=epoch)(positions)
