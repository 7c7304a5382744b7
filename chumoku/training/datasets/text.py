"""data.kind = "text": windows of a long text, for a decoder, a masked encoder, or span corruption in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chumoku.data.batches import Batches, MaskedBatches, WindowBatches
from chumoku.data.corpus import Corpus
from chumoku.data.manifest import describe_report
from chumoku.data.shards import Shards, prepare_text
from chumoku.data.span_corruption import SpanBatches, count_spans, find_sentinels, window_length
from chumoku.text import Tokenizer, load
from chumoku.text.progress import Progress
from chumoku.training.datasets.prepared_folder import open_prepared_text
from chumoku.training.datasets.training_data import (
    TrainingData,
    hash_tokens,
    load_or_train_tokenizer,
    padded_vocabulary,
)
from chumoku.training.recipe import Recipe
from chumoku.training.settings import DataSettings, as_list
from chumoku.weights.bundle import Bundle

SENTINELS = 100  # of a new tokenizer, as in T5
DECODED_TOKENS = 1 << 20  # tokens decoded to measure the bytes per token


def count_sentinels(recipe: Recipe) -> int:
    """The number of sentinels of a new tokenizer: one for each span that is hidden in a window; 0 without spans."""
    config, rates = recipe.config(), _span_rates(recipe.data)
    if recipe.data.kind != "text" or config.kind != "encoder-decoder":
        return 0
    length = recipe.train.sequence_length or config.context
    return max(SENTINELS, count_spans(window_length(length, **rates), **rates).spans)


def _span_rates(data: DataSettings) -> dict[str, Any]:
    return {"density": data.mask_probability, "mean_span": data.mean_span_length}


def prepare_text_data(recipe: Recipe, folder: Path, init: Bundle | None, progress: Progress) -> TrainingData:
    data, train = recipe.data, recipe.train
    spans = recipe.config().kind == "encoder-decoder"
    rates = _span_rates(data)
    corpus = None if data.prepared else _open_corpus(data, data.files)
    if init is not None:
        tokenizer = init.tokenizer
    elif corpus is None:
        tokenizer = load(str(recipe.tokenizer.file))
    else:
        read_as = {"documents": data.documents, "field": data.field}
        sentinels = count_sentinels(recipe)
        tokenizer = load_or_train_tokenizer(
            recipe, corpus.documents, corpus.files, folder, read_as=read_as, progress=progress, sentinels=sentinels
        )
    config = recipe.config(padded_vocabulary(tokenizer.size, recipe))
    if corpus is None:
        shards = open_prepared_text(str(data.prepared), tokenizer)
    else:
        shards = prepare_text(corpus, tokenizer, folder / "shards", progress=progress)
    validation_shards, start = shards, 1 - data.held_out
    if data.validation_files:
        held_out, start = _open_corpus(data, data.validation_files), 0.0
        validation_shards = prepare_text(held_out, tokenizer, folder / "validation", progress=progress)
    length = train.sequence_length or config.context
    if spans:
        length = window_length(length, **rates)
    shape: dict[str, Any] = {"length": length, "documents": data.separate_documents}
    end = start if validation_shards is shards else 1.0
    batches: Batches = WindowBatches(shards, rows=train.batch_size, seed=train.seed, part=(0.0, end), **shape)
    rows = _validation_rows(validation_shards, start, length, train.batch_size)
    validation: Batches = WindowBatches(validation_shards, rows=rows, part=(start, 1.0), **shape)
    if spans:
        rates |= {"roles": tokenizer.roles, "sentinels": find_sentinels(tokenizer)}
        batches, validation = (SpanBatches(windows, **rates) for windows in (batches, validation))  # type: ignore[arg-type]
    if config.kind == "encoder":
        masking: dict[str, Any] = {"roles": tokenizer.roles, "vocabulary": tokenizer.size}
        masking["mask_rate"] = data.mask_probability
        batches, validation = (MaskedBatches(windows, **masking) for windows in (batches, validation))  # type: ignore[arg-type]
    return TrainingData(
        config,
        tokenizer,
        tokenizer,
        batches,
        validation,
        corpus=hash_tokens(shards.manifest["shards"], validation_shards.manifest["shards"]),
        length=length,
        fewest_rows=train.batch_size,
        bytes_a_token=None if spans else _bytes_per_token(validation_shards, start, tokenizer),
        notes=() if corpus is None else describe_report(folder / "shards", "documents"),
        tokens_a_term=1 / data.mask_probability if config.kind == "encoder" else 1.0,
    )


def _validation_rows(shards: Shards, start: float, length: int, most: int) -> int:
    """The rows of a validation batch: those of a training batch, or fewer if the validation part is small."""
    return max(1, min(most, (round((1 - start) * shards.tokens) - 1) // length))


def _bytes_per_token(shards: Shards, start: float, tokenizer: Tokenizer) -> float:
    first = min(round(start * shards.tokens), shards.tokens - 1)
    tokens = shards.read(first, min(shards.tokens, first + DECODED_TOKENS))
    return len(tokenizer.decode(tokens.tolist()).encode("utf-8", "replace")) / len(tokens)


def _open_corpus(data: DataSettings, files: Any) -> Corpus:
    return Corpus(as_list(files), documents=data.documents, field=data.field)
