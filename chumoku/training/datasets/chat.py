"""data.kind = "chat": conversations for a decoder that has a chat template; only the assistant's tokens are learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chumoku.data.chat_batches import ChatBatches
from chumoku.data.chat_samples import ConversationEncoder, show_sample
from chumoku.data.conversations import Columns, read_conversations
from chumoku.data.manifest import describe_report, read_manifest
from chumoku.data.prepared_chat import open_chat, prepare_chat
from chumoku.data.report import Report
from chumoku.data.text_files import find_files
from chumoku.errors import UsageError
from chumoku.text.progress import Progress
from chumoku.training.datasets.training_data import TrainingData, hash_tokens
from chumoku.training.recipe import Recipe
from chumoku.training.settings import DataSettings, as_list, columns_of
from chumoku.weights.bundle import Bundle


def prepare_chat_data(recipe: Recipe, folder: Path, init: Bundle | None, progress: Progress) -> TrainingData:
    data, train = recipe.data, recipe.train
    tokenizer, config = require_init(init).tokenizer, recipe.config()
    length = train.sequence_length or config.context
    reading: dict[str, Any] = {"length": length, "columns": chat_columns(data), "progress": progress}
    share = 0.0 if data.validation_files else data.held_out
    prepared = prepare_chat(as_list(data.files), tokenizer, folder / "chat", validation=share, **reading)
    validation_folder, part = prepared, "validation"
    if data.validation_files:
        names, part = as_list(data.validation_files), "train"
        validation_folder = prepare_chat(names, tokenizer, folder / "validation", validation=0.0, **reading)
    shape: dict[str, Any] = {"length": length, "rows": train.batch_size, "pad": tokenizer.roles.pad or 0}
    conversations = open_chat(prepared)
    batches = ChatBatches(conversations, seed=train.seed, **shape)
    return TrainingData(
        config,
        tokenizer,
        tokenizer,
        batches,
        ChatBatches(open_chat(validation_folder, part), **shape),
        corpus=hash_tokens(read_manifest(prepared)["parts"], read_manifest(validation_folder)["parts"]),
        length=batches.width,
        fewest_rows=batches.fewest_rows,
        notes=describe_report(prepared, "conversations"),
        tokens_a_term=len(conversations.tokens.tokens) / max(1, int(conversations.learned.tokens[:].sum())),
    )


def chat_columns(data: DataSettings) -> Columns:
    return columns_of(data) if data.columns else None


def require_init(init: Bundle | None) -> Bundle:
    """The model to start from; UsageError without one."""
    if init is None:
        raise UsageError(
            "Conversations need a model with a tokenizer and a chat template: name it with model.init, for example "
            "model.init=smollm2.gguf or model.init=hf:owner/name."
        )
    return init


def first_sample(recipe: Recipe, init: Bundle | None) -> str:
    """The first conversation as the model gets it, with ⟦ ⟧ around what is learned."""
    tokenizer, report = require_init(init).tokenizer, Report()
    encoder = ConversationEncoder(tokenizer, recipe.train.sequence_length or recipe.config().context)
    problem = "the files are empty"
    for one in read_conversations(find_files(as_list(recipe.data.files)), chat_columns(recipe.data), report):
        encoded = None if one.problem else encoder(one.messages, one.tools)
        if encoded is not None and encoded.samples:
            return show_sample(encoded.samples[0], tokenizer)
        problem = f"{one.file}:{one.line}: {one.problem or (encoded and (encoded.detail or encoded.problem))}"
    raise UsageError(f"There is no usable conversation in data.files; {problem}.")
