"""Batches of preferences: P pairs, each with the chosen sequence and the rejected one, padded on the right.

    tokens, labels [P, 2, T]      terms [P], a 1 for each pair      reference [P, 2], if it was computed before

Only tokens of the answers have labels. `terms` says how many losses a batch has, because a loss belongs to a pair.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chumoku.data.batches import ALL, IGNORE, Share
from chumoku.data.order import Indices
from chumoku.data.preferences import PreferencePairs
from chumoku.data.shuffled_rows import ShuffledRows
from chumoku.errors import CorpusError, UsageError


class PreferenceBatches(ShuffledRows):
    """Up to `rows` pairs; the batches of an epoch differ by at most one pair.

    reference   [pairs, 2]: the log-probabilities of both answers under the reference model
    """

    def __init__(
        self,
        pairs: PreferencePairs,
        *,
        rows: int,
        seed: int = 0,
        pad: int = 0,
        reference: NDArray[np.float32] | None = None,
    ) -> None:
        if rows < 1:
            raise UsageError(f"A batch has {rows} pairs; it must have 1 or more.")
        if not len(pairs):
            raise CorpusError("There are no preferences in this part. Give more of them, or a larger share.")
        super().__init__(len(pairs), rows=rows, seed=seed)
        self.pairs, self.pad, self.reference = pairs, pad, reference

    @property
    def mean_length(self) -> float:
        """The mean number of tokens of a sequence."""
        return float(np.mean([side.tokens.lengths.mean() for side in (self.pairs.chosen, self.pairs.rejected)]))

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        return self.tables(share.select(self.samples(epoch, index)))

    def tables(self, samples: Indices) -> dict[str, Tensor]:
        """The batch of these pairs."""
        rows = [[side[int(place)] for side in (self.pairs.chosen, self.pairs.rejected)] for place in samples]
        width = max(len(one.tokens) for pair in rows for one in pair)
        tokens = np.full((len(rows), 2, width), self.pad, np.int64)
        labels = np.full((len(rows), 2, width), IGNORE, np.int64)
        for row, pair in enumerate(rows):
            for side, one in enumerate(pair):
                tokens[row, side, : len(one.tokens)] = one.tokens
                labels[row, side, : len(one.tokens) - 1] = np.where(one.learned, one.tokens, IGNORE)[1:]
        batch = {"tokens": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
        batch["terms"] = torch.ones(len(rows))
        if self.reference is not None:
            batch["reference"] = torch.from_numpy(self.reference[samples])
        return batch
