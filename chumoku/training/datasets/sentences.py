"""data.kind = "sentences": pairs (anchor, positive) or triplets with a negative, for a sentence encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from chumoku.config import settings_to_dict
from chumoku.data.manifest import describe_report, read_manifest
from chumoku.data.ragged_array import dtype_for
from chumoku.data.sentence_batches import SentenceBatches
from chumoku.data.sentences import SentenceCorpus, Sentences, prepare_sentences, read_corpus
from chumoku.data.text_files import find_files
from chumoku.decoding.embed import cut_and_frame
from chumoku.models.config import ModelConfig
from chumoku.text import Tokenizer
from chumoku.text.progress import Progress
from chumoku.training.datasets.training_data import (
    TrainingData,
    hash_tokens,
    load_or_train_tokenizer,
    padded_vocabulary,
)
from chumoku.training.recipe import Recipe
from chumoku.training.settings import as_list, languages_of
from chumoku.weights.bundle import Bundle


def prepare_sentence_data(recipe: Recipe, folder: Path, init: Bundle | None, progress: Progress) -> TrainingData:
    data, train = recipe.data, recipe.train
    files, validation_files = as_list(data.files), as_list(data.validation_files)
    reading: dict[str, Any] = {"columns": tuple(data.columns or (0, 1))}
    reading["languages"] = languages_of(data)
    held_out = 0.0 if validation_files else data.held_out
    corpus = cache(partial(read_corpus, files, **reading, validation=held_out, progress=progress))
    read_as = {**reading, "validation": held_out}

    def texts() -> Iterator[str]:  # a generator, so that the files are read only if a tokenizer is trained
        yield from corpus().texts()

    if init is not None:
        tokenizer = init.source_tokenizer
    else:
        tokenizer = load_or_train_tokenizer(
            recipe, texts, find_files(files), folder, read_as=read_as, progress=progress
        )
    config = recipe.config(padded_vocabulary(tokenizer.size, recipe))
    prepare = partial(_prepare, tokenizer=tokenizer, config=config, limit=train.sequence_length, progress=progress)
    prepared = prepare(files, folder / "sentences", corpus, read_as)
    validation_folder, part = prepared, "validation"
    if validation_files:
        held_out_corpus = partial(read_corpus, validation_files, **reading, validation=0.0, progress=progress)
        read_as["validation"], part = 0.0, "train"
        validation_folder = prepare(validation_files, folder / "validation", held_out_corpus, read_as)
    sentences, validation = Sentences(prepared), Sentences(validation_folder, part)
    pad = tokenizer.roles.pad or 0
    batches = SentenceBatches(sentences, rows=train.batch_size, pad=pad, seed=train.seed)
    lengths = [float(side.lengths.mean()) for side in sentences.sides.values()]
    return TrainingData(
        config,
        tokenizer,
        tokenizer,
        batches,
        SentenceBatches(validation, rows=min(train.batch_size, max(2, len(validation))), pad=pad),
        corpus=hash_tokens(read_manifest(prepared)["parts"], read_manifest(validation_folder)["parts"]),
        length=max(1, round(sum(lengths) / len(lengths))),
        fewest_rows=train.batch_size,
        notes=describe_report(prepared, "rows"),
        unit="rows",
        tokens_a_term=sum(lengths),
    )


def _prepare(
    files: list[str],
    folder: Path,
    corpus: Callable[[], SentenceCorpus],
    read_as: dict[str, Any],
    *,
    tokenizer: Tokenizer,
    config: ModelConfig,
    limit: int | None,
    progress: Progress,
) -> Path:
    """Encode the sentences as `embed` does: anchors with the model's prompt for queries, others for documents."""
    longest = config.max_seq_length or config.context
    limit = min(limit or longest, longest)
    prompts = config.prompts
    texts = {"anchor": prompts.query or prompts.default, "other": prompts.document or prompts.default}

    def encode(side_texts: list[str], side: str) -> list[list[int]]:
        prompt = texts["anchor" if side == "anchor" else "other"]
        return cut_and_frame(tokenizer.encode_batch([prompt + text for text in side_texts]), tokenizer, limit)[0]

    inputs = {**read_as, "columns": list(read_as["columns"]), "languages": list(read_as["languages"])}
    inputs |= {"tokenizer": tokenizer.fingerprint, "limit": limit, "prompts": settings_to_dict(prompts)}
    dtype: np.dtype[Any] = dtype_for(tokenizer.size)
    return prepare_sentences(files, folder, corpus=corpus, encode=encode, dtype=dtype, inputs=inputs, progress=progress)
