"""Perplexity: how well a model predicts a text.

    loss            Σ −log P(token | tokens before it) / tokens
    perplexity      e^loss: the equivalent number of equally likely tokens
    bits per byte   Σ −log₂ P / bytes: comparable between models with different tokenizers

A text longer than the context is split into windows that overlap by half, so every token after the first window has at
least half a context before it. An encoder predicts masked tokens instead, the same ones every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.engines.open_engine import open_engine
from chumoku.errors import UsageError
from chumoku.evaluation.token_scores import BATCH_TOKENS, score_labels
from chumoku.models.model import DecoderModel, EncoderModel, Model
from chumoku.text import Tokenizer
from chumoku.text.progress import Progress, silent

MASKED = 0.15  # share of tokens masked for an encoder


@dataclass(frozen=True)
class TextScore:
    loss: float
    perplexity: float
    bits_per_byte: float | None  # None for encoders, which do not predict the whole text
    tokens: int  # that were predicted
    bytes: int

    def as_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


def score_text(
    model: Model,
    documents: Iterable[str],
    *,
    tokenizer: Tokenizer,
    progress: Progress = silent,
) -> TextScore:
    """Score documents one by one; `progress` is called with the number of predicted tokens so far."""
    if not isinstance(model, (DecoderModel, EncoderModel)):
        raise UsageError("A translation model is scored on pairs of sentences, not on a text.")
    if not model.config.predicts_tokens:
        raise UsageError("This model predicts no tokens, so it cannot score a text.")
    total, tokens, size = 0.0, 0, 0
    with torch.inference_mode():
        for document in documents:
            ids, loss = tokenizer.encode(document), 0.0
            if isinstance(model, DecoderModel):
                parts = _score_decoder(model, ids, tokenizer)
            else:
                parts = _score_encoder(model, ids, tokenizer)
            for part, scored in parts:
                loss, tokens = loss + part, tokens + scored
                progress("scoring", tokens, unit="tokens")
            total, size = total + loss, size + len(document.encode("utf-8", "replace"))
    if not tokens:
        raise UsageError("This text has no token to predict. Give a text of two tokens or more.")
    loss = total / tokens
    bits = total / math.log(2) / size if isinstance(model, DecoderModel) else None
    return TextScore(loss, math.exp(min(loss, 700.0)), bits, tokens, size)


def _score_decoder(model: DecoderModel, ids: list[int], tokenizer: Tokenizer) -> Iterator[tuple[float, int]]:
    """For each part of a document with its end token, framed as in training: Σ −log P, and the number of tokens.

    Computed by the same engine that generates text.
    """
    edge = tokenizer.roles.end_tokens
    ids = [*(tokenizer.prefix_and_suffix[0] or edge), *ids, *edge]
    engine = None
    for inputs, labels, new in _windows(ids, model.config.context):
        if engine is None or engine.rows < len(inputs):
            engine = open_engine(model, rows=len(inputs), capacity=inputs.shape[1])
        context = inputs.shape[1] - new
        logprobs, _ = score_labels(engine, inputs[:, :context].tolist(), inputs[:, context:], labels[:, context:])
        yield -float(logprobs.sum()), len(labels) * new


def _windows(ids: list[int], context: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Inputs and labels [rows, length], and how many labels at the end of each row are new.

    The first window is alone; the others advance by half a context, and the last may overlap more.
    """
    length, step = min(context, len(ids) - 1), max(1, context // 2)
    if length < 1:
        return
    row = torch.tensor(ids)
    yield row[None, :length], row[None, 1 : length + 1], length
    starts = list(range(step, len(ids) - length, step))
    most = max(1, BATCH_TOKENS // length)
    for first in range(0, len(starts), most):
        places = torch.tensor(starts[first : first + most])[:, None] + torch.arange(length)
        yield row[places], row[places + 1], step
    covered = length + step * len(starts)
    if covered < len(ids) - 1:
        yield row[None, -length - 1 : -1], row[None, -length:], len(ids) - 1 - covered


def _score_encoder(model: Model, ids: list[int], tokenizer: Tokenizer) -> Iterator[tuple[float, int]]:
    """For each part of a document: Σ −log P of its masked tokens, and their number."""
    mask = tokenizer.roles.mask
    if mask is None:
        raise UsageError("This tokenizer has no mask token, so this encoder cannot be scored.")
    random = np.random.default_rng(0)
    for start in range(0, len(ids), model.config.context):
        row = torch.tensor(ids[start : start + model.config.context])
        masked = torch.from_numpy(random.random(len(row)) < MASKED)
        if masked.any():
            logits = model(torch.where(masked, mask, row)[None].to(model.device)).logits[0]
            losses = F.cross_entropy(logits.float().cpu()[masked], row[masked], reduction="sum")
            yield float(losses), int(masked.sum())
