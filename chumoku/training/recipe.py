"""A recipe: all settings of a run in one TOML file.

    [model]  [tokenizer]  [data]  [train]  [optimizer]  [schedule]  [lora]  [preference]

The keys of [model] are those of `ModelConfig`, or `preset` and the keys that differ from it; `vocabulary` defaults to
the tokenizer's size. `init` instead names a model to start from, of any supported format, with its own config and
tokenizers. [lora] trains an adapter and leaves the weights of `init` unchanged. All problems of all tables are reported
at once, before anything else happens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chumoku.config import (
    MAX_FILE_BYTES,
    Settings,
    find_problems,
    load_toml,
    override,
    parse_settings,
    parse_value,
    rename_former_keys,
    settings_to_dict,
)
from chumoku.errors import ChumokuError, ConfigError, Problem, UsageError
from chumoku.models.config import SCORE_POSITIONS, ModelConfig
from chumoku.models.presets import deep_merge, read_model_config
from chumoku.safe_files import read_json
from chumoku.training.default_learning_rate import default_learning_rate
from chumoku.training.schedule import Schedule, paper_peak
from chumoku.training.settings import (
    AdapterSettings,
    DataSettings,
    OptimizerSettings,
    PreferenceSettings,
    ScheduleSettings,
    TokenizerSettings,
    TrainSettings,
)

BUILT_IN = Path(__file__).parent.parent / "recipes"
PLACEHOLDER = 1 << 13  # vocabulary size until the tokenizer exists
RECIPE_FILE = "recipe.json"  # in a run's folder: the recipe it was trained with
COMMA_LISTS = ("columns", "languages")  # keys of [data] that may be comma-separated text
KEYS_WITH_INIT = ("dropout", "context")  # keys of [model] that are allowed together with init
DATA_KINDS = {  # by the kind of model
    "decoder": ("text", "chat", "preferences", "own"),
    "encoder": ("text", "own"),
    "encoder-decoder": ("pairs", "embedded", "own"),
}


TABLES: dict[str, type[Settings]] = {
    "tokenizer": TokenizerSettings,
    "data": DataSettings,
    "train": TrainSettings,
    "optimizer": OptimizerSettings,
    "schedule": ScheduleSettings,
    "lora": AdapterSettings,
    "preference": PreferenceSettings,
}
OPTIONAL_TABLES = ("lora", "preference")


@dataclass(frozen=True)
class Recipe:
    """The checked settings of a run. `model` is the [model] table as written; `config` adds what is missing."""

    model: Mapping[str, Any]
    tokenizer: TokenizerSettings
    data: DataSettings
    train: TrainSettings
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    lora: AdapterSettings | None = None  # None if there is no [lora] table
    preference: PreferenceSettings | None = None  # None unless data.kind is preferences

    @property
    def init(self) -> str | None:
        """The name of the model to start from; None to train from scratch."""
        return self.model.get("init")

    def config(self, vocabulary: int | None = None, source_vocabulary: int | None = None) -> ModelConfig:
        """The model's config for tokenizers of these sizes; a placeholder size is used without one."""
        if self.init is not None:
            return config_from_init(self.init, self.model)
        values = {"vocabulary": vocabulary or PLACEHOLDER, **self.model}
        if source_vocabulary is not None:
            values.setdefault("source_vocabulary", source_vocabulary)
        config = read_model_config(values)
        for key, found, needed in (
            ("model.vocabulary", config.vocabulary, vocabulary or 0),
            ("model.source_vocabulary", config.source_tokens, source_vocabulary or 0),
        ):
            if found < needed:
                sentence = f"{found:,} is too small: the tokenizer has {needed:,} tokens. Leave this key out."
                raise ConfigError([Problem(key, sentence)])
        return config

    @functools.cached_property
    def peak_learning_rate(self) -> float:
        """The peak learning rate: optimizer.learning_rate, or a default for the optimizer, schedule and width."""
        if self.optimizer.learning_rate is not None:
            return self.optimizer.learning_rate
        width = self.config().width
        if self.schedule.kind == "inverse_sqrt" and self.schedule.warmup > 0 and self.init is None:
            return paper_peak(width, self.schedule.warmup)
        fine_tuning = self.init is not None and self.lora is None
        return default_learning_rate(self.optimizer.kind, width, fine_tuning=fine_tuning)

    @property
    def lr_schedule(self) -> Schedule:
        return Schedule(**settings_to_dict(self.schedule), steps=self.train.steps)

    def as_dict(self) -> dict[str, Any]:
        """All tables with defaults filled in, so that a stored recipe stays the same if a default changes."""
        tables = {name: settings_to_dict(table) for name in TABLES if (table := getattr(self, name)) is not None}
        if self.init is not None:
            del tables["tokenizer"]  # model.init brings its own; a recipe with both is refused
        tables["optimizer"]["learning_rate"] = self.peak_learning_rate
        return {"model": dict(self.model), **tables}


def load_recipe(path: Path | str, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, a run's folder, or a built-in recipe by name; `changes` are key=value overrides."""
    return read_recipe(override(read_tables(path), changes))


def read_tables(path: Path | str) -> dict[str, Any]:
    """The unchecked tables of a recipe; `path` is as in `load_recipe`."""
    place, shipped = Path(path), BUILT_IN / f"{path}.toml"
    if place.is_dir():
        return _tables_of_run(place)
    if not place.suffix and not place.exists() and shipped.exists():
        place = shipped
    return load_toml(place)


def _tables_of_run(folder: Path) -> dict[str, Any]:
    """The recipe stored in a run's folder, with `train.out` set to the folder's current path."""
    if not (folder / RECIPE_FILE).is_file():
        raise UsageError(
            f"{folder} is a folder without {RECIPE_FILE}, so it is not a run. Give a recipe file (.toml) "
            "or a run's folder."
        )
    tables = renamed_tables(read_json(folder / RECIPE_FILE, max_bytes=MAX_FILE_BYTES))
    if isinstance(tables.get("train"), dict):
        tables["train"]["out"] = str(folder)
    return tables


def renamed_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a stored recipe with the key names of earlier versions replaced by the current ones."""
    known: dict[str, type[Settings]] = {"model": ModelConfig, **TABLES}
    return {
        name: rename_former_keys(known[name], table) if name in known and isinstance(table, Mapping) else table
        for name, table in tables.items()
    }


def read_recipe(values: Mapping[str, Any]) -> Recipe:
    """A recipe from nested mappings; one ConfigError reports all problems."""
    values = _with_lists(values)
    problems = list(_find_table_problems(values))
    if problems:
        raise ConfigError(problems)
    if isinstance(data := values.get("data"), Mapping) and data.get("kind") == "preferences":
        values = {"preference": {}, **values}
    names = [name for name in TABLES if name not in OPTIONAL_TABLES or name in values]
    tables = {name: parse_settings(TABLES[name], values.get(name, {}), prefix=f"{name}.") for name in names}
    recipe = Recipe(values.get("model", {}), **tables)  # type: ignore[arg-type]
    problems = list(_find_conflicts(recipe))
    if problems:
        raise ConfigError(problems)
    return recipe


def _with_lists(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tables with comma-separated text in data.columns and data.languages, as on a command line, split to lists."""
    data = values.get("data")
    if not isinstance(data, Mapping):
        return values
    lists = {key: data[key] for key in COMMA_LISTS if isinstance(data.get(key), str) and "," in data[key]}
    split = {key: [parse_value(part) for part in text.split(",")] for key, text in lists.items()}
    return {**values, "data": {**data, **split}}


def _find_table_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    for name, table in values.items():
        if name not in ("model", *TABLES):
            yield Problem(name, f"there is no such table; a recipe has {', '.join(('model', *TABLES))}.")
        elif not isinstance(table, Mapping):
            yield Problem(name, "this is a single value, but a table of keys is needed.")
    model = values.get("model")
    if isinstance(model, Mapping) and "init" in model:
        yield from _find_init_problems(model, values.get("tokenizer"))
    elif isinstance(model, Mapping):
        try:
            read_model_config({"vocabulary": PLACEHOLDER, **model})
        except ConfigError as error:
            yield from error.problems
    elif model is None:
        yield Problem("model", "this table is missing; the shortest is preset = 'tiny-decoder'.")
    for name, cls in TABLES.items():
        table = values.get(name, {})
        if isinstance(table, Mapping):
            yield from find_problems(cls, table, prefix=f"{name}.")


def _find_init_problems(model: Mapping[str, Any], tokenizer: Any) -> Iterator[Problem]:
    """Problems of a [model] table with init."""
    for key in model:
        if key not in ("init", *KEYS_WITH_INIT):
            open_keys = " and ".join(KEYS_WITH_INIT)
            yield Problem(f"model.{key}", f"model.init sets the config; only {open_keys} may be given with it.")
    if tokenizer:
        yield Problem("tokenizer", "model.init has its own tokenizer; leave this table out.")
    try:
        config_from_init(model["init"], {key: model[key] for key in KEYS_WITH_INIT if key in model})
    except ConfigError as error:
        yield from error.problems
    except ChumokuError as error:
        yield Problem("model.init", str(error))


def config_from_init(init: Any, changes: Mapping[str, Any]) -> ModelConfig:
    """The config of the model `init`, with the KEYS_WITH_INIT of `changes` applied."""
    from chumoku.weights.open_model import read_model_config

    if not isinstance(init, str) or not init:
        raise ConfigError([Problem("model.init", "give the name of a model: a folder, a file, or hf:owner/name.")])
    found = settings_to_dict(read_model_config(init))
    context = changes.get("context")
    if found["position"] == "learned" and context not in (None, found["context"]):
        sentence = f"model.init has {found['context']:,} learned positions, and this number cannot be changed."
        raise ConfigError([Problem("model.context", sentence)])
    return parse_settings(
        ModelConfig, deep_merge(found, {key: changes[key] for key in KEYS_WITH_INIT if key in changes}), prefix="model."
    )


def _find_conflicts(recipe: Recipe) -> Iterator[Problem]:
    """Conflicts between tables."""
    config, data, train = recipe.config(), recipe.data, recipe.train
    if data.kind not in DATA_KINDS[config.kind]:
        fits = " or ".join(DATA_KINDS[config.kind][:-1])
        yield Problem("data.kind", f"'{data.kind}' does not fit a model of kind '{config.kind}'; choose {fits}.")
    if config.head_kind == "vector" and recipe.init is not None:
        yield Problem(
            "model.init", "this model outputs vectors instead of token predictions, so it cannot be trained here."
        )
    elif config.head_kind == "vector":
        yield Problem("model.head", "'vector' cannot be trained here; train with head = 'masked', then embed.")
    if recipe.tokenizer.has_target and (config.kind != "encoder-decoder" or config.share_embeddings):
        why = "a model with share_embeddings" if config.share_embeddings else f"a model of kind '{config.kind}'"
        yield Problem("tokenizer.target_kind", f"{why} has one tokenizer; leave the target_ keys out.")
    if recipe.tokenizer.has_target and data.both_directions:
        yield Problem("tokenizer.target_kind", "both directions share one tokenizer; leave the target_ keys out.")
    if recipe.tokenizer.target_vocabulary is not None and recipe.tokenizer.target_kind is None:
        yield Problem("tokenizer.target_vocabulary", "this key needs target_kind, which was not given.")
    if recipe.preference is not None and data.kind != "preferences":
        yield Problem("preference", "this table is for data.kind = 'preferences'.")
    if recipe.lora is not None and recipe.init is None:
        yield Problem("lora", "an adapter needs an existing model: name it with model.init.")
    if recipe.lora is not None and train.parallel == "fsdp":
        yield Problem("train.parallel", "an adapter can only be trained with ddp.")
    if config.norm == "batch" and (train.precision != "float32" or train.activation_checkpointing):
        key = "activation_checkpointing" if train.precision == "float32" else "precision"
        yield Problem(f"train.{key}", "batch norm supports only float32 without activation checkpointing.")
    if train.sequence_length is not None and train.sequence_length > config.context:
        yield Problem(
            "train.sequence_length", f"{train.sequence_length} is longer than model.context = {config.context}."
        )
    if train.packing and config.kind != "encoder-decoder":
        yield Problem("train.packing", "this key is for pairs; texts and conversations are packed anyway.")
    elif train.packing and (config.position in SCORE_POSITIONS or config.attention_window or config.experts):
        sentence = "packing works with sinusoidal, learned, rotary or no positions, without a window and experts."
        yield Problem("train.packing", sentence)
    elif train.packing and config.dropout.attention:
        yield Problem(
            "train.packing", "packing works without dropout of attention weights: set dropout.attention to 0."
        )
    busy = recipe.schedule.warmup + recipe.schedule.decay
    if recipe.schedule.kind in ("cosine", "wsd") and busy > train.steps:
        sentence = (
            f"{busy:,} steps of warm-up and decay do not fit into train.steps = {train.steps:,}. For a short test add "
            f"schedule.warmup={train.steps // 10} schedule.decay=0."
        )
        yield Problem("schedule.warmup", sentence)
