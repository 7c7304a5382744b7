"""Batches of sentences: `rows` random rows of similar length, with an anchor, a positive and perhaps a negative each.

    anchor, positive, negative                  [B, T] each, padded on the right
    anchor_mask, positive_mask, negative_mask   [B, T], False for padding; absent if no row has padding
    group [B], negative_group [B]               rows of one group are not each other's negatives
    terms [B]                                   1 for each row: the terms of the loss

The rows of an epoch are shuffled, then sorted by length within pools of POOL batches, so that batches need little
padding. Which rows are in batch i of epoch e depends only on (seed, e, i).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from chumoku.data.batches import ALL, Share, check_index, pad_sequences
from chumoku.data.order import Indices, Permutation
from chumoku.data.sentences import Sentences
from chumoku.errors import CorpusError

POOL = 16  # batches


class SentenceBatches:
    """See above. `pad` is the token that fills rows."""

    def __init__(self, sentences: Sentences, *, rows: int, pad: int = 0, seed: int = 0) -> None:
        if len(sentences) < max(2, rows):
            raise CorpusError(
                f"There are {len(sentences):,} rows in this part of the data, but a batch needs {max(2, rows):,}: each "
                "row needs others as negatives. Give more rows, a smaller train.batch_size, or a larger "
                "data.validation_share; rows that are all similar stay in one part, so give data.validation_files then."
            )
        self.sentences, self.rows, self.pad, self.seed = sentences, rows, pad, seed
        self.lengths = np.max([side.lengths for side in sentences.sides.values()], axis=0)

    def __len__(self) -> int:
        return len(self.sentences) // self.rows

    def samples(self, epoch: int, index: int) -> Indices:
        check_index(self, index)
        first = index // POOL * POOL
        batches = min(POOL, len(self) - first)
        places = np.arange(first * self.rows, (first + batches) * self.rows)
        pool = Permutation(len(self.sentences), seed=self.seed, epoch=epoch)(places)
        pool = pool[np.argsort(self.lengths[pool], kind="stable")]
        # The batches of a pool come in random order, so that their lengths do not rise and fall in a cycle.
        order = Permutation(batches, seed=self.seed, epoch=epoch + first)(np.arange(batches))
        start = int(order[index - first]) * self.rows
        return pool[start : start + self.rows]

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        return self.tables(share.select(self.samples(epoch, index)))

    def tables(self, samples: Indices) -> dict[str, Tensor]:
        """The batch of these rows."""
        batch: dict[str, Tensor] = {}
        for side, ragged in self.sentences.sides.items():
            batch[side], real = pad_sequences(ragged, samples, filler=self.pad)
            if not real.all():
                batch[f"{side}_mask"] = real
        groups = torch.from_numpy(self.sentences.groups[samples])
        names = ("group", "negative_group")[: groups.shape[1]]
        batch.update({name: groups[:, place].clone() for place, name in enumerate(names)})
        batch["terms"] = torch.ones(len(samples), dtype=torch.int64)
        return batch
