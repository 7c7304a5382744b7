"""data.kind = "pairs" and "embedded": sentence pairs for an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from chumoku.data import grammar
from chumoku.data.batches import PairBatches
from chumoku.data.manifest import describe_report, read_manifest
from chumoku.data.packed_pairs import PackedPairBatches
from chumoku.data.pairs import Cleaning, Pair, read_pairs
from chumoku.data.prepared import Pairs, apply_weights, open_pairs, prepare_pairs, weights_by_pair
from chumoku.data.split import CachedSplit
from chumoku.data.text_files import find_files
from chumoku.errors import CorpusError
from chumoku.models.config import ModelConfig
from chumoku.text import Tokenizer, load
from chumoku.text.progress import Progress
from chumoku.training.datasets.prepared_folder import find_prepared_pairs
from chumoku.training.datasets.training_data import (
    TrainingData,
    hash_tokens,
    load_or_train_tokenizer,
    padded_vocabulary,
)
from chumoku.training.recipe import Recipe
from chumoku.training.settings import Files, as_list, columns_of, languages_of
from chumoku.weights.bundle import Bundle


def prepare_pair_data(recipe: Recipe, folder: Path, init: Bundle | None, progress: Progress) -> TrainingData:
    data = recipe.data
    files, validation_files = data.files, data.validation_files or None
    if data.kind == "embedded":
        files, validation_files = _write_embedded(recipe, folder)
    held_out = 0.0 if validation_files is not None else data.held_out
    columns = columns_of(data)
    reading: dict[str, Any] = {"columns": columns, "cleaning": Cleaning(languages=languages_of(data))}
    split = CachedSplit()

    def texts(*sides: int) -> Iterator[str]:
        pairs, report = read_pairs(as_list(files), **reading, progress=progress)
        indices = split(pairs, validation=held_out, progress=progress)[0]
        if data.weights is not None:
            indices = apply_weights(pairs, indices, weights_by_pair(as_list(files), data.weights, report))
        for index in indices:
            for side in sides:
                yield pairs[index][side]

    if init is not None:
        source, target = init.source_tokenizer, init.tokenizer
    elif data.prepared:
        source = target = load(str(recipe.tokenizer.file))
    else:
        read_as = {"columns": list(columns), "cleaning": asdict(reading["cleaning"]), "validation": held_out}
        read_as["weights"] = data.weights
        training: dict[str, Any] = {"read_as": read_as, "progress": progress}
        source, target = _load_or_train_tokenizers(recipe, texts, find_files(as_list(files)), folder, **training)
    own = padded_vocabulary(source.size, recipe) if source is not target else None
    config = recipe.config(padded_vocabulary(target.size, recipe), own)
    reading |= {"target_tokenizer": target, "both_directions": data.both_directions, "progress": progress}
    if data.prepared:
        prepared = find_prepared_pairs(data.prepared, source, target)
    else:
        parts: dict[str, Any] = {"validation": held_out, "weights": data.weights, "split": split}
        prepared = prepare_pairs(as_list(files), source, folder / "pairs", **parts, **reading)
    validation_folder, part = prepared, "validation"
    if validation_files is not None:
        names, part = as_list(validation_files), "train"
        validation_folder = prepare_pairs(names, source, folder / "validation", validation=0.0, **reading)
    pairs = _check_lengths(open_pairs(prepared), config)
    options: dict[str, Any] = {"source_roles": source.roles, "target_roles": target.roles}
    options["tokens"] = recipe.train.batch_tokens
    padded = PairBatches(pairs, seed=recipe.train.seed, **options)
    batches = PackedPairBatches(padded) if recipe.train.packing else padded
    return TrainingData(
        config,
        target,
        source,
        batches,
        PairBatches(_check_lengths(open_pairs(validation_folder, part), config), **options),
        corpus=hash_tokens(read_manifest(prepared)["parts"], read_manifest(validation_folder)["parts"]),
        length=max(1, round(float(pairs.target.lengths.mean()))),
        fewest_rows=batches.fewest_rows,
        notes=() if data.kind == "embedded" else describe_report(prepared, "pairs"),
    )


def _load_or_train_tokenizers(
    recipe: Recipe, texts: Callable[..., Iterator[str]], paths: list[Path], folder: Path, **training: Any
) -> tuple[Tokenizer, Tokenizer]:
    """The source and target tokenizers, which may be one; `texts(0, 1)` are the sentences of both sides."""
    sides = {"source": (0,), "target": (1,)} if recipe.tokenizer.has_target else {"tokenizer": (0, 1)}
    tokenizers = [
        load_or_train_tokenizer(recipe, partial(texts, *which), paths, folder, side=name, **training)
        for name, which in sides.items()
    ]
    return tokenizers[0], tokenizers[-1]


def _check_lengths(pairs: Pairs, config: ModelConfig) -> Pairs:
    """The pairs; CorpusError if one is longer than the model's table of learned positions."""
    longest = max(int(side.lengths.max(initial=0)) for side in (pairs.source, pairs.target)) + 1
    if config.position == "learned" and longest > config.context:
        raise CorpusError(
            f"The longest pair has {longest:,} tokens, but model.context is {config.context:,}. Raise model.context, "
            "or choose a model.position other than 'learned'."
        )
    return pairs


def _write_embedded(recipe: Recipe, folder: Path) -> tuple[Files, Files]:
    """Write the embedded corpus as train, validation and test files; returns the first two."""
    parts = grammar.split(recipe.data.count)
    folder.mkdir(parents=True, exist_ok=True)
    for name in parts._fields:
        path, lines = folder / f"{name}.tsv", _as_tsv(getattr(parts, name))
        if not path.exists() or path.read_bytes() != lines:
            path.write_bytes(lines)
    return [str(folder / "train.tsv")], [str(folder / "validation.tsv")]


def _as_tsv(pairs: Sequence[Pair]) -> bytes:
    return "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs).encode()
