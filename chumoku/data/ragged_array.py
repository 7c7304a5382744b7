"""Sequences of different lengths in two flat files: all tokens one after another, and where each sequence ends.

The files are memory-mapped, so a corpus larger than memory opens at once. A vocabulary of up to 65,536 tokens takes two
bytes per token, a larger one four.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chumoku.errors import CorpusError, DamagedError

Tokens = NDArray[np.integer[Any]]
BLOCK = 1 << 20  # tokens hashed at once


def dtype_for(vocabulary: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


class RaggedArrayWriter:
    """Appends sequences to the files. A long sequence may come in several parts; only the last has `ends=True`."""

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
        """Close the files and return their entry for a manifest."""
        self._tokens.close()
        self._ends.close()
        return {
            "name": self._path.name,
            "tokens": self.total,
            "sequences": self.sequences,
            "dtype": self._dtype.str,
            "sha256": self._digest.hexdigest(),
        }

    def __enter__(self) -> RaggedArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._tokens.close()
        self._ends.close()


class RaggedArray:
    """The sequences of a manifest entry: `array[i]`, `array.lengths`, and all tokens in one row as `array.tokens`.

    Opening verifies the checksum of the files, once per process.
    """

    def __init__(self, folder: Path, entry: dict[str, Any]) -> None:
        try:
            path, dtype, expected_digest = folder / str(entry["name"]), np.dtype(entry["dtype"]), str(entry["sha256"])
            tokens, sequences = int(entry["tokens"]), int(entry["sequences"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorpusError(
                f"The manifest of {folder} lacks {error}. Remove it and prepare the corpus again."
            ) from error
        files = path.with_suffix(".tokens"), path.with_suffix(".ends")
        self.tokens = _memory_map(files[0], dtype, tokens)
        self.ends = _memory_map(files[1], np.dtype("<i8"), sequences)
        identity = (expected_digest, *(_file_identity(file) for file in files))
        if identity not in _verified:
            if not _is_sorted(self.ends, tokens) or compute_digest(self.tokens, self.ends) != expected_digest:
                raise DamagedError(
                    f"{files[0]} or {files[1].name} was changed or damaged since it was prepared: its SHA-256 differs "
                    f"from the manifest. Remove the folder {folder} and run the same command again to prepare it again."
                )
            _verified.add(identity)

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


_verified: set[tuple[Any, ...]] = set()  # files that this process has verified


def _file_identity(path: Path) -> tuple[Any, ...]:
    """Values that change when a file is written to or replaced."""
    stat = path.stat()
    return str(path.resolve()), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _is_sorted(ends: NDArray[np.int64], tokens: int) -> bool:
    """Whether these are valid ends of sequences: increasing and within the tokens."""
    return not len(ends) or bool(ends[0] >= 0 and ends[-1] <= tokens and (ends[1:] >= ends[:-1]).all())


def compute_digest(tokens: Tokens, ends: NDArray[np.int64]) -> str:
    """The SHA-256 that `RaggedArrayWriter` computes: each sequence's tokens followed by its end."""
    digest = hashlib.sha256()
    start = first = 0
    while first < len(ends):
        # As many complete sequences as fit into a block; a longer one is read in parts.
        last = int(np.searchsorted(ends[first : first + BLOCK], start + BLOCK, side="right")) + first
        if last > first:
            digest.update(_interleave(tokens[start : int(ends[last - 1])], np.asarray(ends[first:last]), start))
            start = int(ends[last - 1])
        else:
            last = first + 1
            for place in range(start, int(ends[first]), BLOCK):
                digest.update(tokens[place : min(place + BLOCK, int(ends[first]))].tobytes())
            start = max(start, int(ends[first]))
            digest.update(ends[first:last].tobytes())
        first = last
    for place in range(start, len(tokens), BLOCK):
        digest.update(tokens[place : place + BLOCK].tobytes())
    return digest.hexdigest()


def _interleave(tokens: Tokens, ends: NDArray[np.int64], start: int) -> bytes:
    """The bytes of these sequences, each followed by the eight bytes of its end."""
    size = tokens.dtype.itemsize
    places = ((ends - start) * size + 8 * np.arange(len(ends)))[:, None] + np.arange(8)
    interleaved = np.empty(tokens.nbytes + ends.nbytes, np.uint8)
    is_token = np.ones(len(interleaved), bool)
    is_token[places.ravel()] = False
    interleaved[is_token] = np.frombuffer(tokens.tobytes(), np.uint8)
    interleaved[places.ravel()] = np.frombuffer(ends.tobytes(), np.uint8)
    return interleaved.tobytes()


def _memory_map(path: Path, dtype: np.dtype[Any], count: int) -> Any:
    """A read-only memory map of a file, after checking that it has the size in the manifest."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CorpusError(f"{path} is missing: {error.strerror}. Prepare the corpus again.") from error
    if size != count * dtype.itemsize:
        raise CorpusError(
            f"{path} has {size:,} bytes, but the manifest says {count * dtype.itemsize:,}: it was changed or cut off. "
            "Prepare the corpus again."
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.empty(0, dtype)
