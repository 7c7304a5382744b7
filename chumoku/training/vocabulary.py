"""The size of a vocabulary before its tokenizer exists, for counting and planning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.models.presets import PRESETS
from chumoku.text import load, train
from chumoku.training.settings import TokenizerSettings


class Sizes(NamedTuple):
    """Vocabulary sizes and the sentence that says where they come from; None where the model has its own."""

    target: int | None
    source: int | None
    sentence: str

    def over(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """A recipe's [model] table with these sizes where it has none."""
        sizes = {"vocabulary": self.target, "source_vocabulary": self.source}
        return {**{key: size for key, size in sizes.items() if size is not None}, **model}


def assumed_sizes(model: Mapping[str, Any], tokenizer: TokenizerSettings, *, given: int | None = None) -> Sizes:
    """The sizes that a recipe's [model] and [tokenizer] tables lead to; `given` stands in for the tokenizer's."""
    if "init" in model or ("vocabulary" in model and given is None):
        return Sizes(None, None, "")
    if given is not None:
        return Sizes(given, given if tokenizer.has_target else None, f"Vocabulary: {given:,}, as given.")
    preset = PRESETS.get(str(model.get("preset")), {}).get("vocabulary")
    first, reason = _one(tokenizer.file, tokenizer.kind, tokenizer.vocabulary, preset)
    if not tokenizer.has_target:
        size = _filled(first, tokenizer)
        return Sizes(size, None, f"Vocabulary: {size:,} tokens, {reason}.")
    kind, asked = tokenizer.target_kind or tokenizer.kind, tokenizer.target_vocabulary or tokenizer.vocabulary
    second, target_reason = _one(tokenizer.target_file, kind, asked, None)
    source, target = _filled(first, tokenizer), _filled(second, tokenizer)
    why = reason if reason == target_reason else f"{reason}; and {target_reason}"
    return Sizes(target, source, f"Vocabulary: {source:,} source and {target:,} target tokens, {why}.")


def _one(file: str | None, kind: str, asked: int, preset: int | None) -> tuple[int, str]:
    """The size of one tokenizer, and why."""
    if file is not None and Path(file).exists():
        return load(file).size, f"as {file} has them"
    if file is not None and preset is not None:
        return preset, f"assumed from the preset because {file} is not here"
    if file is not None:
        return asked, f"assumed because {file} is not here"
    if kind == "byte":
        return train(["a"], kind="byte").size, "the bytes and special tokens"
    return asked, "as the recipe's tokenizer asks; a small corpus may give fewer"


def _filled(size: int, tokenizer: TokenizerSettings) -> int:
    return -(-size // tokenizer.pad_to_multiple) * tokenizer.pad_to_multiple
