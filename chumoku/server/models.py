"""The models that are served: a name for each, and nothing that a request says ever opens another.

runs/demo            → demo           its last bundle
runs/demo/best       → demo-best      where demo is taken; else demo
smollm2.Q4_1.gguf    → smollm2.Q4_1
small=path/to/model  → small
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chumoku.decoding.chat import format_for
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.scheduler import Scheduler
from chumoku.errors import TooLargeError, UsageError
from chumoku.models.model import DecoderModel, Model
from chumoku.pipeline import Pipeline, load
from chumoku.server.errors import Refusal, busy
from chumoku.server.fair_lock import Turns
from chumoku.server.security.limits import Limits
from chumoku.server.worker import Worker

CHUNK = 64  # tokens of prompts in the first step; the worker finds out how many it can be
NAME = re.compile(r"[\w.+@ -]{1,128}")
WAYS = {"encoder": "/v1/embeddings", "decoder": "/v1/completions", "encoder-decoder": "/v1/translate"}
PLAIN = {"last", "best", "model"}  # folders that are called after what lies in them, not after the model
M = TypeVar("M", bound=Model)
SUFFIXES = {".gguf", ".bin", ".safetensors"}


@dataclass
class Served:
    """One model and its worker; `load` counts the texts that were taken on and are not finished."""

    name: str
    pipeline: Pipeline
    limits: Limits
    turns: Turns
    created: int = field(default_factory=lambda: int(time.time()))
    load: int = 0

    def __post_init__(self) -> None:
        self.worker = Worker(self.name, self._scheduler, self.turns)

    @property
    def capacity(self) -> int:
        """Tokens of prompt and text together."""
        return min(self.pipeline.config.context, self.limits.context)

    @property
    def token_bytes(self) -> int:
        """Keys and values of one position of one row."""
        config = self.pipeline.config
        return 2 * 4 * config.decoder_depth * config.key_heads * config.head_width if config.kind != "encoder" else 0

    @property
    def rows(self) -> int:
        most = int(self.limits.memory * (1 << 30)) // max(1, self.token_bytes * self.capacity)
        return max(1, min(self.limits.rows, most))

    @property
    def card(self) -> dict[str, Any]:
        """What /v1/models says."""
        config, tokenizer = self.pipeline.config, self.pipeline.source_tokenizer
        decoder = config.kind == "decoder"
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "chumoku",
            "kind": config.kind,
            "context": self.capacity if decoder else config.context,
            "vocabulary": config.vocabulary,
            "heads": config.heads,
            "layers": config.layers,
            "encoder_layers": (config.encoder_layers or config.layers) if config.kind == "encoder-decoder" else None,
            "width": config.width,
            "position": config.position,
            "norm": config.norm,
            "feedforward": config.feedforward,
            "chat": decoder and format_for(self.pipeline.tokenizer) != "plain",
            "into": sorted(tokenizer.roles.languages) or None if config.kind == "encoder-decoder" else None,
        }

    def admit(self, texts: int) -> None:
        """Take so many texts on, or say when to come again."""
        room = self.limits.queue + (self.rows if self.pipeline.config.kind == "decoder" else 1)
        if texts > room:
            raise Refusal(400, f"{texts} texts were asked for at once, and {room} can be. Ask for fewer.")
        if self.load + texts > room:
            waiting = self.load - room + self.limits.queue
            raise busy(
                f"{self.load} texts are being written or wait for {self.name}, and no more can. Try again later.",
                seconds=1 + waiting // 16,
            )
        self.load += texts

    def release(self, texts: int) -> None:
        self.load -= texts

    def _scheduler(self) -> Scheduler:
        model = self.pipeline.model
        if not isinstance(model, DecoderModel):
            raise UsageError(f"{self.name} goes on from no text: it is of kind '{self.pipeline.config.kind}'.")
        rows = self.rows
        while True:
            try:
                engine = open_engine(model, rows=rows, capacity=self.capacity)
                # `admit` says how many may wait.
                return Scheduler(engine, queue=self.limits.queue + self.limits.rows, chunk=CHUNK)
            except TooLargeError:
                if rows == 1:
                    raise
                rows = max(1, rows // 2)  # a small machine writes fewer texts at once


def as_kind(served: Served, kind: type[M], cannot: str) -> M:
    """The model, where it is of this kind; else where to ask it instead."""
    model = served.pipeline.model
    if not isinstance(model, kind):
        name = served.pipeline.config.kind
        raise Refusal(400, f"{served.name} is of kind '{name}' and {cannot}. Ask it at {WAYS[name]}.", param="model")
    return model


def found(models: Mapping[str, Served], name: str) -> Served:
    """The model of this name, from the list alone."""
    if name not in models:
        known = ", ".join(models)
        raise Refusal(
            404, f"There is no model of this name here. There are: {known}.", param="model", code="model_not_found"
        )
    return models[name]


def open_models(
    given: Sequence[str], limits: Limits, *, device: str = "cpu", precision: str | None = None
) -> dict[str, Served]:
    """Open each model once, independent of its files from then on; those on one device take turns."""
    turns = Turns()
    return {
        name: Served(name, load(path, device=device, precision=precision, in_memory=True), limits, turns)
        for name, path in named(given).items()
    }


def named(given: Sequence[str]) -> dict[str, str]:
    """Name → path, every name once."""
    models: dict[str, str] = {}
    for word in given:
        name, _, path = word.rpartition("=") if "=" in word and not os.path.exists(word) else ("", "", word)
        if name and (not NAME.fullmatch(name) or name in models):
            raise UsageError(f"'{name}' cannot be a model's name here: letters, digits and .+@-_, each name once.")
        place = opened_place(path)
        models[name or free_name(place, models)] = place
    if not models:
        raise UsageError("Name a model or more to serve: folders or files, as in: chumoku serve runs/demo.")
    return models


def opened_place(path: str) -> str:
    """A run's folder stands for its last bundle."""
    folder = Path(path)
    if folder.is_dir() and not (folder / "config.json").exists() and (folder / "last" / "config.json").exists():
        return str(folder / "last")
    return path


def free_name(path: str, taken: Mapping[str, str]) -> str:
    place = Path(path.removeprefix("hf:"))
    stem = place.stem if place.suffix in SUFFIXES else place.name
    stem = "".join(char if NAME.fullmatch(char) else "-" for char in stem) or "model"
    parent = place.resolve().parent.name
    wanted = parent if stem in PLAIN and parent else stem
    tries = (wanted, f"{parent}-{stem}", *(f"{wanted}-{number}" for number in range(2, 1 + len(taken) + 2)))
    return next(name for name in tries if name not in taken)
