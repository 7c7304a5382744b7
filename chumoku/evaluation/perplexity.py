"""Perplexity: how well a model predicts a text.

    loss            Σ −log P(token | tokens before it) / tokens
    perplexity      e^loss: the equivalent number of equally likely tokens
    bits per byte   Σ −log₂ P / bytes: comparable between models with different tokenizers

Which tokens are predicted, and from what, is in predictions.py: of a decoder all, of an encoder masked ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

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
    predictor = Predictor(model, tokenizer)
    total, tokens, size = 0.0, 0, 0
    for document in documents:
        for part in predictor.predict(predictor.encode(document)):
            total, tokens = total - float(part.logprobs.sum()), tokens + len(part.logprobs)
            progress("scoring", tokens, unit="tokens")
        size += len(document.encode("utf-8", "replace"))
    if not tokens:
        raise UsageError("This text has no token to predict. Give a text of two tokens or more.")
    loss = total / tokens
    bits = total / math.log(2) / size if isinstance(model, DecoderModel) else None
    return TextScore(loss, math.exp(min(loss, 700.0)), bits, tokens, size)
