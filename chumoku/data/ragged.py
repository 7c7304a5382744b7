"""Sequences of different lengths in two flat files: all tokens one after another, and where each sequence ends.

Memory-mapped, so a corpus larger than memory opens at once. Numbers below 65,536 take two bytes, others four.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chumoku.errors import CorpusError

Tokens = NDArray[np.integer[Any]]


def dtype_for(vocabulary: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


class RaggedWriter:
    """Appends sequences; a long one may come in several parts, of which the last `ends`."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path, self._dtype = path, dtype
        self._tokens = path.with_suffix(".tokens").open("wb")
        self._ends = path.with_suffix(".ends").open("wb")
        self._digest = hashlib.sha256()
        self.total = 0
        self.sequences = 0

    def add(self, tokens: Iterable[int], *, ends: bool = True) -> None:
        data = np.asarray(tokens, dtype=self._dtype).tobytes()
        self._tokens.write(data)
        self._digest.update(data)
        self.total += len(data) // self._dtype.itemsize
        if ends:
            end = np.int64(self.total).tobytes()
            self._ends.write(end)
            self._digest.update(end)
            self.sequences += 1

    def close(self) -> dict[str, Any]:
        """Finish the files; what a manifest should say of them."""
        self._tokens.close()
        self._ends.close()
        return {
            "name": self._path.name,
            "tokens": self.total,
            "sequences": self.sequences,
            "dtype": self._dtype.str,
            "sha256": self._digest.hexdigest(),
        }

    def __enter__(self) -> RaggedWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._tokens.close()
        self._ends.close()


class Ragged:
    """Sequences read back: `ragged[i]`, `ragged.lengths`, and all tokens in one row as `ragged.tokens`."""

    def __init__(self, folder: Path, entry: dict[str, Any]) -> None:
        path = folder / str(entry["name"])
        self.tokens = _mapped(path.with_suffix(".tokens"), np.dtype(entry["dtype"]), int(entry["tokens"]))
        self.ends = _mapped(path.with_suffix(".ends"), np.dtype("<i8"), int(entry["sequences"]))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Tokens:
        start = self.ends[index - 1] if index else 0
        row: Tokens = self.tokens[start : self.ends[index]]
        return row

    @property
    def lengths(self) -> NDArray[np.int64]:
        lengths: NDArray[np.int64] = np.diff(np.concatenate([[0], self.ends]))
        return lengths


def _mapped(path: Path, dtype: np.dtype[Any], count: int) -> Any:
    """A read-only view of a file, whose size must be what the manifest says."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CorpusError(f"{path} is missing: {error.strerror}. Prepare the corpus again.") from error
    if size != count * dtype.itemsize:
        raise CorpusError(
            f"{path} has {size:,} bytes and the manifest says {count * dtype.itemsize:,}: it was changed or cut off. "
            "Prepare the corpus again."
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.empty(0, dtype)
