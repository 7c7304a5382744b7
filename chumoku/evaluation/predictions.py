"""Log probabilities of every predicted token of a text, computed by the same engine that generates text.

    decoder           log P(token | tokens before it)             every token of a document, and its end
    encoder           log P(token | the tokens not masked)        masked tokens, the same ones for every model
    encoder-decoder   log P(token | source, tokens before it)     every token of a reference translation, and its end

A text longer than the context is split into windows that overlap by half, so every token after the first window has at
least half a context before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chumoku.decoding.batch import inference_mode
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.errors import UsageError
from chumoku.evaluation.token_scores import BATCH_TOKENS, score_labels
from chumoku.models.model import DecoderModel, EncoderDecoderModel, EncoderModel, Model
from chumoku.text import Tokenizer

MASKED = 0.15  # share of tokens masked for an encoder


class Predictions(NamedTuple):
    """The predicted tokens of a part of a text."""

    places: Tensor  # [n], indices in the tokens of the text
    logprobs: Tensor  # [n], float64
    best: Tensor  # [n], the most likely token at each place


class Predictor:
    """Predicts the tokens of texts, one text after another. The engine is opened again only for a longer text.

    longest    tokens of the longest text, if known
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, *, longest: int = 0) -> None:
        if not model.config.predicts_tokens:
            raise UsageError("This model predicts no tokens, so it cannot score a text.")
        if isinstance(model, EncoderModel) and tokenizer.roles.mask is None:
            raise UsageError("This tokenizer has no mask token, so this encoder cannot be scored.")
        self.model, self.tokenizer = model, tokenizer
        self._engine: Engine | None = None
        self._longest = min(longest, model.config.context)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, framed as in training."""
        ids = self.tokenizer.encode(text)
        if isinstance(self.model, EncoderModel):
            return ids
        edge = self.tokenizer.roles.end_tokens
        return [*(self.tokenizer.prefix_and_suffix[0] or edge), *ids, *edge]

    def predict(self, ids: Sequence[int]) -> Iterator[Predictions]:
        """The predictions of a document's tokens, part by part."""
        return self._predict_masked(ids) if isinstance(self.model, EncoderModel) else self._predict_next(ids)

    def predict_reference(self, source: Sequence[int], target: Sequence[int], *, prompt: int) -> Predictions:
        """The predictions of a translation's tokens; the first `prompt` of them, such as the begin token, are given."""
        row = torch.tensor([target])
        contexts, inputs, labels = row[:, : prompt - 1].tolist(), row[:, prompt - 1 : -1], row[:, prompt:]
        with torch.inference_mode():
            engine = self._open(1, len(target) - 1)
            logprobs, best = score_labels(engine, contexts, inputs, labels, sources=[source])
        return Predictions(torch.arange(prompt, len(target)), logprobs[0], best[0])

    def _open(self, rows: int, capacity: int) -> Engine:
        if not isinstance(self.model, DecoderModel | EncoderDecoderModel):
            raise UsageError("An encoder has no engine; it predicts masked tokens.")
        if self._engine is None or self._engine.rows < rows or self._engine.capacity < capacity:
            self._engine = open_engine(self.model, rows=rows, capacity=max(capacity, self._longest))
        return self._engine

    def _predict_next(self, ids: Sequence[int]) -> Iterator[Predictions]:
        for inputs, places, new in windows(ids, self.model.config.context):
            context = inputs.shape[1] - new
            labels = torch.tensor(ids)[places[:, context:]]
            contexts = inputs[:, :context].tolist()
            with torch.inference_mode():
                logprobs, best = score_labels(self._open(*inputs.shape), contexts, inputs[:, context:], labels)
            yield Predictions(places[:, context:].flatten(), logprobs.flatten(), best.flatten())

    def _predict_masked(self, ids: Sequence[int]) -> Iterator[Predictions]:
        model, mask = self.model, self.tokenizer.roles.mask or 0
        for start, row, masked in masked_rows(ids, model.config.context):
            with inference_mode(model):
                logits = model(torch.where(masked, mask, row)[None].to(model.device)).logits[0].float().cpu()[masked]
                logprobs = logits.log_softmax(-1).gather(-1, row[masked][:, None])[:, 0].double()
            yield Predictions(start + masked.nonzero()[:, 0], logprobs, logits.argmax(-1))


def masked_rows(ids: Sequence[int], context: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Parts of a text with masked tokens: index of the first token, tokens [T], and which are masked [T]."""
    random = np.random.default_rng(0)
    for start in range(0, len(ids), context):
        row = torch.tensor(ids[start : start + context])
        masked = torch.from_numpy(random.random(len(row)) < MASKED)
        if masked.any():
            yield start, row, masked


def windows(ids: Sequence[int], context: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Inputs and the places of their labels [rows, length], and how many labels at the end of each row are new.

    The first window is alone; the others advance by half a context, and the last may overlap more.
    """
    length, step = min(context, len(ids) - 1), max(1, context // 2)
    if length < 1:
        return
    row, ahead = torch.tensor(ids), torch.arange(1, length + 1)[None]
    yield row[ahead - 1], ahead, length
    starts = list(range(step, len(ids) - length, step))
    most = max(1, BATCH_TOKENS // length)
    for first in range(0, len(starts), most):
        places = torch.tensor(starts[first : first + most])[:, None] + ahead
        yield row[places - 1], places, step
    covered = length + step * len(starts)
    if covered < len(ids) - 1:
        places = ahead + (len(ids) - 1 - length)
        yield row[places - 1], places, len(ids) - 1 - covered
