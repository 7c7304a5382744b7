"""Cross-attention keys and values of an encoder-decoder's rows, computed once for each source.

keys, values   [rows, G, S, K] a layer, of sources whose lengths differ

Rows copied from one row (the beams of a sentence) have the same origin; nothing is moved between them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chumoku.models.stack import Memory
from chumoku.nn import masks
from chumoku.nn.cache import KeyValue

SPARE = 32  # rows and positions allocated beyond those needed now


class EncoderOutputs:
    """Keys and values of each layer [rows, G, S, K], with a length for each row."""

    def __init__(self, rows: int) -> None:
        self._rows = rows  # at most
        self._memory: tuple[KeyValue, ...] = ()
        self._lengths: list[int] = []
        self._origins: list[int] = []  # rows with the same origin have the same source
        self._next_origin = 0
        self._view: tuple[int, int, Memory] | None = (
            None  # result of the last call; the next call usually has the same arguments
        )

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for pair in self._memory for part in pair)

    def add_rows(self, memory: tuple[KeyValue, ...], lengths: list[int]) -> None:
        """Append the keys and values of new rows."""
        self._write(memory, lengths)
        self._lengths += lengths
        self._origins += range(self._next_origin, self._next_origin + len(lengths))
        self._next_origin += len(lengths)
        self._view = None

    def select_rows(self, rows: Sequence[int]) -> None:
        """Row i gets the keys and values of the previous row rows[i]."""
        if not self._memory:
            return
        origins, count = [self._origins[row] for row in rows], len(self._origins)
        if origins == self._origins:
            return
        moves = [
            (place, row)
            for place, (row, origin) in enumerate(zip(rows, origins, strict=True))
            if place >= count or self._origins[place] != origin
        ]
        if moves:
            self._reserve(len(rows), 0)
            move([part for pair in self._memory for part in pair], moves)
        if moves or len(rows) != count:
            self._view = None
        if not rows:
            self._memory = ()
        self._lengths = [self._lengths[row] for row in rows]
        self._origins = origins

    def memory(self, first: int, end: int) -> Memory | None:
        """Keys and values of rows first … end − 1, with a mask if their sources differ in length."""
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

    def _write(self, memory: tuple[KeyValue, ...], lengths: list[int]) -> None:
        """Keep the keys and values of new rows, after those that there are."""
        first = len(self._lengths)
        if not first:
            self._memory = memory
            return
        self._reserve(first + len(lengths), max(lengths))
        write_rows(self._memory, memory, first)

    def _reserve(self, rows: int, length: int) -> None:
        have = self._memory[0].key.shape
        if rows > have[0] or length > have[2]:
            rows = new_size(have[0], rows, most=self._rows)
            self._memory = tuple(KeyValue(*(enlarge(part, rows, length) for part in pair)) for pair in self._memory)


def write_rows(memory: tuple[KeyValue, ...], new: tuple[KeyValue, ...], first: int) -> None:
    """Write the keys and values of new rows to rows first, first + 1 …; they may have fewer positions."""
    for pair, pieces in zip(memory, new, strict=True):
        for part, piece in zip(pair, pieces, strict=True):
            part[first : first + len(piece), :, : piece.shape[2]] = piece


def enlarge(part: Tensor, rows: int, length: int) -> Tensor:
    """Pad [rows, G, S, K] with zeros to at least this many rows and positions."""
    have = part.shape
    wide = part.new_zeros(max(rows, have[0]), have[1], max(length, have[2]), have[3])
    wide[: have[0], :, : have[2]] = part
    return wide


def move(parts: Sequence[Tensor], moves: Sequence[tuple[int, int]]) -> None:
    """In each part, copy row `origin` to row `to` for each (to, origin), as if all at once."""
    to, origins = torch.tensor(moves, device=parts[0].device).unbind(1)
    for part in parts:
        part.index_copy_(0, to, part.index_select(0, origins))


def new_size(have: int, needed: int, *, most: int) -> int:
    """The size to allocate: at least `needed`, and large enough that it seldom has to grow."""
    return have if needed <= have else min(most, max(2 * have, needed + SPARE))
