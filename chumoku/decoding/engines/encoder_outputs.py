"""What the rows of an encoder-decoder look at, computed once and moved along with them.

keys, values   [rows, G, S, K] a layer, of sources whose lengths differ

Rows that come from one row (the beams of a sentence) have one origin, and among them nothing has to be moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chumoku.models.stack import Memory
from chumoku.nn import masks
from chumoku.nn.cache import KeyValue

SPARE = 32  # rows and positions taken beyond those needed now


class Sources:
    """What the rows of an encoder-decoder look at: keys and values a layer [rows, G, S, K], of lengths of their own."""

    def __init__(self, rows: int) -> None:
        self._rows = rows  # at most
        self._memory: tuple[KeyValue, ...] = ()
        self._lengths: list[int] = []
        self._origins: list[int] = []  # rows of one origin look at the same source
        self._entered = 0
        self._view: tuple[int, int, Memory] | None = None  # of the last step: the next asks for the same

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for pair in self._memory for part in pair)

    def enter(self, memory: tuple[KeyValue, ...], lengths: list[int]) -> None:
        """These keys and values behind those of the rows before."""
        first, count = len(self._lengths), len(lengths)
        if first:
            self._reserve(first + count, max(lengths))
            for pair, new in zip(self._memory, memory, strict=True):
                for part, piece in zip(pair, new, strict=True):
                    part[first : first + count, :, : piece.shape[2]] = piece
        else:
            self._memory = memory
        self._lengths += lengths
        self._origins += range(self._entered, self._entered + count)
        self._entered += count
        self._view = None

    def take(self, rows: Sequence[int]) -> None:
        """Row i goes on with what row rows[i] looked at."""
        if not self._memory:
            return
        standing = len(self._origins)
        moves = [
            (place, row)
            for place, row in enumerate(rows)
            if place >= standing or self._origins[place] != self._origins[row]
        ]
        if moves:
            self._reserve(len(rows), 0)
            move([part for pair in self._memory for part in pair], moves)
        if moves or len(rows) != standing:
            self._view = None
        if not rows:
            self._memory = ()
        self._lengths = [self._lengths[row] for row in rows]
        self._origins = [self._origins[row] for row in rows]

    def memory(self, first: int, end: int) -> Memory | None:
        """What these rows look at; a mask only where their sources differ in length."""
        if not self._memory:
            return None
        if self._view is None or self._view[:2] != (first, end):
            lengths = self._lengths[first:end]
            most = max(lengths)
            memory = tuple(KeyValue(*(part[first:end, :, :most] for part in pair)) for pair in self._memory)
            real = None
            if min(lengths) < most:
                real = masks.real_tokens(torch.tensor(lengths), most).to(memory[0].key.device)
            self._view = first, end, Memory(memory, real)
        return self._view[2]

    def _reserve(self, rows: int, length: int) -> None:
        have = self._memory[0].key.shape
        if rows > have[0] or length > have[2]:
            rows = grown(have[0], rows, most=self._rows)
            self._memory = tuple(KeyValue(*(widened(part, rows, length) for part in pair)) for pair in self._memory)


def widened(part: Tensor, rows: int, length: int) -> Tensor:
    """[rows, G, S, K] with at least so many rows and places."""
    have = part.shape
    wide = part.new_zeros(max(rows, have[0]), have[1], max(length, have[2]), have[3])
    wide[: have[0], :, : have[2]] = part
    return wide


def move(parts: Sequence[Tensor], moves: Sequence[tuple[int, int]]) -> None:
    """In each of the parts, at once: row `to` becomes what row `origin` was, for each (to, origin)."""
    to, origins = torch.tensor(moves, device=parts[0].device).unbind(1)
    for part in parts:
        part.index_copy_(0, to, part.index_select(0, origins))


def grown(have: int, needed: int, *, most: int) -> int:
    """So much memory is taken that it seldom has to be taken again."""
    return have if needed <= have else min(most, max(2 * have, needed + SPARE))
