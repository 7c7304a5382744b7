"""The tables of a recipe but [model]: every key, its range, and what cannot be together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from chumoku.config import Rule, Settings
from chumoku.lora.settings import LoraSettings
from chumoku.text.training import Kind
from chumoku.training.schedule import Kind as ScheduleKind

Count = Annotated[int, Field(ge=1, le=1 << 40)]
Many = Annotated[int, Field(ge=0, le=1 << 40)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Amount = Annotated[float, Field(ge=0.0, le=1e12)]
Files = str | list[str]


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
    """What is learned from."""

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
    plain: bool = False  # run the formulas as they are written, not the fast kernels: slower, equal up to rounding
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
    rate: Annotated[float, Field(gt=0.0, le=1e3)] | None = None  # the peak; without one, see training/default_rate.py
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


class AdapterSettings(LoraSettings):
    """The keys of [lora]: those of an adapter, and how the model beneath it is kept."""

    base: Literal["float32", "bf16", "int8", "int4"] = "float32"


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
