"""A recipe: all settings of a run in one TOML file.

    [model]  [tokenizer]  [data]  [train]  [optimizer]  [schedule]  [lora]  [contrastive]  [preference]
    [grpo]  [distillation]

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
from chumoku.errors import ChumokuError, ConfigError, Problem, UsageError, did_you_mean
from chumoku.model_path import check_model, resolve_run
from chumoku.models.config import ModelConfig
from chumoku.models.presets import deep_merge, read_model_config
from chumoku.models.sentence_encoder import sentence_encoder_keys
from chumoku.safe_files import read_json
from chumoku.training.default_learning_rate import default_learning_rate
from chumoku.training.label_config import LABEL_KEYS, change_head, head_values, limit_length
from chumoku.training.recipe_conflicts import find_conflicts
from chumoku.training.schedule import Schedule, paper_peak
from chumoku.training.settings import (
    FIXED_BY_PREPARE,
    LABEL_HEADS,
    AdapterSettings,
    ContrastiveSettings,
    DataSettings,
    DistillationSettings,
    GrpoSettings,
    OptimizerSettings,
    PreferenceSettings,
    ScheduleSettings,
    TokenizerSettings,
    TrainSettings,
)
from chumoku.weights.identify_model import RECIPE_FILE

BUILT_IN = Path(__file__).parent.parent / "recipes"
PLACEHOLDER = 1 << 13  # vocabulary size until the tokenizer exists
COMMA_LISTS = ("columns", "languages")  # keys of [data] that may be comma-separated text
KEYS_WITH_INIT = ("dropout", "context")  # keys of [model] that are allowed together with init


TABLES: dict[str, type[Settings]] = {
    "tokenizer": TokenizerSettings,
    "data": DataSettings,
    "train": TrainSettings,
    "optimizer": OptimizerSettings,
    "schedule": ScheduleSettings,
    "contrastive": ContrastiveSettings,
    "lora": AdapterSettings,
    "preference": PreferenceSettings,
    "grpo": GrpoSettings,
    "distillation": DistillationSettings,
}
OPTIONAL_TABLES = frozenset({"contrastive", "lora", "preference", "grpo", "distillation"})
# data.kind → the table that it always has
DATA_TABLES = {"sentences": "contrastive", "preferences": "preference", "prompts": "grpo"}


@dataclass(frozen=True)
class Recipe:
    """The checked settings of a run. `model` is the [model] table as written; `config` adds what is missing."""

    model: Mapping[str, Any]
    tokenizer: TokenizerSettings
    data: DataSettings
    train: TrainSettings
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    contrastive: ContrastiveSettings | None = None  # of sentences; None for other data
    lora: AdapterSettings | None = None  # None if there is no [lora] table
    preference: PreferenceSettings | None = None  # None unless data.kind is preferences
    grpo: GrpoSettings | None = None  # None unless data.kind is prompts
    distillation: DistillationSettings | None = None

    @property
    def init(self) -> str | None:
        """The name of the model to start from (of a run, its last/); None to train from scratch."""
        name = self.model.get("init")
        return None if name is None else str(resolve_run(name))

    def config(
        self,
        vocabulary: int | None = None,
        source_vocabulary: int | None = None,
        *,
        labels: Sequence[str] | None = None,
    ) -> ModelConfig:
        """The model's config for tokenizers of these sizes and these labels; without them, for placeholders."""
        if self.init is not None:
            config = config_from_init(self.init, self.model, data_kind=self.data.kind, labels=labels)
            return self._with_length(config)
        head = head_values(self.data.kind, self.model, labels)
        values = {"vocabulary": vocabulary or PLACEHOLDER, **self.model, **head}
        if source_vocabulary is not None:
            values.setdefault("source_vocabulary", source_vocabulary)
        config = read_model_config(values)
        if self.data.kind == "sentences" and config.kind == "encoder" and "head" not in self.model:
            config = read_model_config({**values, "head": "vector"})
        for key, found, needed in (
            ("model.vocabulary", config.vocabulary, vocabulary or 0),
            ("model.source_vocabulary", config.source_tokens, source_vocabulary or 0),
        ):
            if found < needed:
                sentence = f"{found:,} is too small: the tokenizer has {needed:,} tokens. Leave this key out."
                raise ConfigError([Problem(key, sentence)])
        return self._with_length(config)

    def _with_length(self, config: ModelConfig) -> ModelConfig:
        """The config with the length that texts are cut to in training, so that `classify` and `embed` cut there."""
        if self.data.kind in LABEL_HEADS:
            return limit_length(config, self.train.sequence_length)
        if self.data.kind != "sentences" or config.kind != "encoder" or config.max_seq_length is not None:
            return config
        limit = min(self.train.sequence_length or config.context, config.context)
        return parse_settings(ModelConfig, {**settings_to_dict(config), "max_seq_length": limit})

    @functools.cached_property
    def peak_learning_rate(self) -> float:
        """The peak learning rate: optimizer.learning_rate, or a default for the optimizer, schedule and width."""
        if self.optimizer.learning_rate is not None:
            return self.optimizer.learning_rate
        width = self.config().width
        if self.schedule.kind == "inverse_sqrt" and self.schedule.warmup > 0 and self.init is None:
            return paper_peak(width, self.schedule.warmup)
        fine_tuning = self.init is not None and (self.lora is None or self.data.kind in ("preferences", "prompts"))
        return default_learning_rate(self.optimizer.kind, width, fine_tuning=fine_tuning)

    @property
    def lr_schedule(self) -> Schedule:
        return Schedule(**settings_to_dict(self.schedule), steps=self.train.steps)

    def as_dict(self) -> dict[str, Any]:
        """All tables with defaults filled in, so that a stored recipe stays the same if a default changes."""
        tables = {name: settings_to_dict(table) for name in TABLES if (table := getattr(self, name)) is not None}
        if self.init is not None or self.distillation is not None:
            del tables["tokenizer"]  # model.init or the teacher brings its own; a recipe with both is refused
        tables["optimizer"]["learning_rate"] = self.peak_learning_rate
        return {"model": dict(self.model), **tables}


def load_recipe(path: Path | str, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, a run's folder, or a built-in recipe by name; `changes` are key=value overrides."""
    return read_recipe(apply_changes(read_tables(path), changes))


def apply_changes(tables: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The tables with key=value overrides.

    model.init brings a config and a tokenizer, so it replaces the recipe's [model] and [tokenizer]; data.prepared
    brings tokens and a tokenizer, so it replaces the recipe's files and [tokenizer].
    """
    keys = {change.partition("=")[0].strip() for change in changes}
    kept = dict(tables)
    if "model.init" in keys and not _has(kept, "model", "init"):
        kept = {name: table for name, table in kept.items() if name not in ("model", "tokenizer")}
    if "data.prepared" in keys and isinstance(kept.get("data"), Mapping) and not _has(kept, "data", "prepared"):
        replaced = ("files", "validation_share", *FIXED_BY_PREPARE)
        kept["data"] = {key: value for key, value in kept["data"].items() if key not in replaced}
        kept.pop("tokenizer", None)
    return override(kept, changes)


def _has(tables: Mapping[str, Any], table: str, key: str) -> bool:
    return isinstance(tables.get(table), Mapping) and key in tables[table]


def read_tables(path: Path | str) -> dict[str, Any]:
    """The unchecked tables of a recipe; `path` is as in `load_recipe`."""
    place, shipped = Path(path), BUILT_IN / f"{path}.toml"
    if place.is_dir():
        return _tables_of_run(place)
    if not place.suffix and not place.exists() and shipped.exists():
        place = shipped
    if not place.suffix and not place.exists():
        names = sorted(path.stem for path in BUILT_IN.glob("*.toml"))
        suggestion = did_you_mean(place.name, names, f"Built-in recipes: {', '.join(names)}.")
        raise UsageError(f"There is no recipe {place}: no file, run or built-in recipe has this name. {suggestion}")
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
    values = _with_prepared_tokenizer(_with_lists(values))
    problems = list(_find_table_problems(values))
    if problems:
        raise ConfigError(problems)
    data_kind = values["data"].get("kind") if isinstance(values.get("data"), Mapping) else None
    optional = OPTIONAL_TABLES - {DATA_TABLES.get(str(data_kind))}
    names = [name for name in TABLES if name not in optional or name in values]
    tables = {name: parse_settings(TABLES[name], values.get(name, {}), prefix=f"{name}.") for name in names}
    recipe = Recipe(values.get("model", {}), **tables)  # type: ignore[arg-type]
    problems = list(find_conflicts(recipe))
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


def _with_prepared_tokenizer(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tables with tokenizer.file set to that of data.prepared, unless model.init brings another."""
    if not _has(values, "data", "prepared") or values["data"]["prepared"] is None or _has(values, "model", "init"):
        return values
    file = str(Path(str(values["data"]["prepared"])) / "tokenizer" / "tokenizer.json")
    tokenizer = values.get("tokenizer", {})
    return {**values, "tokenizer": {"file": file, **tokenizer}} if isinstance(tokenizer, Mapping) else values


def _find_table_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    for name, table in values.items():
        if name not in ("model", *TABLES):
            suggestion = did_you_mean(name, ("model", *TABLES), f"A recipe has {', '.join(('model', *TABLES))}.")
            yield Problem(name, f"there is no such table. {suggestion}")
        elif not isinstance(table, Mapping):
            yield Problem(name, "this is a single value, but a table of keys is needed.")
    model, data = values.get("model"), values.get("data")
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if isinstance(model, Mapping) and "init" in model:
        yield from _find_init_problems(model, values.get("tokenizer"), kind)
    elif isinstance(model, Mapping):
        try:
            read_model_config({"vocabulary": PLACEHOLDER, **model, **head_values(kind, model)})
        except ConfigError as error:
            yield from error.problems
    elif model is None:
        yield Problem("model", "this table is missing; the shortest is preset = 'tiny-decoder'.")
    for name, cls in TABLES.items():
        table = values.get(name, {})
        if isinstance(table, Mapping) and (name not in OPTIONAL_TABLES or name in values):
            yield from find_problems(cls, table, prefix=f"{name}.")
    if values.get("distillation") and values.get("tokenizer"):
        yield Problem("tokenizer", "the student takes the tokenizer of its teacher; leave this table out.")


def _find_init_problems(model: Mapping[str, Any], tokenizer: Any, data_kind: Any) -> Iterator[Problem]:
    """Problems of a [model] table with init."""
    allowed = (*KEYS_WITH_INIT, *(LABEL_KEYS if data_kind in LABEL_HEADS else ()))
    for key in model:
        if key not in ("init", *allowed):
            open_keys = f"{', '.join(allowed[:-1])} and {allowed[-1]}"
            yield Problem(f"model.{key}", f"model.init sets the config; only {open_keys} may be given with it.")
    if tokenizer:
        yield Problem("tokenizer", "model.init has its own tokenizer; leave this table out.")
    try:
        config_from_init(model["init"], {key: model[key] for key in allowed if key in model}, data_kind=data_kind)
    except ConfigError as error:
        yield from error.problems
    except ChumokuError as error:
        yield Problem("model.init", str(error))


def config_from_init(
    init: Any, changes: Mapping[str, Any], *, data_kind: str | None = None, labels: Sequence[str] | None = None
) -> ModelConfig:
    """The config of the model `init` with the KEYS_WITH_INIT of `changes`, and with the head that the data needs."""
    if not isinstance(init, str) or not init:
        raise ConfigError([Problem("model.init", "give the name of a model: a folder, a file, or hf:owner/name.")])
    check_model(resolve_run(init))
    from chumoku.weights.open_model import read_model_config

    config = read_model_config(resolve_run(init))
    found = settings_to_dict(config)
    if data_kind == "sentences":
        found = sentence_encoder_keys(config, found)
    context = changes.get("context")
    if found["position"] == "learned" and context not in (None, found["context"]):
        sentence = f"model.init has {found['context']:,} learned positions, and this number cannot be changed."
        raise ConfigError([Problem("model.context", sentence)])
    values = deep_merge(found, {key: changes[key] for key in KEYS_WITH_INIT if key in changes})
    values = change_head(values, data_kind, changes, labels)
    return parse_settings(ModelConfig, values, prefix="model.")
