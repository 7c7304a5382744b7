"""Batches of pairs without padding: the sources follow each other in one row, and the targets in another.

    source    a a a b b · ·        source_starts    0 3 5 7
    target    A A B B B B ·        target_starts    0 2 6 7

All batches have one shape, for which a GPU's program is compiled once. The pairs, sorted by length, are dealt out to
the batches like cards, in alternating directions: each batch gets short and long pairs, and nearly as many tokens as
the others. What is left of a row (·) is filled with sequences of <pad>, without labels, that are no longer than the
longest pair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chumoku.data.batches import ALL, IGNORE, PairBatches, Share, check_index
from chumoku.data.order import Indices, Permutation

MULTIPLE = 64  # row lengths are multiples of this: faster matrix products


class Shape(NamedTuple):
    """The shape of every batch."""

    length: int  # tokens of a row
    sequences: int  # sequences of a row, those of <pad> and empty ones included


class PackedPairBatches:
    """The pairs of `pair_batches`, packed into rows of at most as many tokens."""

    def __init__(self, pair_batches: PairBatches) -> None:
        self.pair_batches, self.pairs = pair_batches, pair_batches.pairs
        self.longest = int(np.maximum(pair_batches.source_lengths, pair_batches.target_lengths).max())
        self._order_of_lengths = pair_batches.order(0)
        self._count = self._fewest_batches()
        self._shapes: dict[int, Shape] = {}

    def __len__(self) -> int:
        return self._count

    def samples(self, epoch: int, index: int) -> Indices:
        check_index(self, index)
        position = int(Permutation(len(self), seed=self.pair_batches.seed, epoch=epoch)(np.array([index]))[0])
        rounds = np.arange(-(-len(self.pairs) // len(self)))
        places = rounds * len(self) + np.where(rounds % 2, len(self) - 1 - position, position)
        return self.pair_batches.order(epoch)[places[places < len(self.pairs)]]

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        tables = self.pair_batches.tables(share.select(self.samples(epoch, index)))
        shape = self.shape(share.world)
        fillers = {"source": self.pair_batches.source_pad, "target": self.pair_batches.target_pad, "labels": IGNORE}
        batch = {}
        for name, (table, real) in tables.items():
            row = table.new_full((1, shape.length), fillers[name])
            row[0, : int(real.sum())] = table[real]
            batch[name] = row
        for side in ("source", "target"):
            batch[f"{side}_starts"] = self._starts(tables[side][1].sum(1), shape)
        return batch

    def shape(self, world: int = 1) -> Shape:
        """The shape of the batches that each of `world` processes gets."""
        if world not in self._shapes:
            totals, pairs = self._totals(len(self), world)
            length = min(self.pair_batches.tokens, -(-int(totals.max()) // MULTIPLE) * MULTIPLE)
            padding = -((totals - length) // self.longest).min(0)  # sequences of <pad>
            self._shapes[world] = Shape(length, int((pairs + padding).max()))
        return self._shapes[world]

    @property
    def padding(self) -> float:
        """The fraction of padding among all positions of an epoch, sources and targets together."""
        return 1 - float(self._totals(len(self), 1)[0].sum()) / (2 * len(self) * self.shape().length)

    @property
    def fewest_rows(self) -> int:
        """The number of pairs in the smallest batch: the most processes that can share a batch."""
        return len(self.pairs) // len(self)

    def _starts(self, lengths: Tensor, shape: Shape) -> Tensor:
        """Where the sequences of a row start: those of pairs, those of <pad>, then empty ones."""
        ends = lengths.cumsum(0)
        padding = torch.arange(shape.sequences - len(ends)) * self.longest + ends[-1] + self.longest
        return torch.cat([torch.zeros(1), ends, padding.clamp(max=shape.length)]).to(torch.int32)

    def _totals(self, count: int, world: int) -> tuple[Indices, Indices]:
        """Tokens [2, batches × world] of sources and targets in each process's part of a batch, and its pairs.

        The sequence of lengths is the same in every epoch, and so are these numbers.
        """
        round_, turn = np.divmod(np.arange(len(self.pairs)), count)
        part = np.where(round_ % 2, count - 1 - turn, turn) * world + round_ % world
        lengths = (self.pair_batches.source_lengths, self.pair_batches.target_lengths)
        tokens = [np.bincount(part, side[self._order_of_lengths], count * world).astype(np.int64) for side in lengths]
        return np.stack(tokens), np.bincount(part, minlength=count * world)

    def _fewest_batches(self) -> int:
        """The number of batches. Every row fits; with one batch less, a row would be too long."""
        most = max(int(side.sum()) for side in (self.pair_batches.source_lengths, self.pair_batches.target_lengths))
        enough = -(-most // self.pair_batches.tokens)
        too_few, step = enough - 1, 1
        while not self._fits(enough):
            too_few, enough, step = enough, enough + step, 2 * step
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if self._fits(middle) else (middle, enough)
        return enough

    def _fits(self, count: int) -> bool:
        return bool(self._totals(count, 1)[0].max() <= self.pair_batches.tokens)
