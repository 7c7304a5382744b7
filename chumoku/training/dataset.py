"""Recipe → tokenizers, training batches and validation batches.

The data is prepared once in the run's folder and only opened after that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chumoku.data import grammar
from chumoku.data.batches import Batches, MaskedBatches, PairBatches, WindowBatches
from chumoku.data.corpus import Corpus
from chumoku.data.manifest import read_manifest
from chumoku.data.packed_pairs import PackedPairBatches
from chumoku.data.pairs import Cleaning, Pair, read_pairs
from chumoku.data.prepared import Pairs, apply_weights, open_pairs, prepare_pairs, weights_by_pair
from chumoku.data.shards import Shards, prepare_text
from chumoku.data.split import split_pairs
from chumoku.data.text_files import find_files
from chumoku.data.tokenizer_cache import prepare_tokenizer
from chumoku.errors import CorpusError
from chumoku.models.config import ModelConfig
from chumoku.text import Tokenizer, load
from chumoku.text.progress import Progress, silent
from chumoku.training.recipe import Recipe
from chumoku.training.settings import DataSettings, Files, as_list
from chumoku.weights.bundle import Bundle

DECODED_TOKENS = 1 << 20  # tokens decoded to measure the bytes per token


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


def prepare(recipe: Recipe, init: Bundle | None = None, progress: Progress = silent) -> TrainingData:
    """Read and tokenize the recipe's data, or open it if nothing has changed.

    `init` is the model to start from, whose tokenizers are used. `progress` is called during long work.
    """
    folder = Path(recipe.train.out) / "data"
    prepare_kind = _prepare_text if recipe.data.kind == "text" else _prepare_pairs
    return prepare_kind(recipe, folder, init, progress)


def _prepare_text(recipe: Recipe, folder: Path, init: Bundle | None, progress: Progress) -> TrainingData:
    data, train = recipe.data, recipe.train
    corpus = _open_corpus(data, data.files)
    if init is not None:
        tokenizer = init.tokenizer
    else:
        read_as = {"documents": data.documents, "field": data.field}
        tokenizer = _load_or_train(recipe, corpus.documents, corpus.files, folder, read_as=read_as, progress=progress)
    config = recipe.config(_padded_size(tokenizer.size, recipe))
    shards = prepare_text(corpus, tokenizer, folder / "shards", progress=progress)
    validation_shards, start = shards, 1 - data.held_out
    if data.validation_files:
        corpus, start = _open_corpus(data, data.validation_files), 0.0
        validation_shards = prepare_text(corpus, tokenizer, folder / "validation", progress=progress)
    length = train.sequence_length or config.context
    shape: dict[str, Any] = {"length": length, "documents": data.separate_documents}
    end = start if validation_shards is shards else 1.0
    batches: Batches = WindowBatches(shards, rows=train.batch_size, seed=train.seed, part=(0.0, end), **shape)
    rows = _validation_rows(validation_shards, start, length, train.batch_size)
    validation: Batches = WindowBatches(validation_shards, rows=rows, part=(start, 1.0), **shape)
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
        corpus=_hash(shards.manifest["shards"], validation_shards.manifest["shards"]),
        length=length,
        fewest_rows=train.batch_size,
        bytes_a_token=_bytes_per_token(validation_shards, start, tokenizer),
    )


def _validation_rows(shards: Shards, start: float, length: int, most: int) -> int:
    """The rows of a validation batch: those of a training batch, or fewer if the validation part is small."""
    return max(1, min(most, (round((1 - start) * shards.tokens) - 1) // length))


def _bytes_per_token(shards: Shards, start: float, tokenizer: Tokenizer) -> float:
    first = min(round(start * shards.tokens), shards.tokens - 1)
    tokens = shards.read(first, min(shards.tokens, first + DECODED_TOKENS))
    return len(tokenizer.decode(tokens.tolist()).encode("utf-8", "replace")) / len(tokens)


def _prepare_pairs(recipe: Recipe, folder: Path, init: Bundle | None, progress: Progress) -> TrainingData:
    data = recipe.data
    files, validation_files = data.files, data.validation_files or None
    if data.kind == "embedded":
        files, validation_files = _write_embedded(recipe, folder)
    held_out = 0.0 if validation_files is not None else data.held_out
    columns = (data.columns[0], data.columns[1]) if data.columns else (0, 1)
    languages = (data.languages[0], data.languages[1]) if data.languages else (None, None)
    reading: dict[str, Any] = {"columns": columns, "cleaning": Cleaning(languages=languages)}

    def texts(*sides: int) -> Iterator[str]:
        pairs, report = read_pairs(as_list(files), **reading, progress=progress)
        indices = split_pairs(pairs, validation=held_out, progress=progress)[0]
        if data.weights is not None:
            indices = apply_weights(pairs, indices, weights_by_pair(as_list(files), data.weights, report))
        for index in indices:
            for side in sides:
                yield pairs[index][side]

    if init is not None:
        source, target = init.source_tokenizer, init.tokenizer
    else:
        read_as = {"columns": list(columns), "cleaning": asdict(reading["cleaning"]), "validation": held_out}
        read_as["weights"] = data.weights
        paths = find_files(as_list(files))
        sides = {"source": (0,), "target": (1,)} if recipe.tokenizer.has_target else {"tokenizer": (0, 1)}
        tokenizers = [
            _load_or_train(recipe, lambda: texts(*which), paths, folder, read_as=read_as, side=name, progress=progress)  # noqa: B023
            for name, which in sides.items()
        ]
        source, target = tokenizers[0], tokenizers[-1]
    own = _padded_size(source.size, recipe) if source is not target else None
    config = recipe.config(_padded_size(target.size, recipe), own)
    reading |= {"target_tokenizer": target, "both_directions": data.both_directions, "progress": progress}
    prepared = prepare_pairs(
        as_list(files), source, folder / "pairs", validation=held_out, weights=data.weights, **reading
    )
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
        corpus=_hash(read_manifest(prepared)["parts"], read_manifest(validation_folder)["parts"]),
        length=max(1, round(float(pairs.target.lengths.mean()))),
        fewest_rows=batches.fewest_rows,
    )


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


def _load_or_train(
    recipe: Recipe,
    texts: Any,
    files: list[Path],
    folder: Path,
    *,
    read_as: Any,
    progress: Progress,
    side: str = "tokenizer",
) -> Tokenizer:
    """The tokenizer of a side: opened from the recipe's file, or trained on the texts."""
    settings = recipe.tokenizer
    target = side == "target"
    file = settings.target_file if target else settings.file
    if file is not None:
        return load(file)
    kind = settings.target_kind if target and settings.target_kind else settings.kind
    vocabulary = settings.target_vocabulary if target and settings.target_vocabulary else settings.vocabulary
    options: dict[str, Any] = {"kind": kind, "vocabulary": vocabulary, "split_digits": settings.split_digits}
    options["split_scripts"] = settings.split_scripts
    if recipe.data.both_directions:
        options["languages"] = recipe.data.languages
    return prepare_tokenizer(
        texts(), files, folder / side, read_as={**read_as, "side": side}, progress=progress, **options
    )


def _padded_size(size: int, recipe: Recipe) -> int:
    """The vocabulary size rounded up to tokenizer.pad_to_multiple, which makes matrix products faster."""
    return -(-size // recipe.tokenizer.pad_to_multiple) * recipe.tokenizer.pad_to_multiple


def _open_corpus(data: DataSettings, files: Any) -> Corpus:
    return Corpus(as_list(files), documents=data.documents, field=data.field)


def _hash(*entries: Any) -> str:
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
