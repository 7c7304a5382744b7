"""The recipe tables except [model]: every key, its range, and combinations that are refused."""

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
FIXED_BY_PREPARE = ("validation_files", "columns", "languages", "weights", "both_directions")  # keys of [data]
LABEL_HEADS = {"labels": "classes", "tags": "tags"}  # data.kind → model.head


class TokenizerSettings(Settings):
    """[tokenizer]: train a tokenizer on the corpus, or open an existing one."""

    file: str | None = None  # an existing tokenizer: a tokenizer.json, a vocabulary, a SentencePiece model
    kind: Kind = "bpe"  # how text is split into tokens
    vocabulary: Annotated[int, Field(ge=1, le=1 << 22)] = 8000  # number of tokens to train
    pad_to_multiple: Annotated[int, Field(ge=1, le=1 << 16)] = 1  # round the vocabulary size up to a multiple of this
    split_digits: bool = False  # each digit is a token of its own
    split_scripts: bool = False  # no token reaches over the start of a kanji or katakana word
    whole_words: bool = False  # unigram: pieces are the Japanese words of the corpus; only training needs SudachiPy
    target_file: str | None = None  # pairs: an existing tokenizer for the target language
    target_kind: Kind | None = None  # pairs: train a separate tokenizer for the target language
    target_vocabulary: Annotated[int, Field(ge=1, le=1 << 22)] | None = None  # pairs: its number of tokens; default: as
    # `vocabulary`

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"multiple": "pad_to_multiple"}

    @property
    def has_target(self) -> bool:
        """Whether the target language has its own tokenizer."""
        return self.target_file is not None or self.target_kind is not None


class DataSettings(Settings):
    """[data]: the training and validation text."""

    kind: Literal[
        "text", "pairs", "embedded", "chat", "preferences", "prompts", "sentences", "labels", "tags", "own"
    ] = "text"  # what the files hold, and so what is learned; own: batches that are passed to chumoku.train
    files: Files | None = None  # files, folders, patterns; for pairs a table, or a source file and a target file
    prepared: str | None = None  # text and pairs: a folder that `chumoku prepare` wrote, instead of files
    validation_files: Files | None = None  # used instead of a share of `files`; an empty value means not given
    validation_share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # share of the data for validation;
    # default: 0.1, of pairs and sentences 0.01
    documents: Literal["blank", "file", "line", "record"] = "blank"  # text: what separates documents
    field: str = "text"  # text: the field of JSONL and Parquet records to read
    separate_documents: bool = False  # text: attention does not cross document boundaries
    mask_probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # encoders, text: share of tokens to predict
    mean_span_length: Annotated[float, Field(ge=1.0, le=1e4)] = 3.0  # encoder-decoder, text: mean length of the spans
    # to predict, in tokens
    columns: list[str | int] | None = None  # by index (from 0) or name. pairs: source and target; chat: question and
    # answer; labels, tags: text and label; sentences: anchor, positive and, for triplets, negative
    languages: list[str] | None = None  # pairs, sentences: such as ["ja", "en"]; lines in other scripts are dropped
    weights: list[Annotated[float, Field(ge=0.0, le=100.0)]] | None = None  # pairs: how often each file's pairs occur
    both_directions: bool = False  # pairs: one model for both directions; needs `languages`
    count: Annotated[int, Field(ge=1000, le=10**6)] = 50_000  # embedded: number of pairs to generate

    RULES = (
        Rule(("files", "kind"), lambda c: _files_required(c)),
        Rule(("prepared", "kind", "validation_share", *FIXED_BY_PREPARE), lambda c: _prepared_alone(c)),
        Rule(("columns", "kind"), lambda c: _column_count(c)),
        Rule(("languages",), lambda c: _exactly_two(c.languages)),
        Rule(("validation_share", "validation_files"), lambda c: _one_way_to_validate(c)),
        Rule(("weights", "files"), lambda c: _one_weight_per_file(c)),
        Rule(("both_directions", "languages"), lambda c: _languages_required(c)),
    )
    FORMER_NAMES: ClassVar[Mapping[str, str]] = {
        "validation": "validation_share",
        "separate": "separate_documents",
        "hidden": "mask_probability",
    }
    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("mlm_probability", "noise_density"), "mask_probability"),
        "mean_noise_span_length": "mean_span_length",
        "validation_split": "validation_share",
    }

    @property
    def held_out(self) -> float:
        """The share of the data used for validation."""
        if self.validation_share is not None:
            return self.validation_share
        return 0.1 if self.kind in ("text", "chat", "preferences", "prompts", *LABEL_HEADS) else 0.01


class TrainSettings(Settings):
    """[train]: steps, batches, precision, validation and checkpoints."""

    out: Annotated[str, Field(min_length=1)] = "runs/new"  # the run's folder
    steps: Count = 1000  # number of weight updates
    batch_size: Count = 16  # sequences in a batch (text, chat, labels, tags), pairs (preferences) or rows (sentences)
    sequence_length: Count | None = None  # text, chat, preferences: tokens in a sequence; labels, tags, sentences:
    # longer texts are cut; default: the model's max_seq_length or context
    batch_tokens: Count = 4096  # pairs: tokens in a batch, counted on the longer side
    packing: bool = False  # pairs: one after another in a row instead of padded: one shape for a GPU
    gradient_accumulation: Annotated[int, Field(ge=1, le=1 << 16)] = 1  # batches per step
    seed: Many = 0  # of all random numbers: weights, order of the data, dropout
    label_smoothing: Share = 0.0  # share of the target probability that is spread over all tokens
    max_grad_norm: Amount = 1.0  # longer gradients are scaled down to this norm; 0 disables clipping
    balance_loss: Amount = 0.01  # experts: weight of the load-balancing loss
    router_z_loss: Amount = 0.001  # experts: weight of the router z-loss

    device: str | None = None  # "cpu" or "cuda"; default: the fastest available
    precision: Literal["float32", "bf16", "fp16"] = "float32"  # of the computation; weights stay in float32
    compile: bool = False  # compile the model with torch.compile
    fp8_output: bool = False  # with bf16 and compile: gradient of the output layer in 8 bits, on a GPU that has them
    plain: bool = False  # run the formulas as written instead of the fast kernels: slower, equal up to rounding
    activation_checkpointing: bool = False  # recompute each block in the backward pass to save memory
    workers: Annotated[int, Field(ge=0, le=256)] | None = None  # data loading processes; default: 2 with a GPU
    parallel: Literal["ddp", "fsdp"] = "ddp"  # under torchrun: copies of the model (ddp), or parts of it in each
    # process (fsdp)
    sharded: bool = False  # each process writes its own part of a checkpoint

    log_every: Count = 10  # steps between two lines of the log
    validate_every: Count = 500  # steps between two validations
    validation_batches: Count | None = None  # batches of each validation; default: all
    samples: Annotated[int, Field(ge=0, le=100)] = 2  # model outputs shown at each validation
    save_every: Count = 500  # steps between two checkpoints
    keep_checkpoints: Annotated[int, Field(ge=1, le=10_000)] = 2  # how many checkpoints to keep
    average_checkpoints: Annotated[int, Field(ge=1, le=10_000)] = 1  # the result is the mean of the last N checkpoints
    ema: Share = 0.0  # decay of a running average of the weights; 0 disables it
    patience: Count | None = None  # stop after this many validations without a new best
    max_bad_steps: Count = 5  # stop after this many non-finite steps in a row
    tensorboard: bool = False  # also write metrics for TensorBoard

    RULES = (Rule(("ema", "average_checkpoints"), lambda c: _one_average(c)),)
    FORMER_NAMES: ClassVar[Mapping[str, str]] = {
        "batch": "batch_size",
        "length": "sequence_length",
        "tokens": "batch_tokens",
        "accumulate": "gradient_accumulation",
        "smoothing": "label_smoothing",
        "clip": "max_grad_norm",
        "balance": "balance_loss",
        "router_z": "router_z_loss",
        "recompute": "activation_checkpointing",
        "keep": "keep_checkpoints",
        "average": "average_checkpoints",
        "bad_steps": "max_bad_steps",
    }
    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("max_steps", "max_iters", "iterations"), "steps"),
        **dict.fromkeys(("per_device_train_batch_size", "rows"), "batch_size"),
        **dict.fromkeys(("seq_len", "seq_length", "block_size", "max_length"), "sequence_length"),
        **dict.fromkeys(("gradient_accumulation_steps", "grad_accum", "accumulation"), "gradient_accumulation"),
        **dict.fromkeys(("label_smoothing_factor", "epsilon"), "label_smoothing"),
        **dict.fromkeys(("grad_clip", "gradient_clipping", "clip_grad"), "max_grad_norm"),
        **dict.fromkeys(("output", "out_dir", "output_dir"), "out"),
        **dict.fromkeys(("dtype", "amp", "mixed_precision"), "precision"),
        **dict.fromkeys(("eval_every", "eval_interval"), "validate_every"),
        **dict.fromkeys(("gradient_checkpointing", "checkpointing"), "activation_checkpointing"),
        "save_total_limit": "keep_checkpoints",
    }


class OptimizerSettings(Settings):
    """[optimizer]: the update rule of the weights."""

    kind: Literal["adamw", "sgd", "muon"] = "adamw"  # the update rule
    learning_rate: Annotated[float, Field(gt=0.0, le=1e3)] | None = None  # the peak; default: computed from the
    # optimizer and the width
    beta1: Share = 0.9  # adamw: decay of the mean of the gradients
    beta2: Share = 0.95  # adamw: decay of the mean of their squares
    epsilon: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-8  # adamw: ε, added to the denominator
    weight_decay: Amount = 0.1  # matrices only; biases, norms and position tables do not decay
    momentum: Share = 0.95  # sgd and muon: decay of the sum of the gradients

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"rate": "learning_rate"}
    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("lr", "max_lr"), "learning_rate"),
        **dict.fromkeys(("eps",), "epsilon"),
        **dict.fromkeys(("decay", "wd"), "weight_decay"),
    }


class ScheduleSettings(Settings):
    """[schedule]: the learning rate from the first step to the last."""

    kind: ScheduleKind = "cosine"  # the curve of the learning rate after the warmup
    warmup: Many = 0  # steps until the peak
    decay: Many = 0  # wsd: steps of the final decrease
    min_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0  # final learning rate divided by the peak

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"floor": "min_ratio"}
    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("warmup_steps", "warmup_iters"), "warmup"),
        **dict.fromkeys(("min_lr", "minimum", "min_lr_ratio"), "min_ratio"),
    }


class ContrastiveSettings(Settings):
    """[contrastive]: the loss of data.kind = "sentences"; every other row of a step is a negative."""

    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 0.05  # cosines are divided by it
    both_directions: bool = False  # also find each anchor by its positive
    widths: list[Annotated[int, Field(ge=1, le=1 << 16)]] | None = None  # the first w elements of a vector are trained
    # as vectors, too (Matryoshka)

    ALIASES: ClassVar[Mapping[str, str]] = {
        "tau": "temperature",
        **dict.fromkeys(("matryoshka", "matryoshka_dims", "truncate_dims"), "widths"),
        "symmetric": "both_directions",
    }


class DistillationSettings(Settings):
    """[distillation]: a teacher whose probabilities the model learns, beside the labels."""

    teacher: Annotated[str, Field(min_length=1)]  # a model with the same tokenizer, which the student takes from it
    temperature: Annotated[float, Field(gt=0.0, le=1e3)] = 2.0  # τ: the logits of teacher and student are divided by it
    weight: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5  # share of the teacher in the loss; the labels have the rest


class AdapterSettings(LoraSettings):
    """[lora]: the adapter, and the precision of the frozen model."""

    base: Literal["float32", "bf16", "int8", "int4"] = "float32"  # precision of the frozen model; int4: QLoRA


class PreferenceSettings(Settings):
    """[preference]: how a model learns from preferences (`training.objectives.preference`)."""

    method: Literal["dpo", "ipo", "hinge"] = "dpo"  # the loss
    beta: Annotated[float, Field(gt=0.0, le=1e3)] = 0.1  # larger: closer to the reference model
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0  # dpo: share of pairs that may be wrong

    RULES = (Rule(("label_smoothing", "method"), lambda c: _only_for_dpo(c)),)


class GrpoSettings(Settings):
    """[grpo]: how a model learns from its own answers (`training.objectives.grpo`, `training.rewards`)."""

    reward: Literal["exact", "number", "words"] = "exact"  # the rule that compares an answer with the right one
    method: Literal["grpo", "dr_grpo"] = "dr_grpo"  # how advantages and lengths are normalized
    samples: Annotated[int, Field(ge=2, le=1024)] = 8  # answers for each prompt, which are compared with each other
    max_new_tokens: Annotated[int, Field(ge=1, le=1 << 16)] = 64  # an answer that does not end within this gets 0
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0  # of the sampled answers
    updates: Annotated[int, Field(ge=1, le=100)] = 1  # weight updates with the same answers
    clip: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2  # how far an update may change a probability, as a share
    beta: Annotated[float, Field(ge=0.0, le=1e3)] = 0.04  # larger: closer to the reference model; 0: no reference

    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("num_generations", "group", "group_size"), "samples"),
        "num_iterations": "updates",
        "max_completion_length": "max_new_tokens",
        "epsilon": "clip",
    }


def as_list(files: Files | None) -> list[str]:
    """The file names of a key that accepts one name or a list; an empty name means none."""
    return [files] if files and isinstance(files, str) else list(files or [])


def columns_of(data: DataSettings) -> tuple[str | int, str | int]:
    """The two columns of data.columns, by default the first two."""
    return (data.columns[0], data.columns[1]) if data.columns else (0, 1)


def languages_of(data: DataSettings) -> tuple[str | None, str | None]:
    """The two languages of data.languages, or (None, None)."""
    return (data.languages[0], data.languages[1]) if data.languages else (None, None)


def _files_required(c: Any) -> str | None:
    if c.prepared is not None:
        return "data.prepared already has the tokens; leave this key out." if c.files is not None else None
    if c.kind in ("embedded", "own"):
        return f"data of kind '{c.kind}' needs no files; leave this key out." if c.files is not None else None
    return None if c.files and all(c.files) else "this key is needed: name the training files."


def _prepared_alone(c: Any) -> str | None:
    if c.prepared is None:
        return None
    if c.kind not in ("text", "pairs"):
        return f"this key is for data of kind 'text' or 'pairs', not '{c.kind}'."
    given = [key for key in FIXED_BY_PREPARE if getattr(c, key)]
    if c.kind == "pairs" and c.validation_share is not None:
        given.append("validation_share")
    return f"`chumoku prepare` has already decided {', '.join(given)}; leave that out." if given else None


def _column_count(c: Any) -> str | None:
    if c.kind != "sentences" or c.columns is None:
        return _exactly_two(c.columns)
    return None if len(c.columns) in (2, 3) else f"two or three columns are needed; {len(c.columns)} were given."


def _exactly_two(values: list[Any] | None) -> str | None:
    return None if values is None or len(values) == 2 else f"two values are needed, and {len(values)} were given."


def _one_way_to_validate(c: Any) -> str | None:
    if c.validation_share is None or not c.validation_files:
        return None
    return "give validation_share (a share of the files) or validation_files, not both."


def _one_weight_per_file(c: Any) -> str | None:
    if c.weights is None or len(c.weights) == len(as_list(c.files)):
        return None
    return f"the length of weights is {len(c.weights)}, that of files {len(as_list(c.files))}; give a weight for each."


def _languages_required(c: Any) -> str | None:
    if not c.both_directions or (c.languages and len(set(c.languages)) == 2):
        return None
    return 'both_directions needs two languages, for example ["ja", "en"]: a source starts with its target language.'


def _only_for_dpo(c: Any) -> str | None:
    return None if c.method == "dpo" or c.label_smoothing == 0 else "this key is for method = 'dpo'."


def _one_average(c: Any) -> str | None:
    if c.ema == 0 or c.average_checkpoints == 1:
        return None
    return "give ema (a running average) or average_checkpoints (the mean of the last checkpoints), not both."
