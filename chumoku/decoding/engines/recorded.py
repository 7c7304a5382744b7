"""Recording during generation: the fast engine computes the logits, and the PyTorch model beside it is recorded.

    engine     computes as without recording: its logits, and so every token, are the same to the last bit
    shadow     the PyTorch model computes the same tokens with its own cache, so that there are tensors to record

The recorded logits are the engine's. All other tensors come from the PyTorch model; they differ from the engine's
internal values only by rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.record_check import without_recording
from chumoku.nn.tap import tap


class ShadowEngine(TorchEngine):
    """The PyTorch model with its own cache; its logits are replaced by those of another engine."""

    logits: Tensor  # of the other engine, for the tokens being computed

    def _to_logits(self, hidden: Tensor) -> Tensor:
        return tap(self.model, "logits", self.logits.view(*hidden.shape[:-1], -1))


class RecordedEngine:
    """An engine with a PyTorch model that computes the same rows."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shadow = ShadowEngine(engine.model, rows=engine.rows, capacity=engine.capacity)
        self.rows, self.capacity, self.vocabulary = engine.rows, engine.capacity, engine.vocabulary

    @property
    def model(self) -> DecoderModel | EncoderDecoderModel:
        return self.engine.model

    @property
    def device(self) -> torch.device:
        return self.engine.device

    @property
    def live(self) -> int:
        return self.engine.live

    @property
    def lengths(self) -> list[int]:
        return self.engine.lengths

    @property
    def earliest(self) -> list[int]:
        return list(map(max, self.engine.earliest, self.shadow.earliest))

    @property
    def nbytes(self) -> int:
        return self.engine.nbytes + self.shadow.nbytes

    @property
    def most_likely(self) -> Tensor | None:
        return self.engine.most_likely

    @property
    def adapters(self) -> Collection[str]:
        return ()

    def add_rows(
        self,
        count: int,
        sources: Sequence[Sequence[int]] | None = None,
        adapters: Sequence[str | None] | None = None,
    ) -> None:
        with without_recording():
            self.engine.add_rows(count, sources, adapters)
        self.shadow.add_rows(count, sources, adapters)

    def prefill(self, prompts: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        with without_recording():
            self.shadow.logits = self.engine.prefill(prompts, first=first)
        self.shadow.prefill(prompts, first=first)
        return self.shadow.logits

    def step(self, tokens: Tensor) -> Tensor:
        with without_recording():
            self.shadow.logits = self.engine.step(tokens)
        self.shadow.step(tokens)
        return self.shadow.logits

    def extend(self, tokens: Tensor) -> Tensor:
        with without_recording():
            self.shadow.logits = self.engine.extend(tokens)
        self.shadow.extend(tokens)
        return self.shadow.logits

    def truncate(self, lengths: Sequence[int]) -> None:
        self.engine.truncate(lengths)
        self.shadow.truncate(lengths)

    def select_rows(self, rows: Sequence[int]) -> None:
        self.engine.select_rows(rows)
        self.shadow.select_rows(rows)
