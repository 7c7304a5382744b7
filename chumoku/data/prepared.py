"""Sentence pairs → token ids on disk: cleaned, split and encoded once, then memory-mapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chumoku.data.manifest import is_up_to_date, read_manifest, replace_folder, write_manifest
from chumoku.data.pairs import Cleaning, Pair, read_pairs
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter, dtype_for
from chumoku.data.split import check_share, split_pairs
from chumoku.data.text_files import compute_fingerprints, find_files, refuse_if_changed
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
    progress: Progress = silent,
) -> Path:
    """Read, clean, split and encode pairs into `folder`, and return it. Does nothing if no input has changed.

    columns      source and target: indices in TSV, names in JSONL and Parquet
    validation   the fraction of pairs for validation
    """
    folder, cleaning = Path(folder), Cleaning() if cleaning is None else cleaning
    target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer
    inputs = {
        "sources": compute_fingerprints(find_files(files), progress),
        "tokenizers": [tokenizer.fingerprint, target_tokenizer.fingerprint],
        "columns": list(columns),
        "cleaning": asdict(cleaning),
        "validation": validation,
        "seed": seed,
    }
    if is_up_to_date(folder, inputs):
        return folder
    check_share(validation)
    with replace_folder(folder) as working, refuse_if_changed(find_files(files)):
        pairs, report = read_pairs(files, columns=columns, cleaning=cleaning, progress=progress)
        train_indices, validation_indices = split_pairs(pairs, validation=validation, seed=seed, progress=progress)
        parts = {}
        for name, indices in (("train", train_indices), ("validation", validation_indices)):
            chosen = [pairs[index] for index in indices]
            sides = {"source": tokenizer, "target": target_tokenizer}
            parts[name] = _encode(chosen, sides, working / name, progress)
        summary = {**report.as_dict(), "train": len(train_indices), "validation": len(validation_indices)}
        write_manifest(working, inputs, parts=parts, report=summary)
    return folder


def open_pairs(folder: Path | str, part: str = "train") -> Pairs:
    """The pairs of a part, "train" or "validation"."""
    folder = Path(folder)
    entries = read_manifest(folder)["parts"][part]
    return Pairs(RaggedArray(folder, entries["source"]), RaggedArray(folder, entries["target"]))


def _encode(
    pairs: list[Pair], sides: dict[str, Tokenizer], path: Path, progress: Progress
) -> dict[str, dict[str, Any]]:
    entries = {}
    for side, tokenizer in sides.items():
        step = f"tokenizing the {side} side ({path.name})"
        with RaggedArrayWriter(path.with_name(f"{path.name}-{side}"), dtype_for(tokenizer.size)) as writer:
            for start in range(0, len(pairs), BATCH):
                progress(step, start, len(pairs), "pairs")
                texts = [getattr(pair, side) for pair in pairs[start : start + BATCH]]
                for ids in tokenizer.encode_batch(texts):
                    writer.add(ids)
            entries[side] = writer.close()
    return entries
