"""Texts with classes or tags → token ids on disk, and batches of them.

    tokens   [CLS] w₁ … wₙ [SEP]           the tokens that the tokenizer puts around a text, or its end token after it
    classes  one label for each text       [B]
    tags     one label for each word, at its first token; the other tokens have none       [B, T]

A text with more tokens than `limit` is truncated. Stored labels are 1 + their index; 0 means no label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chumoku.data.batches import ALL, IGNORE, Share, check_index, pad_sequences
from chumoku.data.labeled import Columns, Example, read_examples, sort_labels
from chumoku.data.manifest import is_up_to_date, read_manifest, replace_folder, write_manifest
from chumoku.data.order import Indices, Permutation
from chumoku.data.pairs import Pair
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter, dtype_for
from chumoku.data.split import Parts, Split, split_pairs
from chumoku.data.text_files import compute_fingerprints, find_files, refuse_if_changed
from chumoku.errors import CorpusError, did_you_mean
from chumoku.text import Tokenizer
from chumoku.text.progress import Progress, silent

BATCH = 1 << 12


@dataclass(frozen=True)
class LabeledTexts:
    """Encoded texts: `tokens[i]` with what surrounds them, and `labels[i]`, stored as described above."""

    tokens: RaggedArray
    labels: RaggedArray

    def __len__(self) -> int:
        return len(self.tokens)


def split_examples(
    examples: Sequence[Example],
    validation: float,
    seed: int = 0,
    progress: Progress = silent,
    *,
    split: Split = split_pairs,
) -> Parts:
    """The indices of training and validation examples; similar texts are never separated."""
    pairs = [Pair(example.text, example.text) for example in examples]
    return split(pairs, validation=validation, seed=seed, progress=progress)


def prepare_examples(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    tagged: bool,
    limit: int,
    columns: Columns | None = None,
    labels: Sequence[str] | None = None,
    validation: float = 0.0,
    seed: int = 0,
    split: Split = split_pairs,
    progress: Progress = silent,
) -> Path:
    """Read, split and encode examples into `folder`, and return it. Does nothing if no input has changed.

    limit        most tokens of a text
    labels       the allowed labels, in their order; by default those of the files
    validation   the fraction of examples for validation
    split        a `CachedSplit` if the same examples have been split before
    """
    inputs = {
        "sources": compute_fingerprints(find_files(files), progress),
        "tokenizer": tokenizer.fingerprint,
        "tagged": tagged,
        "limit": limit,
        "columns": None if columns is None else list(columns),
        "labels": None if labels is None else list(labels),
        "validation": validation,
        "seed": seed,
    }
    if is_up_to_date(folder, inputs):
        return folder
    with replace_folder(folder) as working, refuse_if_changed(find_files(files)):
        examples, report = read_examples(files, tagged=tagged, columns=columns, progress=progress)
        names = sort_labels(examples) if labels is None else list(labels)
        _check_labels(examples, names, files)
        parts: dict[str, Any] = {}
        truncated = 0
        indices = split_examples(examples, validation, seed, progress, split=split)
        for name, chosen in zip(("train", "validation"), indices, strict=True):
            rows = [examples[index] for index in chosen]
            parts[name], cut = _encode(rows, names, tokenizer, working / name, tagged, limit, progress)
            truncated += cut
        counts = {name: len(chosen) for name, chosen in zip(("train", "validation"), indices, strict=True)}
        summary = {**report.as_dict(), "truncated": truncated, **counts}
        write_manifest(working, inputs, parts=parts, labels=names, report=summary)
    return folder


def open_examples(folder: Path, part: str = "train") -> LabeledTexts:
    """The examples of a part, "train" or "validation"."""
    entries = read_manifest(folder)["parts"][part]
    return LabeledTexts(RaggedArray(folder, entries["source"]), RaggedArray(folder, entries["target"]))


def _check_labels(examples: Sequence[Example], names: list[str], files: Sequence[str | Path]) -> None:
    known = set(names)
    for example in examples:
        for label in example.labels:
            if label not in known:
                hint = did_you_mean(label, names)
                raise CorpusError(
                    f"The label '{label[:40]}' in {files[0]} is not one of the model's {len(names)} labels: "
                    f"{', '.join(names)[:200]}. {hint or 'Add training texts with it, or remove it.'}"
                )
    if len(names) < 2:
        raise CorpusError(f"All labels in {files[0]} are '{names[0][:40]}'; two or more are needed. Check the columns.")


def _encode(
    examples: list[Example],
    names: list[str],
    tokenizer: Tokenizer,
    path: Path,
    tagged: bool,
    limit: int,
    progress: Progress,
) -> tuple[dict[str, Any], int]:
    """Write tokens and labels; returns the manifest entries, and how many texts were truncated."""
    numbers, truncated = {name: number for number, name in enumerate(names, start=1)}, 0
    before, after = tokenizer.frame
    room = limit - len(before) - len(after)
    if room < 1:
        raise CorpusError(f"{limit} tokens leave no room for a text; raise train.sequence_length or model.context.")
    tokens = RaggedArrayWriter(path.with_name(f"{path.name}-source"), dtype_for(tokenizer.size))
    labels = RaggedArrayWriter(path.with_name(f"{path.name}-target"), dtype_for(len(names) + 1))
    with tokens, labels:
        for start in range(0, len(examples), BATCH):
            progress(f"tokenizing ({path.name})", start, len(examples), "texts")
            part = examples[start : start + BATCH]
            for example, (ids, words) in zip(part, _encode_texts(part, tokenizer, tagged), strict=True):
                truncated += len(ids) > room
                tokens.add([*before, *ids[:room], *after])
                if tagged:
                    tags = first_token_labels(words[:room], [numbers[label] for label in example.labels])
                    labels.add([0] * len(before) + tags + [0] * len(after))
                else:
                    labels.add([numbers[example.labels[0]]])
        entries = {"source": tokens.close(), "target": labels.close()}
    return entries, truncated


def _encode_texts(examples: list[Example], tokenizer: Tokenizer, tagged: bool) -> list[tuple[list[int], list[int]]]:
    """The ids of each text, and with tags the number of the word that each id belongs to."""
    if tagged:
        return [tokenizer.encode_words(example.words) for example in examples]
    return [(ids, []) for ids in tokenizer.encode_batch([example.text for example in examples])]


def first_token_labels(words: Sequence[int], labels: Sequence[int]) -> list[int]:
    """For each token the label of its word if it is the word's first token, else 0; `words` are word numbers."""
    return [labels[word] if place == 0 or words[place - 1] != word else 0 for place, word in enumerate(words)]


class LabeledBatches:
    """Rows of texts in random order, padded on the right.

    drop_last   leave out the last batch of an epoch if it is not full; in the next epoch other texts are in it
    """

    def __init__(
        self, texts: LabeledTexts, *, rows: int, tagged: bool, pad: int | None, seed: int = 0, drop_last: bool = True
    ) -> None:
        if not len(texts):
            raise CorpusError(
                "There are no texts in this part. Give more texts (similar ones count as one), or a larger share."
            )
        self.texts, self.tagged, self.seed = texts, tagged, seed
        self.rows, self.drop_last, self._pad = min(rows, len(texts)), drop_last, pad or 0

    def __len__(self) -> int:
        return len(self.texts) // self.rows if self.drop_last else -(-len(self.texts) // self.rows)

    def samples(self, epoch: int, index: int) -> Indices:
        check_index(self, index)
        positions = np.arange(index * self.rows, min((index + 1) * self.rows, len(self.texts)))
        return Permutation(len(self.texts), seed=self.seed, epoch=epoch)(positions)

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        samples = share.select(self.samples(epoch, index))
        tokens, real = pad_sequences(self.texts.tokens, samples, filler=self._pad)
        stored, _ = pad_sequences(self.texts.labels, samples, filler=0)
        labels = torch.where(stored > 0, stored - 1, IGNORE)
        batch = {"tokens": tokens, "labels": labels if self.tagged else labels[:, 0]}
        return batch if real.all() else {**batch, "mask": real}
