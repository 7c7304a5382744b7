"""A recipe: everything that decides a run, as one TOML file.

    [model]  [tokenizer]  [data]  [train]  [optimizer]  [schedule]

The keys of [model] are those of `ModelConfig`, or `preset` and what differs from it; `vocabulary` follows from the
tokenizer when it is not given. All problems of all tables are reported at once, before anything else happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from chumoku.config import Rule, Settings, find_problems, load_toml, override, read, write
from chumoku.errors import ConfigError, Problem
from chumoku.models.config import ModelConfig
from chumoku.models.presets import model_config
from chumoku.text.kinds import Kind
from chumoku.training.schedule import Kind as ScheduleKind
from chumoku.training.schedule import Schedule, paper_peak

Count = Annotated[int, Field(ge=1, le=1 << 40)]
Many = Annotated[int, Field(ge=0, le=1 << 40)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Amount = Annotated[float, Field(ge=0.0, le=1e12)]
Files = str | list[str]

SHIPPED = Path(__file__).parent.parent / "recipes"
PLACEHOLDER = 1 << 13  # a vocabulary, until the tokenizer is there


class TokenizerSettings(Settings):
    """Trained on the corpus, or opened."""

    file: str | None = None  # an existing tokenizer: a tokenizer.json, a vocabulary, a SentencePiece model
    kind: Kind = "bpe"
    vocabulary: Annotated[int, Field(ge=1, le=1 << 22)] = 8000
    multiple: Annotated[int, Field(ge=1, le=1 << 16)] = 1  # fill the vocabulary up to a multiple of this
    target_file: str | None = None  # pairs: the target has a tokenizer of its own, opened …
    target_kind: Kind | None = None  # … or trained
    target_vocabulary: Annotated[int, Field(ge=1, le=1 << 22)] | None = None

    @property
    def separate(self) -> bool:
        return self.target_file is not None or self.target_kind is not None


class DataSettings(Settings):
    """What is learnt from."""

    kind: Literal["text", "pairs", "embedded"] = "text"
    files: Files | None = None  # files, folders, patterns; for pairs a table, or a source file and a target file
    validation_files: Files | None = None  # instead of a share of `files`; empty is as if not given
    validation: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # that share: 0.1 of a text, 0.01 of pairs
    documents: Literal["blank", "file", "line", "record"] = "blank"  # text: where a document ends
    field: str = "text"  # text: of JSONL and Parquet records
    separate: bool = False  # text: no token sees another document
    hidden: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # masked tokens: how many
    columns: list[str | int] | None = None  # pairs: source and target, by place (from 0) or name
    languages: list[str] | None = None  # pairs: as in ["ja", "en"]; lines in another script are dropped
    count: Annotated[int, Field(ge=1000, le=10**6)] = 50_000  # embedded: how many pairs are generated

    RULES = (
        Rule(("files", "kind"), lambda c: _files_named(c)),
        Rule(("columns",), lambda c: _two(c.columns)),
        Rule(("languages",), lambda c: _two(c.languages)),
        Rule(("validation", "validation_files"), lambda c: _one_way_to_validate(c)),
    )

    @property
    def held_out(self) -> float:
        return self.validation if self.validation is not None else 0.1 if self.kind == "text" else 0.01


class TrainSettings(Settings):
    """How long, how much at a time, and what is kept."""

    out: Annotated[str, Field(min_length=1)] = "runs/new"  # the folder of the run
    steps: Count = 1000
    batch: Count = 16  # text: windows at a time
    length: Count | None = None  # text: tokens a window; the model's context when not given
    tokens: Count = 4096  # pairs: tokens at a time, on the longer side
    accumulate: Annotated[int, Field(ge=1, le=1 << 16)] = 1  # batches a step
    seed: Many = 0
    smoothing: Share = 0.0  # of labels
    clip: Amount = 1.0  # the largest norm of the gradient; 0 does not clip
    balance: Amount = 0.01  # experts: weight of the balance loss
    router_z: Amount = 0.001  # experts: weight of the z loss

    device: str | None = None  # "cpu", "cuda"; the fastest there is when not given
    precision: Literal["float32", "bf16", "fp16"] = "float32"  # of the arithmetic; weights are kept in float32
    compile: bool = False
    recompute: bool = False  # blocks run twice instead of keeping what the backward pass needs
    workers: Annotated[int, Field(ge=0, le=256)] | None = None  # processes that make batches ahead; 2 with a GPU
    parallel: Literal["ddp", "fsdp"] = "ddp"  # under torchrun
    sharded: bool = False  # checkpoints: each process writes its own part

    log_every: Count = 10
    validate_every: Count = 500
    validation_batches: Count | None = None  # all when not given
    samples: Annotated[int, Field(ge=0, le=100)] = 2  # outputs shown at each validation
    save_every: Count = 500
    keep: Annotated[int, Field(ge=1, le=10_000)] = 2  # checkpoints
    average: Annotated[int, Field(ge=1, le=10_000)] = 1  # the result is the mean of this many last checkpoints
    ema: Share = 0.0  # a running average of the weights, decaying so a step; 0 keeps none
    patience: Count | None = None  # stop after so many validations without a new best
    bad_steps: Count = 5  # stop after so many steps in a row that gave no finite numbers
    tensorboard: bool = False

    RULES = (Rule(("ema", "average"), lambda c: _one_average(c)),)
    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("max_steps", "max_iters", "iterations"), "steps"),
        **dict.fromkeys(("batch_size", "rows"), "batch"),
        **dict.fromkeys(("gradient_accumulation_steps", "grad_accum", "accumulation"), "accumulate"),
        **dict.fromkeys(("label_smoothing", "epsilon"), "smoothing"),
        **dict.fromkeys(("grad_clip", "max_grad_norm", "clip_grad"), "clip"),
        **dict.fromkeys(("output", "out_dir", "output_dir"), "out"),
        **dict.fromkeys(("dtype", "amp", "mixed_precision"), "precision"),
        **dict.fromkeys(("eval_every", "eval_interval"), "validate_every"),
        **dict.fromkeys(("gradient_checkpointing", "checkpointing"), "recompute"),
    }


class OptimizerSettings(Settings):
    """The rule by which a step changes the weights."""

    kind: Literal["adamw", "sgd", "muon"] = "adamw"
    rate: Annotated[float, Field(gt=0.0, le=1e3)] | None = None  # the peak; inverse_sqrt has the paper's without one
    beta1: Share = 0.9
    beta2: Share = 0.95
    epsilon: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-8
    weight_decay: Amount = 0.1  # of matrices alone; biases, norms and tables of positions do not decay
    momentum: Share = 0.95  # sgd and muon

    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("lr", "learning_rate", "max_lr"), "rate"),
        **dict.fromkeys(("eps",), "epsilon"),
        **dict.fromkeys(("decay", "wd"), "weight_decay"),
    }


class ScheduleSettings(Settings):
    """How the rate runs from the first step to the last."""

    kind: ScheduleKind = "cosine"
    warmup: Many = 0
    decay: Many = 0  # wsd: steps of the descent
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0  # the share of the peak at the end

    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("warmup_steps", "warmup_iters"), "warmup"),
        **dict.fromkeys(("min_lr", "minimum"), "floor"),
    }


TABLES: dict[str, type[Settings]] = {
    "tokenizer": TokenizerSettings,
    "data": DataSettings,
    "train": TrainSettings,
    "optimizer": OptimizerSettings,
    "schedule": ScheduleSettings,
}


@dataclass(frozen=True)
class Recipe:
    model: Mapping[str, Any]  # as in the file: checked, and completed by `config` once the tokenizer is there
    tokenizer: TokenizerSettings
    data: DataSettings
    train: TrainSettings
    optimizer: OptimizerSettings
    schedule: ScheduleSettings

    def config(self, vocabulary: int | None = None, source_vocabulary: int | None = None) -> ModelConfig:
        """The model, for tokenizers of these sizes; without one, of some size."""
        values = {"vocabulary": vocabulary or PLACEHOLDER, **self.model}
        if source_vocabulary is not None:
            values.setdefault("source_vocabulary", source_vocabulary)
        config = model_config(values)
        for key, found, needed in (
            ("model.vocabulary", config.vocabulary, vocabulary or 0),
            ("model.source_vocabulary", config.source_tokens, source_vocabulary or 0),
        ):
            if found < needed:
                sentence = f"{found:,} is too small: the tokenizer has {needed:,} tokens. Leave this key out."
                raise ConfigError([Problem(key, sentence)])
        return config

    @property
    def peak(self) -> float:
        """The highest rate."""
        if self.optimizer.rate is not None:
            return self.optimizer.rate
        return paper_peak(self.config().width, self.schedule.warmup)

    @property
    def curve(self) -> Schedule:
        return Schedule(**write(self.schedule), steps=self.train.steps)

    def as_dict(self) -> dict[str, Any]:
        return {"model": dict(self.model), **{name: write(getattr(self, name)) for name in TABLES}}


def load_recipe(path: Path | str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe file, or the name of one that comes with chumoku, with `key=value` words laid over it."""
    shipped = SHIPPED / f"{path}.toml"
    if not Path(path).suffix and not Path(path).exists() and shipped.exists():
        path = shipped
    return read_recipe(override(load_toml(path), changes))


def read_recipe(values: Mapping[str, Any]) -> Recipe:
    """A recipe from nested mappings; everything wrong with it is in the one error raised."""
    problems = list(_problems(values))
    if problems:
        raise ConfigError(problems)
    tables = {name: read(cls, values.get(name, {}), prefix=f"{name}.") for name, cls in TABLES.items()}
    recipe = Recipe(values.get("model", {}), **tables)  # type: ignore[arg-type]
    problems = list(_clashes(recipe))
    if problems:
        raise ConfigError(problems)
    return recipe


def _problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    for name, table in values.items():
        if name not in ("model", *TABLES):
            yield Problem(name, f"there is no such table; a recipe has {', '.join(('model', *TABLES))}.")
        elif not isinstance(table, Mapping):
            yield Problem(name, "this is a single value where a table of keys is needed.")
    model = values.get("model")
    if isinstance(model, Mapping):
        try:
            model_config({"vocabulary": PLACEHOLDER, **model})
        except ConfigError as error:
            yield from error.problems
    elif model is None:
        yield Problem("model", "this table is needed and was not given; preset = 'tiny-decoder' is the shortest.")
    for name, cls in TABLES.items():
        table = values.get(name, {})
        if isinstance(table, Mapping):
            yield from find_problems(cls, table, prefix=f"{name}.")


def _clashes(recipe: Recipe) -> Iterator[Problem]:
    """What two tables say that cannot both be."""
    config, data, train = recipe.config(), recipe.data, recipe.train
    if (config.kind == "encoder-decoder") == (data.kind == "text"):
        fits = "pairs or embedded" if data.kind == "text" else "text"
        yield Problem("data.kind", f"'{data.kind}' does not fit a model of kind '{config.kind}'; choose {fits}.")
    if config.head_kind == "vector":
        yield Problem("model.head", "'vector' has nothing to learn from here; train with head = 'masked', then embed.")
    if recipe.tokenizer.separate and (config.kind != "encoder-decoder" or config.share_embeddings):
        why = "a model that shares one table" if config.share_embeddings else f"a model of kind '{config.kind}'"
        yield Problem("tokenizer.target_kind", f"{why} has one tokenizer; leave the target's keys out.")
    if recipe.tokenizer.target_vocabulary is not None and recipe.tokenizer.target_kind is None:
        yield Problem("tokenizer.target_vocabulary", "this belongs to a tokenizer of target_kind, and none is given.")
    if config.norm == "batch" and (train.precision != "float32" or train.recompute):
        key = "recompute" if train.precision == "float32" else "precision"
        yield Problem(f"train.{key}", "batch norm is there to be compared, in float32 and without recomputing.")
    if train.length is not None and train.length > config.context:
        yield Problem("train.length", f"{train.length} is longer than model.context = {config.context}.")
    if recipe.optimizer.rate is None and (recipe.schedule.kind != "inverse_sqrt" or recipe.schedule.warmup < 1):
        yield Problem("optimizer.rate", "this key is needed; only inverse_sqrt with a warm-up has a rate of its own.")
    busy = recipe.schedule.warmup + recipe.schedule.decay
    if recipe.schedule.kind in ("cosine", "wsd") and busy > train.steps:
        sentence = (
            f"{busy:,} steps of warm-up and decay do not fit into train.steps = {train.steps:,}. For a short trial add "
            f"schedule.warmup={train.steps // 10} schedule.decay=0."
        )
        yield Problem("schedule.warmup", sentence)


def listed(files: Files | None) -> list[str]:
    """The names in a key that takes one or several."""
    return [files] if isinstance(files, str) else list(files or [])


def _files_named(c: Any) -> str | None:
    if c.kind == "embedded":
        return "the embedded corpus needs no files; leave this key out." if c.files is not None else None
    return None if c.files and all(c.files) else "this key is needed: name the files to learn from."


def _two(values: list[Any] | None) -> str | None:
    return None if values is None or len(values) == 2 else f"two are needed, and {len(values)} were given."


def _one_way_to_validate(c: Any) -> str | None:
    if c.validation is None or not c.validation_files:
        return None
    return "give validation (a share of the files) or validation_files, not both."


def _one_average(c: Any) -> str | None:
    if c.ema == 0 or c.average == 1:
        return None
    return "give ema (a running average) or average (of the last checkpoints), not both."
