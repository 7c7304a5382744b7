"""data.kind = "labels" and "tags": texts with a class, or words with tags, for an encoder or a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chumoku.data.labeled import read_examples, sort_labels
from chumoku.data.labeled_batches import LabeledBatches, open_examples, prepare_examples, split_examples
from chumoku.data.manifest import describe_report, read_manifest
from chumoku.data.split import CachedSplit
from chumoku.data.text_files import find_files
from chumoku.text.progress import Progress
from chumoku.training.datasets.training_data import (
    TrainingData,
    hash_tokens,
    load_or_train_tokenizer,
    padded_vocabulary,
)
from chumoku.training.recipe import Recipe
from chumoku.training.settings import LABEL_HEADS, as_list
from chumoku.weights.bundle import Bundle


def prepare_labeled_data(recipe: Recipe, folder: Path, init: Bundle | None, progress: Progress) -> TrainingData:
    data, files, tagged = recipe.data, as_list(recipe.data.files), recipe.data.kind == "tags"
    held_out = 0.0 if data.validation_files else data.held_out
    reading: dict[str, Any] = {"tagged": tagged, "columns": data.columns}
    split = CachedSplit()

    def texts() -> Iterator[str]:
        examples, _ = read_examples(files, **reading, progress=progress)
        for index in split_examples(examples, held_out, progress=progress, split=split)[0]:
            yield examples[index].text

    if init is not None:
        tokenizer = init.tokenizer
    else:
        read_as = {**reading, "validation": held_out}
        tokenizer = load_or_train_tokenizer(
            recipe, texts, find_files(files), folder, read_as=read_as, progress=progress
        )
    vocabulary = padded_vocabulary(tokenizer.size, recipe)
    limit = recipe.config(vocabulary).max_seq_length or recipe.config(vocabulary).context
    labels = choose_labels(recipe, init, files, reading)
    encoding: dict[str, Any] = {**reading, "limit": limit, "progress": progress, "labels": labels}
    prepared = prepare_examples(files, tokenizer, folder / "labels", validation=held_out, split=split, **encoding)
    validation_folder, part = prepared, "validation"
    if data.validation_files:
        names, part = as_list(data.validation_files), "train"
        validation_folder = prepare_examples(names, tokenizer, folder / "validation", **encoding)
    config = recipe.config(vocabulary, labels=labels)
    options: dict[str, Any] = {"rows": recipe.train.batch_size, "tagged": tagged, "pad": tokenizer.roles.pad}
    train = LabeledBatches(open_examples(prepared), seed=recipe.train.seed, **options)
    return TrainingData(
        config,
        tokenizer,
        tokenizer,
        train,
        LabeledBatches(open_examples(validation_folder, part), drop_last=False, **options),
        corpus=hash_tokens(read_manifest(prepared)["parts"], read_manifest(validation_folder)["parts"]),
        length=max(1, round(float(train.texts.tokens.lengths.mean()))),
        fewest_rows=train.rows,
        notes=describe_report(prepared, "sentences" if tagged else "texts"),
        unit="words" if tagged else "texts",
        tokens_a_term=len(train.texts.tokens.tokens) / max(1, int((train.texts.labels.tokens[:] != 0).sum())),
    )


def choose_labels(recipe: Recipe, init: Bundle | None, files: list[str], reading: dict[str, Any]) -> list[str]:
    """The labels in their order: of [model], of `init` if it has all that occur, or of the training files."""
    if recipe.model.get("labels"):
        return list(recipe.model["labels"])
    found = sort_labels(read_examples(files, **reading)[0])
    same_head = init is not None and init.config.head_kind == LABEL_HEADS[recipe.data.kind]
    known = list(init.config.labels or ()) if init is not None and same_head else []
    return known if set(found) <= set(known) else found
