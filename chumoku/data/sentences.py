"""Sentences for a sentence encoder: rows (anchor, positive) or (anchor, positive, negative) → token ids on disk.

    anchor     a text, such as a question or a Japanese sentence
    positive   a text of the same meaning: its answer, its translation
    negative   a text that looks similar but does not belong to the anchor

Each row has a group: rows with an equal or similar anchor or positive (`near_duplicates`) share one, so that they are
never used as each other's negatives. A negative has the group of the row that has the same text, or NO_GROUP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chumoku.data.manifest import is_up_to_date, read_manifest, replace_folder, write_manifest
from chumoku.data.near_duplicates import group_pairs
from chumoku.data.pairs import PROGRESS_EVERY, Cleaning, Columns, Pair, find_problem, keep_letters, read_rows
from chumoku.data.prepared import BATCH
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter
from chumoku.data.report import Report
from chumoku.data.split import split_pairs
from chumoku.data.text_files import compute_fingerprints, find_files, refuse_if_changed
from chumoku.errors import CorpusError
from chumoku.text.progress import Progress, silent

SIDES = ("anchor", "positive", "negative")
NO_GROUP = -1
MAX_CHARACTERS = 1 << 17
Row = tuple[str, ...]
Encode = Callable[[list[str], str], list[list[int]]]  # texts of a side → their token ids


@dataclass(frozen=True)
class SentenceCorpus:
    """Rows with their groups, and which of them are for training and for validation."""

    rows: list[Row]
    groups: list[int]
    parts: dict[str, list[int]]  # "train" and "validation" → indices
    report: Report

    def texts(self) -> Iterator[str]:
        """All texts of the training rows."""
        for index in self.parts["train"]:
            yield from self.rows[index]


def read_corpus(
    files: Sequence[str | Path],
    *,
    columns: Columns = (0, 1),
    languages: tuple[str | None, str | None] = (None, None),
    validation: float = 0.01,
    progress: Progress = silent,
) -> SentenceCorpus:
    """Read, clean, group and split the rows of tables; near-duplicates are all in training or all in validation.

    columns      anchor, positive and, for triplets, negative: indices in TSV, names in JSONL and Parquet
    languages    of anchors and positives; rows in another script are dropped
    """
    rows, report = read_sentences(files, columns=columns, languages=languages, progress=progress)
    pairs = [Pair(*row[:2]) for row in rows]
    groups = group_pairs(pairs, progress)
    train, held_out = split_pairs(pairs, validation=validation, groups=groups, progress=progress)
    return SentenceCorpus(rows, groups, {"train": train, "validation": held_out}, report)


def read_sentences(
    files: Sequence[str | Path],
    *,
    columns: Columns = (0, 1),
    languages: tuple[str | None, str | None] = (None, None),
    progress: Progress = silent,
) -> tuple[list[Row], Report]:
    """The rows of these tables without empty and repeated ones, and a report."""
    paths, report = find_files(files), Report()
    report.files = [str(path) for path in paths]
    cleaning = Cleaning(MAX_CHARACTERS, float("inf"), languages=languages)
    rows: dict[Row, None] = {}
    for file, line, texts, problem in read_rows(paths, columns, report):
        report.read += 1
        if report.read % PROGRESS_EVERY == 0:
            progress("reading", report.read, unit="rows")
        reason = problem or find_problem(Pair(*texts[:2]), cleaning) or _negative_problem(texts)
        if reason is None and texts in rows:
            reason = "duplicate"
        if reason is not None:
            report.drop(reason, file, line, " ⇥ ".join(texts))
            continue
        rows[texts] = None
    report.kept = len(rows)
    if not rows:
        raise report.nothing_usable("rows", "Check columns and languages.")
    return list(rows), report


def _negative_problem(texts: Row) -> str | None:
    """The reason for dropping a row because of its negative, or None."""
    if len(texts) < len(SIDES):
        return None
    anchor, positive, negative = map(keep_letters, texts)
    if not texts[2].strip():
        return "empty"
    return "equal negative" if negative in (anchor, positive) else None


def prepare_sentences(
    files: Sequence[str | Path],
    folder: Path | str,
    *,
    corpus: Callable[[], SentenceCorpus],
    encode: Encode,
    dtype: np.dtype[Any],
    inputs: dict[str, Any],
    progress: Progress = silent,
) -> Path:
    """Encode a corpus into `folder`, and return it. Does nothing if neither the files nor `inputs` have changed.

    corpus    returns the rows; called only if they are needed
    inputs    everything besides the files that the result depends on
    """
    folder = Path(folder)
    inputs = {"sources": compute_fingerprints(find_files(files), progress), **inputs}
    if is_up_to_date(folder, inputs):
        return folder
    with replace_folder(folder) as working, refuse_if_changed(find_files(files)):
        found = corpus()
        parts = {name: _encode(found, name, working, encode, dtype, progress) for name in found.parts}
        counts = {name: len(indices) for name, indices in found.parts.items()}
        write_manifest(working, inputs, parts=parts, report={**found.report.as_dict(), **counts})
    return folder


def _encode(
    corpus: SentenceCorpus, part: str, folder: Path, encode: Encode, dtype: np.dtype[Any], progress: Progress
) -> dict[str, dict[str, Any]]:
    indices, rows = corpus.parts[part], corpus.rows
    entries = {}
    for place, side in enumerate(SIDES[: len(rows[0])]):
        with RaggedArrayWriter(folder / f"{part}-{side}", dtype) as writer:
            for start in range(0, len(indices), BATCH):
                progress(f"tokenizing the {side} side ({part})", start, len(indices), "rows")
                for ids in encode([rows[index][place] for index in indices[start : start + BATCH]], side):
                    writer.add(ids)
            entries[side] = writer.close()
    group_of = {keep_letters(text): group for row, group in zip(rows, corpus.groups, strict=True) for text in row[:2]}
    with RaggedArrayWriter(folder / f"{part}-groups", np.dtype("<i8")) as writer:
        for index in indices:
            negatives = [group_of.get(keep_letters(text), NO_GROUP) for text in rows[index][2:]]
            writer.add([corpus.groups[index], *negatives])
        entries["groups"] = writer.close()
    return entries


class Sentences:
    """Encoded rows: `sides["anchor"][i]` is an array of ids, `groups[i]` the groups of the row and of its negative."""

    def __init__(self, folder: Path | str, part: str = "train") -> None:
        folder = Path(folder)
        entries = read_manifest(folder)["parts"][part]
        arrays = {side: RaggedArray(folder, entries[side]) for side in (*SIDES, "groups") if side in entries}
        groups = arrays.pop("groups", None)
        width = len(arrays) - 1
        if groups is None or width < 1 or any(len(side) != len(groups) for side in arrays.values()):
            raise CorpusError(f"The sides of {folder} have different lengths. Remove it and prepare the corpus again.")
        if len(groups.tokens) != width * len(groups):
            raise CorpusError(f"The groups of {folder} are incomplete. Remove it and prepare the corpus again.")
        self.sides, self.groups = arrays, np.asarray(groups.tokens).reshape(len(groups), width)

    def __len__(self) -> int:
        return len(self.groups)
