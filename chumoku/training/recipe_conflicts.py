"""Recipe settings that do not fit together, although each of them is valid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from chumoku.errors import ChumokuError, Problem
from chumoku.model_path import check_model, resolve_run
from chumoku.models.config import SCORE_POSITIONS, ModelConfig
from chumoku.training.settings import LABEL_HEADS

if TYPE_CHECKING:
    from chumoku.training.recipe import Recipe

DATA_KINDS = {  # by the kind of model; "own" fits all
    "decoder": ("text", "chat", "preferences", "prompts", "labels", "tags"),
    "encoder": ("text", "sentences", "labels", "tags"),
    "encoder-decoder": ("pairs", "embedded", "text"),
}


def find_conflicts(recipe: Recipe) -> Iterator[Problem]:
    """The problems of a recipe's tables together."""
    config = recipe.config()
    yield from _find_data_problems(recipe, config)
    yield from _find_tokenizer_problems(recipe, config)
    yield from _find_training_problems(recipe, config)
    yield from _find_packing_problems(recipe, config)
    yield from _find_teacher_problems(recipe, config)


def _find_data_problems(recipe: Recipe, config: ModelConfig) -> Iterator[Problem]:
    """Problems of data.kind, with the model and with the tables of an objective."""
    data = recipe.data
    kinds = DATA_KINDS[config.kind]
    if data.kind not in (*kinds, "own"):
        fits = ", ".join(kinds)
        yield Problem("data.kind", f"'{data.kind}' does not fit a model of kind '{config.kind}'; choose from {fits}.")
    elif config.labels is not None and data.kind not in (*LABEL_HEADS, "own"):
        sentence = f"this model has the head '{config.head}'; choose labels (classes of texts) or tags (of words)."
        yield Problem("data.kind", sentence)
    elif data.kind in LABEL_HEADS and recipe.model.get("head") not in (None, LABEL_HEADS[data.kind]):
        sentence = f"data.kind = '{data.kind}' trains the head '{LABEL_HEADS[data.kind]}'; leave this key out."
        yield Problem("model.head", sentence)
    elif data.kind == "sentences":
        yield from _find_sentence_problems(recipe, config)
    elif config.head_kind == "vector":
        key = "model.head" if recipe.init is None else "model.init"
        sentence = "this model outputs vectors, which are trained with data.kind = 'sentences'"
        yield Problem(key, f"{sentence}, or use head = 'masked' here." if recipe.init is None else f"{sentence}.")
    if recipe.contrastive is not None and data.kind != "sentences":
        yield Problem("contrastive", "this table is for data.kind = 'sentences'; leave it out.")
    if recipe.preference is not None and data.kind != "preferences":
        yield Problem("preference", "this table is for data.kind = 'preferences'.")
    if recipe.grpo is not None:
        yield from _find_prompt_problems(recipe)
    if data.separate_documents and config.kind == "encoder-decoder" and data.kind == "text":
        yield Problem("data.separate_documents", "span corruption has no separate documents; leave this key out.")


def _find_prompt_problems(recipe: Recipe) -> Iterator[Problem]:
    """Problems of [grpo], whose answers are generated in float32 between the steps."""
    train = recipe.train
    if recipe.data.kind != "prompts":
        yield Problem("grpo", "this table is for data.kind = 'prompts'.")
    elif recipe.init is None:
        yield Problem("model", "prompts need a model that already answers some of them: name it with model.init.")
    for key, wrong, way_out in (
        ("precision", train.precision != "float32", "answers are generated in float32; leave this key out."),
        ("compile", train.compile, "the generation of answers is not compiled; leave this key out."),
        ("parallel", train.parallel == "fsdp", "every process generates with the full model; choose ddp."),
    ):
        if wrong:
            yield Problem(f"train.{key}", way_out)


def _find_sentence_problems(recipe: Recipe, config: ModelConfig) -> Iterator[Problem]:
    if config.head_kind != "vector":
        yield Problem("model.head", "sentences train vectors: set head = 'vector', or leave this key out.")
    if config.norm == "batch":
        yield Problem("model.norm", "batch norm mixes the rows of a batch, so sentences need 'layer' or 'rms'.")
    if recipe.data.weights is not None:
        yield Problem("data.weights", "this key is for pairs; leave it out.")
    if recipe.data.both_directions:
        yield Problem("data.both_directions", "this key is for pairs; sentences have contrastive.both_directions.")
    for width in (recipe.contrastive.widths if recipe.contrastive else None) or ():
        if width > config.width:
            yield Problem("contrastive.widths", f"{width} is more than the model's width, {config.width}.")


def _find_tokenizer_problems(recipe: Recipe, config: ModelConfig) -> Iterator[Problem]:
    data = recipe.data
    if recipe.tokenizer.has_target and (config.kind != "encoder-decoder" or config.share_embeddings):
        why = "a model with share_embeddings" if config.share_embeddings else f"a model of kind '{config.kind}'"
        yield Problem("tokenizer.target_kind", f"{why} has one tokenizer; leave the target_ keys out.")
    if recipe.tokenizer.has_target and config.kind == "encoder-decoder" and data.kind == "text":
        yield Problem("tokenizer.target_kind", "a text has one tokenizer; leave the target_ keys out.")
    if recipe.tokenizer.has_target and data.both_directions:
        yield Problem("tokenizer.target_kind", "both directions share one tokenizer; leave the target_ keys out.")
    if recipe.tokenizer.target_vocabulary is not None and recipe.tokenizer.target_kind is None:
        yield Problem("tokenizer.target_vocabulary", "this key needs target_kind, which was not given.")


def _find_training_problems(recipe: Recipe, config: ModelConfig) -> Iterator[Problem]:
    """Problems of [lora], [train] and [schedule]."""
    train = recipe.train
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
    busy = recipe.schedule.warmup + recipe.schedule.decay
    if recipe.schedule.kind in ("cosine", "wsd") and busy > train.steps:
        sentence = (
            f"{busy:,} steps of warm-up and decay do not fit into train.steps = {train.steps:,}. For a short test add "
            f"schedule.warmup={train.steps // 10} schedule.decay=0."
        )
        yield Problem("schedule.warmup", sentence)


def _find_packing_problems(recipe: Recipe, config: ModelConfig) -> Iterator[Problem]:
    data, train = recipe.data, recipe.train
    if train.packing and (config.kind != "encoder-decoder" or data.kind == "text"):
        yield Problem("train.packing", "this key is for pairs; texts and conversations are packed anyway.")
    elif train.packing and (config.position in SCORE_POSITIONS or config.attention_window or config.experts):
        sentence = "packing works with sinusoidal, learned, rotary or no positions, without a window and experts."
        yield Problem("train.packing", sentence)
    elif train.packing and config.dropout.attention:
        yield Problem(
            "train.packing", "packing works without dropout of attention weights: set dropout.attention to 0."
        )


def _find_teacher_problems(recipe: Recipe, student: ModelConfig) -> Iterator[Problem]:
    """Problems of [distillation] that the teacher's config shows."""
    if recipe.distillation is None:
        return
    try:
        check_model(resolve_run(recipe.distillation.teacher))
        from chumoku.weights.open_model import read_model_config

        teacher = read_model_config(resolve_run(recipe.distillation.teacher))
    except ChumokuError as error:
        yield Problem("distillation.teacher", str(error))
        return
    if (teacher.kind, teacher.head_kind) != (student.kind, student.head_kind):
        sentence = (
            f"the teacher is of kind '{teacher.kind}' with the head '{teacher.head_kind}', the student of kind "
            f"'{student.kind}' with '{student.head_kind}'; both must be the same."
        )
        yield Problem("distillation.teacher", sentence)
