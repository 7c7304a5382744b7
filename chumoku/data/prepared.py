"""Sentence pairs → numbers on disk, ready for batches: cleaned, split, encoded once, opened at once ever after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chumoku.data.manifest import fresh_folder, read_manifest, unchanged, write_manifest
from chumoku.data.pairs import Cleaning, Pair, read_pairs
from chumoku.data.ragged_array import Ragged, RaggedWriter, dtype_for
from chumoku.data.split import check_share, split_pairs
from chumoku.data.text_files import at_rest, expand, fingerprints
from chumoku.text import Tokenizer
from chumoku.text.progress import Progress, silent

BATCH = 1 << 12


class Pairs:
    """Encoded pairs: `source[i]` and `target[i]` are rows of numbers, without begin and end."""

    def __init__(self, source: Ragged, target: Ragged) -> None:
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
    """Read, clean, split and encode pairs into `folder`; nothing is done when nothing has changed.

    `progress` is told how far it is.
    """
    folder, cleaning = Path(folder), Cleaning() if cleaning is None else cleaning
    target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer
    made_of = {
        "sources": fingerprints(expand(files), progress),
        "tokenizers": [tokenizer.fingerprint, target_tokenizer.fingerprint],
        "columns": list(columns),
        "cleaning": asdict(cleaning),
        "validation": validation,
        "seed": seed,
    }
    if unchanged(folder, made_of):
        return folder
    check_share(validation)
    with fresh_folder(folder) as working, at_rest(expand(files)):
        pairs, report = read_pairs(files, columns=columns, cleaning=cleaning, progress=progress)
        train, held = split_pairs(pairs, validation=validation, seed=seed, progress=progress)
        parts = {}
        for name, indices in (("train", train), ("validation", held)):
            chosen = [pairs[index] for index in indices]
            sides = {"source": tokenizer, "target": target_tokenizer}
            parts[name] = _encode(chosen, sides, working / name, progress)
        summary = {**report.as_dict(), "train": len(train), "validation": len(held)}
        write_manifest(working, made_of, parts=parts, report=summary)
    return folder


def open_pairs(folder: Path | str, part: str = "train") -> Pairs:
    """The pairs of a part, "train" or "validation"."""
    folder = Path(folder)
    entries = read_manifest(folder)["parts"][part]
    return Pairs(Ragged(folder, entries["source"]), Ragged(folder, entries["target"]))


def _encode(
    pairs: list[Pair], sides: dict[str, Tokenizer], path: Path, progress: Progress
) -> dict[str, dict[str, Any]]:
    entries = {}
    for side, tokenizer in sides.items():
        step = f"tokenizing the {side} side ({path.name})"
        with RaggedWriter(path.with_name(f"{path.name}-{side}"), dtype_for(tokenizer.size)) as writer:
            for start in range(0, len(pairs), BATCH):
                progress(step, start, len(pairs), "pairs")
                texts = [getattr(pair, side) for pair in pairs[start : start + BATCH]]
                for ids in tokenizer.encode_batch(texts):
                    writer.add(ids)
            entries[side] = writer.close()
    return entries
