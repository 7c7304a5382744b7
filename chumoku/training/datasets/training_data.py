"""The data of a run, and what every kind of data needs: a tokenizer, a vocabulary size and a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chumoku.data.batches import Batches
from chumoku.data.tokenizer_cache import prepare_tokenizer
from chumoku.models.config import ModelConfig
from chumoku.text import Tokenizer, load
from chumoku.text.progress import Progress
from chumoku.training.recipe import Recipe
from chumoku.training.settings import GrpoSettings


@dataclass(frozen=True)
class TrainingData:
    config: ModelConfig
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer  # the same object if there is only one
    train: Batches
    validation: Batches
    corpus: str  # a hash of all training and validation tokens
    length: int  # tokens in a window, or in an average target
    fewest_rows: int  # rows of the smallest batch
    bytes_a_token: float | None = None  # bytes per token of the validation text
    notes: tuple[str, ...] = ()  # sentences about the data that the run prints
    unit: str = "tokens"  # what the loss is a mean over
    tokens_a_term: float = 1.0  # tokens that the model reads for one of them
    grpo: GrpoSettings | None = None  # of prompts


def load_or_train_tokenizer(
    recipe: Recipe,
    texts: Any,
    files: list[Path],
    folder: Path,
    *,
    read_as: Any,
    progress: Progress,
    side: str = "tokenizer",
    sentinels: int = 0,
) -> Tokenizer:
    """The tokenizer of a side: opened from the recipe's file, or trained on the texts.

    sentinels    how many a trained one gets, as in `text.train`
    """
    settings = recipe.tokenizer
    target = side == "target"
    file = settings.target_file if target else settings.file
    if file is not None:
        return load(file)
    kind = settings.target_kind if target and settings.target_kind else settings.kind
    vocabulary = settings.target_vocabulary if target and settings.target_vocabulary else settings.vocabulary
    options: dict[str, Any] = {"kind": kind, "vocabulary": vocabulary, "split_digits": settings.split_digits}
    options["split_scripts"] = settings.split_scripts
    options["whole_words"] = settings.whole_words and not (target and settings.target_kind)
    if recipe.data.both_directions:
        options["languages"] = recipe.data.languages
    if sentinels:
        options["sentinels"] = sentinels
    return prepare_tokenizer(
        texts(), files, folder / side, read_as={**read_as, "side": side}, progress=progress, **options
    )


def padded_vocabulary(size: int, recipe: Recipe) -> int:
    """The vocabulary size rounded up to tokenizer.pad_to_multiple, which makes matrix products faster."""
    return -(-size // recipe.tokenizer.pad_to_multiple) * recipe.tokenizer.pad_to_multiple


def hash_tokens(*entries: Any) -> str:
    """A hash of the training and validation tokens that does not depend on where the files are."""
    return hashlib.sha256("\n".join(_find_hashes(entries)).encode()).hexdigest()


def _find_hashes(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "sha256" in value:
            yield value["sha256"]
        else:
            for inner in value.values():
                yield from _find_hashes(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _find_hashes(inner)
