"""Language-model text → token shards: memory-mapped files from which training reads windows.

files → documents → ids (on all cores, while the next texts are read) → shards + manifest
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chumoku.data.corpus import Corpus, Piece
from chumoku.data.manifest import is_up_to_date, read_manifest, replace_folder, write_manifest
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter, Tokens, dtype_for
from chumoku.data.text_files import compute_fingerprints, refuse_if_changed
from chumoku.errors import CorpusError
from chumoku.text import Tokenizer
from chumoku.text.progress import Progress, silent

SHARD_TOKENS = 1 << 28
BATCH_CHARACTERS = 1 << 18


def prepare_text(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path | str,
    *,
    shard_tokens: int = SHARD_TOKENS,
    progress: Progress = silent,
) -> Shards:
    """Tokenize a corpus into `folder` and open it. Does not tokenize again if no input has changed."""
    folder = Path(folder)
    inputs = {
        "sources": compute_fingerprints(corpus.files, progress),
        "tokenizer": tokenizer.fingerprint,
        "documents": corpus.document_mode,
        "field": corpus.field,
        "shard_tokens": shard_tokens,
    }
    if is_up_to_date(folder, inputs):
        return Shards(folder)
    with replace_folder(folder) as working, refuse_if_changed(corpus.files):
        entries = _write_shards(corpus, tokenizer, working, shard_tokens, progress)
        write_manifest(working, inputs, shards=entries, vocabulary=tokenizer.size, report=corpus.report.as_dict())
    return Shards(folder)


def _write_shards(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, shard_tokens: int, progress: Progress
) -> list[dict[str, object]]:
    dtype, end = dtype_for(tokenizer.size), tokenizer.roles.end
    entries: list[dict[str, object]] = []
    writer = RaggedArrayWriter(folder / "shard-00000", dtype)
    tokens = 0
    for ids, document_ends in _encode_pieces(corpus, tokenizer):
        if document_ends and end is not None:
            ids.append(end)
        writer.add(ids, ends=document_ends)
        tokens += len(ids)
        progress("tokenizing", tokens, unit="tokens")
        if document_ends and writer.total >= shard_tokens:
            entries.append(writer.close())
            writer = RaggedArrayWriter(folder / f"shard-{len(entries):05}", dtype)
    entries.append(writer.close())
    return [entry for entry in entries if entry["tokens"]]


def _encode_pieces(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[tuple[list[int], bool]]:
    """The ids of each piece, and whether its document ends there. A document starts with the tokenizer's prefix.

    One batch is encoded while the one before is written and the one after is read.
    """
    at_start = True

    def results(pieces: list[Piece], future: Future[list[list[int]]]) -> Iterator[tuple[list[int], bool]]:
        nonlocal at_start
        for piece, ids in zip(pieces, future.result(), strict=True):
            yield [*(tokenizer.prefix_and_suffix[0] if at_start else ()), *ids], piece.ends
            at_start = piece.ends

    with ThreadPoolExecutor(1) as pool:
        pending: tuple[list[Piece], Future[list[list[int]]]] | None = None
        for pieces in _group_pieces(corpus.pieces()):
            future = pool.submit(tokenizer.encode_batch, [piece.text for piece in pieces])
            if pending is not None:
                yield from results(*pending)
            pending = pieces, future
        if pending is not None:
            yield from results(*pending)


def _group_pieces(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    characters, inside = 0, False
    for piece in pieces:
        # An end without text before it (several blank lines) is not a document.
        if piece.text or (inside and piece.ends):
            batch.append(piece)
            characters += len(piece.text)
        inside = not piece.ends and (inside or bool(piece.text))
        if characters > BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class Shards:
    """A prepared corpus, read as one long sequence of tokens."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self._shards = [RaggedArray(self.folder, entry) for entry in self.manifest.get("shards", [])]
        self._ends = np.cumsum([len(shard.tokens) for shard in self._shards], dtype=np.int64)
        if not self._shards:
            raise CorpusError(f"{self.folder} contains no tokens. Prepare the corpus again.")

    @property
    def tokens(self) -> int:
        return int(self._ends[-1])

    @property
    def documents(self) -> int:
        return sum(len(shard) for shard in self._shards)

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens start … stop − 1, across shards."""
        parts = [shard.tokens[low:high] for shard, low, high in self._spans(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def document_numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """For each token, the number of its document within this range, counted from 0."""
        numbers, so_far = [], 0
        for shard, low, high in self._spans(start, stop):
            place = np.searchsorted(shard.ends, np.arange(low, high), side="right")
            numbers.append(place - place[0] + so_far)
            so_far = int(numbers[-1][-1]) + 1
        return np.concatenate(numbers)

    def _spans(self, start: int, stop: int) -> Iterator[tuple[RaggedArray, int, int]]:
        if not 0 <= start < stop <= self.tokens:
            raise CorpusError(f"Tokens {start} to {stop} are not within the {self.tokens:,} tokens of {self.folder}.")
        for number in range(int(np.searchsorted(self._ends, start, side="right")), len(self._shards)):
            begin = int(self._ends[number - 1]) if number else 0
            low, high = max(start, begin) - begin, min(stop, int(self._ends[number])) - begin
            if low >= high:
                return
            yield self._shards[number], low, high
