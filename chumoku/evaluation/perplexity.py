"""Perplexity: how well a model predicts a text.

    loss            Σ −log P(token | tokens before it) / tokens
    perplexity      e^loss: the equivalent number of equally likely tokens
    bits per byte   Σ −log₂ P / bytes: comparable between models with different tokenizers

Which tokens are predicted, and from what, is in predictions.py: of a decoder all, of an encoder masked ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.evaluation.predictions import Predictor
from chumoku.models.model import DecoderModel, EncoderModel, Model
from chumoku.text import Tokenizer
from chumoku.text.progress import Progress, silent


@dataclass(frozen=True)
class TextScore:
    loss: float
    perplexity: float
    bits_per_byte: float | None  # None for encoders, which do not predict the whole text
    tokens: int  # that were predicted
    bytes: int

    def as_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


class DocumentLoss(NamedTuple):
    """The predicted tokens of a document."""

    ids: list[int]  # all tokens, framed as in training
    places: Tensor  # [n], indices of the predicted ones
    losses: Tensor  # [n], −log P, float64
    bytes: int


def document_losses(
    model: Model, documents: Iterable[str], *, tokenizer: Tokenizer, progress: Progress = silent
) -> Iterator[DocumentLoss]:
    """The loss of each token, document by document; `progress` is called with the number of tokens so far."""
    if not isinstance(model, (DecoderModel, EncoderModel)):
        raise UsageError("A translation model is scored on pairs of sentences, not on a text.")
    predictor, tokens = Predictor(model, tokenizer), 0
    for document in documents:
        ids, places, losses = predictor.encode(document), [torch.empty(0, dtype=torch.long)], [torch.empty(0).double()]
        for part in predictor.predict(ids):
            places.append(part.places)
            losses.append(-part.logprobs)
            tokens += len(part.places)
            progress("scoring", tokens, unit="tokens")
        yield DocumentLoss(ids, torch.cat(places), torch.cat(losses), len(document.encode("utf-8", "replace")))


def score_text(
    model: Model,
    documents: Iterable[str],
    *,
    tokenizer: Tokenizer,
    progress: Progress = silent,
) -> TextScore:
    """Score documents one by one; `progress` is called with the number of predicted tokens so far."""
    found = document_losses(model, documents, tokenizer=tokenizer, progress=progress)
    return summarize_losses(found, whole_text=isinstance(model, DecoderModel))


def summarize_losses(documents: Iterable[DocumentLoss], *, whole_text: bool) -> TextScore:
    """The score of documents; only where the whole text is predicted, bits per byte are defined."""
    total, tokens, size = 0.0, 0, 0
    for document in documents:
        total, tokens = total + float(document.losses.sum()), tokens + len(document.losses)
        size += document.bytes
    if not tokens:
        raise UsageError("This text has no token to predict. Give a text of two tokens or more.")
    if whole_text and not size:
        raise UsageError("Every text is empty, so there are no bits per byte. Give a text of one character or more.")
    loss = total / tokens
    bits = total / math.log(2) / size if whole_text else None
    return TextScore(loss, math.exp(min(loss, 700.0)), bits, tokens, size)
