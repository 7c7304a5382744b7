"""Vocabulary sizes before the tokenizer exists, for `count` and the dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.models.presets import PRESETS
from chumoku.text import load, train
from chumoku.text.special_tokens import OURS
from chumoku.text.training import check_vocabulary
from chumoku.training.settings import TokenizerSettings


class VocabularySizes(NamedTuple):
    """Vocabulary sizes and a sentence about their source; None if the [model] table sets them itself."""

    target: int | None
    source: int | None
    sentence: str

    def over(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """A recipe's [model] table with these sizes added where they are missing."""
        sizes = {"vocabulary": self.target, "source_vocabulary": self.source}
        return {**{key: size for key, size in sizes.items() if size is not None}, **model}


def vocabulary_sizes(
    model: Mapping[str, Any],
    tokenizer: TokenizerSettings,
    *,
    override: int | None = None,
    specials: Sequence[str] = OURS,
) -> VocabularySizes:
    """The vocabulary sizes of a recipe's [model] and [tokenizer] tables.

    override    replaces the tokenizer's size
    specials    the special tokens of a new tokenizer
    """
    if "init" in model or ("vocabulary" in model and override is None):
        return VocabularySizes(None, None, "")
    if override is not None:
        return VocabularySizes(
            override, override if tokenizer.has_target else None, f"Vocabulary: {override:,}, as given."
        )
    preset = PRESETS.get(str(model.get("preset")), {}).get("vocabulary")
    first, reason = _tokenizer_size(tokenizer.file, tokenizer.kind, tokenizer.vocabulary, preset, specials)
    if not tokenizer.has_target:
        size = _padded(first, tokenizer)
        return VocabularySizes(size, None, f"Vocabulary: {size:,} tokens, {reason}.")
    kind, requested = tokenizer.target_kind or tokenizer.kind, tokenizer.target_vocabulary or tokenizer.vocabulary
    second, target_reason = _tokenizer_size(tokenizer.target_file, kind, requested, None, specials)
    source, target = _padded(first, tokenizer), _padded(second, tokenizer)
    sizes = f"Vocabulary: {source:,} source and {target:,} target tokens, {reason}."
    if reason != target_reason:
        sizes = f"Vocabulary: {source:,} source tokens, {reason}, and {target:,} target tokens, {target_reason}."
    return VocabularySizes(target, source, sizes)


def _tokenizer_size(
    file: str | None, kind: str, requested: int, preset: int | None, specials: Sequence[str]
) -> tuple[int, str]:
    """The size of one tokenizer, and the reason as text; UsageError if a tokenizer of this size cannot be trained."""
    if file is not None and Path(file).exists():
        return load(file).size, f"read from {file}"
    if file is not None and preset is not None:
        return preset, f"assumed from the preset because {file} does not exist"
    if file is not None:
        return requested, f"assumed because {file} does not exist"
    check_vocabulary(kind, requested, specials)
    if kind == "byte":
        return train(["a"], kind="byte").size, "the bytes and special tokens"
    return requested, "as set in the recipe's tokenizer; a small corpus may give fewer"


def _padded(size: int, tokenizer: TokenizerSettings) -> int:
    return -(-size // tokenizer.pad_to_multiple) * tokenizer.pad_to_multiple
