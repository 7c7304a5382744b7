"""How well a model expects a text.

    loss            Σ −log P(token | what stands before it) / tokens
    perplexity      e^loss: as if it chose among so many equally likely tokens
    bits per byte   Σ −log₂ P / bytes: comparable between models with different tokenizers

A text longer than the context is read in windows that overlap by half, so every token but those of the first window has
at least half a context before it. An encoder guesses tokens that are hidden from it instead, the same ones every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.engines.base import Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel, EncoderModel, Model
from chumoku.text import Tokenizer

HIDDEN = 0.15
ROWS_TOKENS = 1 << 13  # tokens of the windows that are read together …
AT_ONCE = 512  # … and logits that are formed at a time


@dataclass(frozen=True)
class TextScore:
    loss: float
    perplexity: float
    bits_per_byte: float | None  # of encoders none: they do not spell a text out
    tokens: int  # that were expected or guessed
    bytes: int

    def as_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


def score_text(
    model: Model,
    documents: Iterable[str],
    *,
    tokenizer: Tokenizer,
    progress: Callable[[int], object] = lambda tokens: None,
) -> TextScore:
    """Score documents one by one; `progress` hears how many tokens were read."""
    if not isinstance(model, (DecoderModel, EncoderModel)):
        raise UsageError("A translator is scored on pairs of sentences, not on a text.")
    if model.config.head_kind == "vector":
        raise UsageError("This encoder gives vectors and guesses no tokens, so a text cannot be scored with it.")
    total, tokens, size = 0.0, 0, 0
    with torch.inference_mode():
        for document in documents:
            ids = tokenizer.encode(document)
            if isinstance(model, DecoderModel):
                loss, counted = _expected(model, ids, tokenizer)
            else:
                loss, counted = _guessed(model, ids, tokenizer)
            total, tokens, size = total + loss, tokens + counted, size + len(document.encode("utf-8", "replace"))
            progress(len(ids))
    if not tokens:
        raise UsageError("This text has no token to be expected. Give one of two tokens or more.")
    loss = total / tokens
    bits = total / math.log(2) / size if isinstance(model, DecoderModel) else None
    return TextScore(loss, math.exp(min(loss, 700.0)), bits, tokens, size)


def _expected(model: DecoderModel, ids: list[int], tokenizer: Tokenizer) -> tuple[float, int]:
    """−log P of every token of a document and of its end, after its beginning or the end of another, as in training.

    The engine that generates text computes it, so that what is measured is what runs.
    """
    edge = [] if tokenizer.roles.end is None else [tokenizer.roles.end]
    ids = [*(tokenizer.frame[0] or edge), *ids, *edge]
    total, tokens, engine = 0.0, 0, None
    for inputs, labels, new in _windows(ids, model.config.context):
        if engine is None or engine.rows < len(inputs):
            engine = open_engine(model, rows=len(inputs), capacity=inputs.shape[1])
        total += _window_loss(engine, inputs, labels, new)
        tokens += len(labels) * new
    return total, tokens


def _window_loss(engine: Engine, inputs: Tensor, labels: Tensor, new: int) -> float:
    """The sum of −log P of the last `new` labels of each row [rows, length]."""
    engine.select_rows([])
    engine.add_rows(len(inputs))
    known, length = inputs.shape[1] - new, inputs.shape[1]
    if known:
        engine.prefill(inputs[:, :known].tolist())
    total, step = 0.0, max(1, AT_ONCE // len(inputs))
    for first in range(known, length, step):
        part = slice(first, min(first + step, length))
        logits = engine.extend(inputs[:, part].to(engine.device)).flatten(0, 1).float()
        total += float(F.cross_entropy(logits, labels[:, part].flatten().to(engine.device), reduction="sum"))
    return total


def _windows(ids: list[int], context: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Inputs and labels [rows, length], and how many of the last labels of each row are new.

    The first window stands alone; the others advance by half a context, and the last may overlap more.
    """
    length, step = min(context, len(ids) - 1), max(1, context // 2)
    if length < 1:
        return
    row = torch.tensor(ids)
    yield row[None, :length], row[None, 1 : length + 1], length
    starts = list(range(step, len(ids) - length, step))
    most = max(1, ROWS_TOKENS // length)
    for first in range(0, len(starts), most):
        places = torch.tensor(starts[first : first + most])[:, None] + torch.arange(length)
        yield row[places], row[places + 1], step
    covered = length + step * len(starts)
    if covered < len(ids) - 1:
        yield row[None, -length - 1 : -1], row[None, -length:], len(ids) - 1 - covered


def _guessed(model: Model, ids: list[int], tokenizer: Tokenizer) -> tuple[float, int]:
    mask = tokenizer.roles.mask
    if mask is None:
        raise UsageError("This tokenizer has no mask token, so nothing can be hidden from the model.")
    total, tokens = 0.0, 0
    random = np.random.default_rng(0)
    for start in range(0, len(ids), model.config.context):
        row = torch.tensor(ids[start : start + model.config.context])
        hidden = torch.from_numpy(random.random(len(row)) < HIDDEN)
        if hidden.any():
            logits = model(torch.where(hidden, mask, row)[None].to(model.device)).logits[0]
            losses = F.cross_entropy(logits.float().cpu()[hidden], row[hidden], reduction="sum")
            total, tokens = total + float(losses), tokens + int(hidden.sum())
    return total, tokens
