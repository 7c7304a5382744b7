"""The served models and their names. A request can only choose from this list; it never opens a file.

runs/demo            → demo           the last bundle of the run
runs/demo/best       → demo-best      or demo, if that name is free
smollm2.Q4_1.gguf    → smollm2.Q4_1
small=path/to/model  → small
--adapter poems=path → poems          the only model, with this LoRA adapter; all adapters share its weights and batch
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chumoku.decoding.chat import missing_template_notice
from chumoku.decoding.engines.native import build
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.model_card import default_sampling, model_card
from chumoku.decoding.scheduler import Scheduler
from chumoku.errors import TooLargeError, UsageError
from chumoku.model_path import resolve_run
from chumoku.models.limit_context import limit_longrope
from chumoku.models.model import DecoderModel, Model
from chumoku.nn.lora import Adapter
from chumoku.pipeline import Pipeline, load
from chumoku.server.adapters import open_adapter
from chumoku.server.errors import RequestError, busy_error
from chumoku.server.fair_lock import FairLock
from chumoku.server.security.limits import Limits
from chumoku.server.worker import Worker
from chumoku.text import chat_template_process
from chumoku.training.example_sentences import examples_for

CHUNK = 64  # prompt tokens in the first step; the worker adjusts it
NAME = re.compile(r"[\w.+@ -]{1,128}")
ROUTES = {"encoder": "/v1/embeddings", "decoder": "/v1/completions", "encoder-decoder": "/v1/translate"}
GENERIC_NAMES = {"last", "best", "model"}  # folder names that do not identify a model
M = TypeVar("M", bound=Model)
SUFFIXES = {".gguf", ".bin", ".safetensors"}


@dataclass
class ServedModel:
    """One model with its adapters, and its worker; `pending` counts the accepted texts that are not finished."""

    name: str
    pipeline: Pipeline
    limits: Limits
    lock: FairLock
    examples: Sequence[str] = ()
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()))
    pending: int = 0

    def __post_init__(self) -> None:
        self.pipeline.require_tokenizer()
        if self.pipeline.tokenizer.chat_template is not None:
            chat_template_process.start()
        self.worker = Worker(self.name, self._open_scheduler, self.lock)

    @property
    def default_sampling(self) -> dict[str, float | None]:
        """The sampling options of a request that sets none."""
        return default_sampling(self.pipeline.generation_config)

    @property
    def chat_notice(self) -> str | None:
        """A sentence for a language model without a chat template; None for others."""
        return missing_template_notice(self.pipeline.tokenizer) if self.pipeline.config.kind == "decoder" else None

    @property
    def engine_notice(self) -> str | None:
        """A sentence for a model that decodes slowly because there is no native library; None for others."""
        config = self.pipeline.config
        decodes = config.kind != "encoder" and config.predicts_tokens
        return build.why_not() if decodes and self.pipeline.model.device.type == "cpu" else None

    @property
    def capacity(self) -> int:
        """Maximal number of prompt and generated tokens together."""
        return min(self.pipeline.config.context, self.limits.context)

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values for one position of one row."""
        config = self.pipeline.config
        return 2 * 4 * config.decoder_depth * config.key_heads * config.key_width if config.kind != "encoder" else 0

    @property
    def rows(self) -> int:
        """Number of texts generated at once, limited by memory."""
        fitting = int(self.limits.memory * (1 << 30)) // max(1, self.token_bytes * self.capacity)
        return max(1, min(self.limits.rows, fitting))

    @property
    def card(self) -> dict[str, Any]:
        """The model's entry in /v1/models."""
        return model_card(
            self.name,
            self.pipeline.config,
            tokenizer=self.pipeline.tokenizer,
            source_tokenizer=self.pipeline.source_tokenizer,
            generation_config=self.pipeline.generation_config,
            capacity=self.capacity,
            created=self.created,
            examples=self.examples,
        )

    @property
    def cards(self) -> list[dict[str, Any]]:
        """The entries of the model and its adapters in /v1/models."""
        return [self.card, *({**self.card, "id": name, "parent": self.name} for name in self.adapters)]

    def admit(self, texts: int) -> None:
        """Count these texts as pending; raises RequestError if they exceed the limits."""
        room = self.limits.queue + (self.rows if self.pipeline.config.kind == "decoder" else 1)
        if texts > room:
            raise RequestError(400, f"{texts} texts were requested at once; the limit is {room}.")
        if self.pending + texts > room:
            waiting = self.pending - room + self.limits.queue
            raise busy_error(
                f"The queue of {self.name} is full: {self.pending} texts are running or waiting. Try again later.",
                seconds=1 + waiting // 16,
            )
        self.pending += texts

    def release(self, texts: int) -> None:
        self.pending -= texts

    def _open_scheduler(self) -> Scheduler:
        model = self.pipeline.model
        if not isinstance(model, DecoderModel) or model.config.labels is not None:
            found = model.config.head if model.config.labels is not None else model.config.kind
            raise UsageError(f"{self.name} cannot generate text: it is of kind '{found}'.")
        rows = self.rows
        while True:
            try:
                engine = open_engine(model, rows=rows, capacity=self.capacity, adapters=self.adapters)
                # The queue is limited by `admit`, so the scheduler's own limit is never reached.
                return Scheduler(engine, queue=self.limits.queue + self.limits.rows, chunk=CHUNK, reuse=True)
            except TooLargeError:
                if rows == 1:
                    raise
                rows = max(1, rows // 2)  # not enough memory for so many rows


def require_kind(served: ServedModel, kind: type[M], cannot: str) -> M:
    """The model if it is of this kind; otherwise raises RequestError with the route that accepts it."""
    model = served.pipeline.model
    if not isinstance(model, kind) or (isinstance(model, DecoderModel) and model.config.labels is not None):
        config = served.pipeline.config
        message = f"{served.name} is of kind '{config.kind}' and {cannot}. Use {route_of(served)} for it."
        if config.labels is not None:
            message = f"{served.name} has the head '{config.head}' and {cannot}. Use {route_of(served)} for it."
        raise RequestError(400, message, param="model")
    return model


def route_of(served: ServedModel) -> str:
    """The route that accepts the model."""
    return ROUTES[served.pipeline.config.kind] if served.pipeline.config.labels is None else "/v1/classify"


def find_adapter(models: Mapping[str, ServedModel], name: str) -> tuple[ServedModel, str | None]:
    """The model with this name and None, or the model with an adapter of this name, and this name."""
    if name in models:
        return models[name], None
    if served := next((one for one in models.values() if name in one.adapters), None):
        return served, name
    known = ", ".join(list_names(models))
    message = f"There is no model with this name. Available: {known}."
    raise RequestError(404, message, param="model", code="model_not_found")


def find_model(models: Mapping[str, ServedModel], name: str) -> ServedModel:
    """The model with this name, which must not be an adapter's."""
    served, adapter = find_adapter(models, name)
    if adapter is not None:
        message = f"{name} is an adapter, which can only generate text. Use {served.name} here."
        raise RequestError(400, message, param="model")
    return served


def list_names(models: Mapping[str, ServedModel]) -> list[str]:
    """The names of all models and adapters."""
    return [name for served in models.values() for name in (served.name, *served.adapters)]


def open_models(
    given: Sequence[str],
    limits: Limits,
    *,
    adapters: Sequence[str] = (),
    device: str = "cpu",
    precision: str | None = None,
    context: int | None = None,
) -> dict[str, ServedModel]:
    """Load all models into memory, independent of their files; they share one lock and compute in turn.

    adapters    LoRA adapters as PATH or NAME=PATH, if there is only one model
    context     decides the frequencies of models with longrope; by default their own context does
    """
    names, lock = name_models(given, adapters), FairLock()
    paths, models = list(names.items()), {}
    for name, path in paths[: len(given)]:
        pipeline = load(path, device=device, precision=precision, in_memory=True)
        if context is not None:
            limit_longrope(pipeline.model, context)
        own = {adapter: open_adapter(pipeline.model, folder) for adapter, folder in paths[len(given) :]}
        models[name] = ServedModel(name, pipeline, limits, lock, examples_for(path), own)
    return models


def name_models(given: Sequence[str], adapters: Sequence[str] = ()) -> dict[str, str]:
    """Name → path for arguments of the form PATH or NAME=PATH, first of the models; names are unique."""
    models: dict[str, str] = {}
    if adapters and len(given) != 1:
        raise UsageError(f"Adapters belong to one model, but {len(given)} models were given. Serve one of them.")
    for argument in (*given, *adapters):
        split = "=" in argument and not os.path.exists(argument)
        name, _, path = argument.rpartition("=") if split else ("", "", argument)
        if name and (not NAME.fullmatch(name) or name in models):
            raise UsageError(f"'{name}' is not a valid model name. Use letters, digits and .+@-_, each name once.")
        resolved = str(resolve_run(path))
        models[name or pick_name(resolved, models)] = resolved
    if not models:
        raise UsageError("Give at least one model to serve, a folder or a file: chumoku serve runs/demo.")
    return models


def pick_name(path: str, taken: Mapping[str, str]) -> str:
    """A free name for the model at a path."""
    location = Path(path.removeprefix("hf:"))
    stem = location.stem if location.suffix in SUFFIXES else location.name
    stem = "".join(char if NAME.fullmatch(char) else "-" for char in stem) or "model"
    parent = location.resolve().parent.name
    preferred = parent if stem in GENERIC_NAMES and parent else stem
    tries = (preferred, f"{parent}-{stem}", *(f"{preferred}-{number}" for number in range(2, 1 + len(taken) + 2)))
    return next(name for name in tries if name not in taken)
