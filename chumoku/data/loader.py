"""The data loader: batches starting at a cursor, built by any number of workers, always in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from chumoku.data.batches import ALL, Batches, Share


class Cursor(NamedTuple):
    """A position in the data: the next batch to load."""

    epoch: int = 0
    batch: int = 0

    def next(self, length: int) -> Cursor:
        return Cursor(self.epoch, self.batch + 1) if self.batch + 1 < length else Cursor(self.epoch + 1, 0)

    @classmethod
    def at(cls, step: int, length: int) -> Cursor:
        """The cursor after `step` batches."""
        return cls(*divmod(step, length))


START = Cursor()


def load(
    batches: Batches, cursor: Cursor = START, *, workers: int = 0, share: Share = ALL, stop: Cursor | None = None
) -> Iterator[tuple[Cursor, dict[str, Tensor]]]:
    """Endless batches (or up to `stop`), each with its cursor. `workers` processes build them ahead of time."""
    loader: DataLoader[tuple[Cursor, dict[str, Tensor]]] = DataLoader(
        _BatchDataset(batches, share),
        sampler=_CursorSampler(cursor, len(batches), stop),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
    )
    yield from loader


class _BatchDataset(Dataset[tuple[Cursor, dict[str, Tensor]]]):
    def __init__(self, batches: Batches, share: Share) -> None:
        self._batches, self._share = batches, share

    def __getitem__(self, cursor: Cursor) -> tuple[Cursor, dict[str, Tensor]]:
        return cursor, self._batches.batch(cursor.epoch, cursor.batch, self._share)


class _CursorSampler(Sampler[Cursor]):
    def __init__(self, cursor: Cursor, length: int, stop: Cursor | None) -> None:
        self._cursor, self._length, self._stop = cursor, length, stop

    def __iter__(self) -> Iterator[Cursor]:
        cursor = self._cursor
        while self._stop is None or cursor < self._stop:
            yield cursor
            cursor = cursor.next(self._length)
