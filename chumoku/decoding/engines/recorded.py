"""Recording while text is generated: the same engine chooses every token, and the plain model shows the inside.

    engine    computes as if nobody looked: its logits, and so every token, are the same to the last bit
    beside    the plain model reads the same tokens over a cache of its own, so that there are tensors to record

The logits on the tape are the engine's. Every other tensor is the plain model's; it differs from what the engine had
inside by the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.record_check import without_recording
from chumoku.nn.tap import tap


class Beside(TorchEngine):
    """The plain model over a cache of its own, whose logits are those of another engine."""

    given: Tensor  # logits of the other engine after the tokens that are read now

    def _answer(self, hidden: Tensor) -> Tensor:
        return tap(self.model, "logits", self.given.view(*hidden.shape[:-1], -1))


class RecordedEngine:
    """An engine whose rows the plain model reads too."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.beside = Beside(engine.model, rows=engine.rows, capacity=engine.capacity)
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
    def nbytes(self) -> int:
        return self.engine.nbytes + self.beside.nbytes

    def enter(self, count: int, sources: Sequence[Sequence[int]] | None = None) -> None:
        with without_recording():
            self.engine.enter(count, sources)
        self.beside.enter(count, sources)

    def read(self, pieces: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        with without_recording():
            self.beside.given = self.engine.read(pieces, first=first)
        self.beside.read(pieces, first=first)
        return self.beside.given

    def step(self, tokens: Tensor) -> Tensor:
        with without_recording():
            self.beside.given = self.engine.step(tokens)
        self.beside.step(tokens)
        return self.beside.given

    def extend(self, tokens: Tensor) -> Tensor:
        with without_recording():
            self.beside.given = self.engine.extend(tokens)
        self.beside.extend(tokens)
        return self.beside.given

    def forget(self, lengths: Sequence[int]) -> None:
        self.engine.forget(lengths)
        self.beside.forget(lengths)

    def take(self, rows: Sequence[int]) -> None:
        self.engine.take(rows)
        self.beside.take(rows)
