"""Batches of conversations, several in each row, and none of them sees another:

    tokens       a a a a b b b ·      labels      · · a ·  · b · ·      only what the assistant writes is learned
    documents    0 0 0 0 1 1 1 2      positions   0 1 2 3  0 1 2 0

Conversations are packed into rows once, the longest first, each into the fullest row where it fits. Rows are shuffled
in every epoch. All rows have one width; what is left of a row is a document of <pad> without labels.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from chumoku.data.batches import ALL, IGNORE, Share, positions_within
from chumoku.data.prepared_chat import ChatSamples
from chumoku.data.shuffled_rows import ShuffledRows
from chumoku.errors import CorpusError, UsageError


class ChatBatches(ShuffledRows):
    """Up to `rows` rows of up to `length` tokens; the batches of an epoch differ by at most one row."""

    def __init__(self, conversations: ChatSamples, *, length: int, rows: int, seed: int = 0, pad: int = 0) -> None:
        if length < 1 or rows < 1:
            raise UsageError(f"A batch has {rows} rows of {length} tokens; both must be 1 or more.")
        if not len(conversations):
            raise CorpusError("There are no conversations in this part. Give more of them, or a larger share.")
        self.conversations, self.pad = conversations, pad
        lengths = conversations.tokens.lengths
        self.packed = pack(lengths.tolist(), length)
        self.width = max(int(lengths[row].sum()) for row in self.packed)
        super().__init__(len(self.packed), rows=rows, seed=seed)

    @property
    def padding(self) -> float:
        """The fraction of padding among all positions."""
        return 1 - int(self.conversations.tokens.lengths.sum()) / (len(self.packed) * self.width)

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        samples = share.select(self.samples(epoch, index))
        shape = (len(samples), self.width)
        tokens, labels = np.full(shape, self.pad, np.int64), np.full(shape, IGNORE, np.int64)
        documents = np.zeros(shape, np.int64)
        for row, sample in enumerate(samples):
            start = 0
            for place in self.packed[sample]:
                one = self.conversations[place]
                stop = start + len(one.tokens)
                tokens[row, start:stop] = one.tokens
                labels[row, start : stop - 1] = np.where(one.learned, one.tokens, IGNORE)[1:]
                documents[row, stop:] += 1
                start = stop
        tables = {"tokens": tokens, "labels": labels, "documents": documents, "positions": positions_within(documents)}
        return {name: torch.from_numpy(table) for name, table in tables.items()}


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of places whose lengths add up to at most `capacity`: best fit, the longest first."""
    rows: list[list[int]] = []
    by_space: dict[int, list[int]] = {}  # free tokens → rows
    spaces: list[int] = []  # the keys of by_space, sorted
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        found = bisect_left(spaces, lengths[place])
        if found < len(spaces):
            space = spaces[found]
            row = by_space[space].pop()
            if not by_space[space]:
                del by_space[space], spaces[found]
        else:
            space, row = capacity, len(rows)
            rows.append([])
        rows[row].append(place)
        left = space - lengths[place]
        if left not in by_space:
            insort(spaces, left)
        by_space.setdefault(left, []).append(row)
    return rows
