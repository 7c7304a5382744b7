"""What two models are compared by: a value of each text, the same texts for both.

decoder             −log P of a document's tokens / tokens               nats per token
encoder             −log P of its masked tokens / masked tokens          nats per masked token
encoder-decoder     −log P of the reference's tokens / tokens            nats per token
sentence encoder    1 / rank of a query's document among all documents   mean reciprocal rank
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding import embed
from chumoku.decoding.translate import begin_and_end
from chumoku.decoding.translate import encode as encode_sources
from chumoku.errors import LengthError, UsageError
from chumoku.evaluation.paired import PairedInterval, paired_p_value, paired_t
from chumoku.evaluation.predictions import Predictions, Predictor, masked_rows
from chumoku.evaluation.translation import detect_language, open_bleu
from chumoku.models.model import EncoderDecoderModel, EncoderModel, Model
from chumoku.pipeline import Pipeline
from chumoku.probe.forward_pass import ModelInput
from chumoku.text.languages import target_prompt
from chumoku.text.progress import Progress, silent

Pair = tuple[str, str]


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    lower_is_better: bool


class Scores(NamedTuple):
    """What one model scores: a value and a weight for each text, and its predicted tokens if the task has them."""

    values: list[float]
    weights: list[float]
    predictions: list[Predictions]

    @property
    def mean(self) -> float:
        return sum(value * weight for value, weight in zip(self.values, self.weights, strict=True)) / sum(self.weights)

    def interval(self, other: Scores) -> PairedInterval:
        """This model − the other, over the texts."""
        return paired_t(self.values, other.values, weights=self.weights)

    def p_value(self, other: Scores) -> float:
        return paired_p_value(self.values, other.values, weights=self.weights)


def make_task(
    pipeline: Pipeline,
    texts: Sequence[str | Pair],
    *,
    into: str | None = None,
    source_language: str | None = None,
) -> Task:
    """Documents for a decoder or a masked encoder; pairs for a translator or a sentence encoder."""
    config = pipeline.config
    if config.labels is not None:
        raise UsageError("diff compares language models, translators and encoders; these models give labels.")
    paired = config.kind == "encoder-decoder" or not config.predicts_tokens
    for number, text in enumerate(texts, start=1):
        if isinstance(text, str) == paired:
            raise UsageError(
                f"Models of kind '{config.kind}' are compared on pairs (source, target); item {number} is not a pair."
                if paired
                else f"Models of kind '{config.kind}' are compared on texts; item {number} is a pair."
            )
    if config.kind == "encoder-decoder":
        return TranslationTask(pipeline, list(texts), into, source_language)  # type: ignore[arg-type]
    return VectorTask(pipeline, list(texts)) if paired else TextTask(pipeline, list(texts))  # type: ignore[arg-type]


class TextTask:
    """Documents for a decoder or a masked encoder.

    metric, skipped    what is measured, and how many texts cannot be scored
    tokens             the number of tokens of a text
    score              what a model scores on the texts with these numbers
    model_input        a text as the model reads it, with at most this many tokens [1, T]
    """

    def __init__(self, pipeline: Pipeline, texts: Sequence[str]) -> None:
        self.tokenizer, self.masked = pipeline.tokenizer, isinstance(pipeline.model, EncoderModel)
        self.metric = Metric("loss", "nats per masked token" if self.masked else "nats per token", True)
        self.context = pipeline.config.context
        predictor = Predictor(pipeline.model, self.tokenizer)
        every = [predictor.encode(text) for text in texts]
        self.ids = [ids for ids in every if self._has_predictions(ids)]
        self.skipped = len(every) - len(self.ids)

    def _has_predictions(self, ids: Sequence[int]) -> bool:
        return any(True for _ in masked_rows(ids, self.context)) if self.masked else len(ids) > 1

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, number: int) -> int:
        return len(self.ids[number])

    def score(self, model: Model, numbers: Sequence[int], progress: Progress = silent) -> Scores:
        longest = max((len(self.ids[number]) for number in numbers), default=0)
        predictor, found = Predictor(model, self.tokenizer, longest=longest), []
        for done, number in enumerate(numbers, start=1):
            parts = list(predictor.predict(self.ids[number]))
            found.append(Predictions(*map(torch.cat, zip(*parts, strict=True))))
            progress("scoring", done, len(numbers), unit="texts")
        return _losses(found)

    def model_input(self, number: int, most: int) -> ModelInput:
        ids = torch.tensor(self.ids[number][: min(most, self.context)])
        if self.masked:
            for start, _, masked in masked_rows(self.ids[number], self.context):
                if start == 0:
                    ids = torch.where(masked[: len(ids)], self.tokenizer.roles.mask or 0, ids)
        return ModelInput(ids[None])


class TranslationTask:
    """Pairs (source, reference) for a translator; the interface of TextTask."""

    metric = Metric("loss of the references", "nats per token", True)

    def __init__(self, pipeline: Pipeline, pairs: Sequence[Pair], into: str | None, source_language: str | None):
        self.tokenizer, self.language = pipeline.tokenizer, detect_language([reference for _, reference in pairs])
        open_bleu(self.language)  # raises now, not after translating, if it cannot score this language
        model, context = pipeline.model, pipeline.config.context
        if not isinstance(model, EncoderDecoderModel):
            raise UsageError("Only an encoder-decoder translates.")
        begin_and_end(self.tokenizer)  # raises if it has not both
        prompt = target_prompt(self.tokenizer, into)
        self.prompt = len(prompt)
        self.pairs: list[Pair] = []
        self.rows: list[tuple[list[int], list[int]]] = []
        tokenizer = pipeline.source_tokenizer
        for source, reference in pairs:
            target = [*prompt, *self.tokenizer.encode(reference), *self.tokenizer.roles.end_tokens]
            try:
                ids = encode_sources(model, [source], tokenizer, into=into, source_language=source_language)[0]
            except LengthError:
                continue
            if ids and self.prompt < len(target) <= context:
                self.pairs.append((source, reference))
                self.rows.append((ids, target))
        self.skipped = len(pairs) - len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def tokens(self, number: int) -> int:
        return sum(map(len, self.rows[number]))

    def score(self, model: Model, numbers: Sequence[int], progress: Progress = silent) -> Scores:
        longest = max((len(self.rows[number][1]) for number in numbers), default=0)
        predictor, found = Predictor(model, self.tokenizer, longest=longest), []
        for done, number in enumerate(numbers, start=1):
            found.append(predictor.predict_reference(*self.rows[number], prompt=self.prompt))
            progress("scoring", done, len(numbers), unit="sentences")
        return _losses(found)

    def model_input(self, number: int, most: int) -> ModelInput:
        source, target = self.rows[number]
        return ModelInput(torch.tensor([target[:-1][:most]]), torch.tensor([source[:most]]))


class VectorTask:
    """Pairs (query, document) for an encoder of sentences; the interface of TextTask."""

    metric = Metric("reciprocal rank", "reciprocal rank", False)
    skipped = 0

    def __init__(self, pipeline: Pipeline, pairs: Sequence[Pair]) -> None:
        self.tokenizer, self.pairs = pipeline.tokenizer, list(pairs)
        self.rows = [embed.encode(pipeline.model, list(side), self.tokenizer) for side in zip(*pairs, strict=True)]

    def __len__(self) -> int:
        return len(self.pairs)

    def tokens(self, number: int) -> int:
        return sum(len(side[number]) for side in self.rows)

    def vectors(self, model: Model, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The directions of the queries and of the documents [n, D]."""
        if not isinstance(model, EncoderModel):
            raise UsageError("Only an encoder gives vectors.")
        queries, documents = (
            embed.embed(model, [self.pairs[number][side] for number in numbers], tokenizer=self.tokenizer)
            for side in (0, 1)
        )
        return F.normalize(queries, dim=-1), F.normalize(documents, dim=-1)

    def score(self, model: Model, numbers: Sequence[int], progress: Progress = silent) -> Scores:
        queries, documents = self.vectors(model, numbers)
        progress("scoring", len(numbers), len(numbers), unit="pairs")
        cosines = queries @ documents.T
        # Documents that are equal texts have equal cosines, and do not count as nearer.
        ranks = 1 + (cosines > cosines.diagonal()[:, None]).sum(1)
        return Scores((1 / ranks).tolist(), [1.0] * len(numbers), [])

    def model_input(self, number: int, most: int) -> ModelInput:
        return ModelInput(torch.tensor([self.rows[0][number][:most]]))


Task = TextTask | TranslationTask | VectorTask


def _losses(predictions: list[Predictions]) -> Scores:
    values = [-float(each.logprobs.mean()) for each in predictions]
    return Scores(values, [float(len(each.logprobs)) for each in predictions], predictions)
