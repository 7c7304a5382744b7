"""Sentence pairs → token ids on disk: cleaned, split and encoded once, then memory-mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from chumoku.data.manifest import is_up_to_date, read_manifest, replace_folder, write_manifest
from chumoku.data.pairs import Cleaning, Pair, read_pairs
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter, dtype_for
from chumoku.data.report import Report
from chumoku.data.split import Split, check_share, split_pairs
from chumoku.data.text_files import compute_fingerprints, find_files, refuse_if_changed
from chumoku.errors import UsageError
from chumoku.text import Tokenizer
from chumoku.text.progress import Progress, silent

BATCH = 1 << 12


class Pairs:
    """Encoded pairs: `source[i]` and `target[i]` are arrays of ids, without begin and end tokens."""

    def __init__(self, source: RaggedArray, target: RaggedArray) -> None:
        self.source, self.target = source, target

    def __len__(self) -> int:
        return len(self.source)


def prepare_pairs(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: Path | str,
    *,
    target_tokenizer: Tokenizer | None = None,
    columns: tuple[str | int, str | int] = (0, 1),
    cleaning: Cleaning | None = None,
    validation: float = 0.01,
    seed: int = 0,
    weights: Sequence[float] | None = None,
    both_directions: bool = False,
    split: Split = split_pairs,
    progress: Progress = silent,
) -> Path:
    """Read, clean, split and encode pairs into `folder`, and return it. Does nothing if no input has changed.

    columns           source and target: indices in TSV, names in JSONL and Parquet
    validation        the fraction of pairs for validation
    weights           for each file, how often its training pairs occur; 0.25: every fourth pair, chosen by its content
    both_directions   also add each pair reversed; every source then starts with the token of its target language
    split             a `CachedSplit` if the same pairs have been split before
    """
    folder, cleaning = Path(folder), Cleaning() if cleaning is None else cleaning
    target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer
    check_share(validation)
    if weights is not None:
        check_weights(files, weights)
    if both_directions and (None in cleaning.languages or cleaning.languages[0] == cleaning.languages[1]):
        raise UsageError("Both directions need two different languages, for example ('ja', 'en').")
    inputs = {
        "sources": compute_fingerprints(find_files(files), progress),
        "tokenizers": [tokenizer.fingerprint, target_tokenizer.fingerprint],
        "columns": list(columns),
        "cleaning": asdict(cleaning),
        "validation": validation,
        "seed": seed,
        "weights": None if weights is None else list(weights),
        "both_directions": both_directions,
    }
    if is_up_to_date(folder, inputs):
        return folder
    with replace_folder(folder) as working, refuse_if_changed(find_files(files)):
        pairs, report = read_pairs(files, columns=columns, cleaning=cleaning, progress=progress)
        train_indices, validation_indices = split(pairs, validation=validation, seed=seed, progress=progress)
        if weights is not None:
            train_indices = apply_weights(pairs, train_indices, weights_by_pair(files, weights, report))
        into = (cleaning.languages[1], cleaning.languages[0]) if both_directions else (tokenizer.target_language,)
        parts = {}
        for name, indices in (("train", train_indices), ("validation", validation_indices)):
            chosen = [pairs[index] for index in indices]
            sides = {"source": tokenizer, "target": target_tokenizer}
            parts[name] = _encode(chosen, sides, working / name, progress, into)
        summary = {**report.as_dict(), "train": len(train_indices), "validation": len(validation_indices)}
        write_manifest(working, inputs, parts=parts, report=summary)
    return folder


def open_pairs(folder: Path | str, part: str = "train") -> Pairs:
    """The pairs of a part, "train" or "validation"."""
    folder = Path(folder)
    entries = read_manifest(folder)["parts"][part]
    return Pairs(RaggedArray(folder, entries["source"]), RaggedArray(folder, entries["target"]))


def check_weights(files: Sequence[str | Path], weights: Sequence[float]) -> None:
    """Refuse weights that do not belong to one table each."""
    paths = [Path(file) for file in files]
    if len(weights) != len(paths) or len(set(paths)) < len(paths):
        raise UsageError(
            f"The length of weights is {len(weights)}, that of files {len(files)}. Name each file once, and its weight."
        )
    if folder := next((path for path in paths if path.is_dir() or path.suffix == ".zip"), None):
        raise UsageError(f"A weight belongs to one table, and {folder} may have several. Name its files.")


def weights_by_pair(files: Sequence[str | Path], weights: Sequence[float], report: Report) -> list[float]:
    """The weight of each pair in the order of reading."""
    by_file = {str(Path(file)): weight for file, weight in zip(files, weights, strict=True)}
    if unknown := next((file for file in report.kept_by_file if file not in by_file), None):
        raise UsageError(f"{unknown} has no weight of its own. Name each file instead of a pattern, and its weight.")
    return [by_file[file] for file, count in report.kept_by_file.items() for _ in range(count)]


def apply_weights(pairs: Sequence[Pair], indices: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Each index as often as its weight; a hash of the pair decides about the fraction."""
    repeated = []
    for index in indices:
        digest = hashlib.blake2b("\t".join(pairs[index]).encode("utf-8", "replace"), digest_size=8).digest()
        copies = int(weights[index] + int.from_bytes(digest) / 2**64)
        repeated.extend([index] * copies)
    return repeated


def _encode(
    pairs: list[Pair], sides: dict[str, Tokenizer], path: Path, progress: Progress, into: Sequence[str | None]
) -> dict[str, dict[str, Any]]:
    """Encode the pairs, then the reversed pairs if there are two languages to translate `into`."""
    entries = {}
    for side, tokenizer in sides.items():
        with RaggedArrayWriter(path.with_name(f"{path.name}-{side}"), dtype_for(tokenizer.size)) as writer:
            for direction, language in enumerate(into):
                place = Pair._fields.index(side) ^ direction
                tag = language if side == "source" else None
                for start in range(0, len(pairs), BATCH):
                    done, total = direction * len(pairs) + start, len(into) * len(pairs)
                    progress(f"tokenizing the {side} side ({path.name})", done, total, "pairs")
                    texts = groupby(pair[place] for pair in pairs[start : start + BATCH])  # copies are neighbors
                    counted = [(text, len(list(copies))) for text, copies in texts]
                    source = side == "source"
                    encoded = tokenizer.encode_batch([text for text, _ in counted], language=tag, source=source)
                    for ids, (_, times) in zip(encoded, counted, strict=True):
                        for _ in range(times):
                            writer.add(ids)
            entries[side] = writer.close()
    return entries
