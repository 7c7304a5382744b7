"""Several models on the same data: which is better, pair by pair.

texts           all pairs; the paired t interval of the loss
    nats per token     over blocks of 128 tokens of a document, if the models predict the same tokens
    bits per byte      over documents, if they have different tokenizers
translations    each model with the first; sacrebleu's paired bootstrap of BLEU

Holm over the pairs: "better" is said wrongly of any of them with probability 5 % at most. Blocks, documents and
sentences count as independent of each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from chumoku.errors import UsageError
from chumoku.evaluation.paired import CONFIDENCE, PairedInterval, holm, paired_p_value, paired_t
from chumoku.evaluation.perplexity import DocumentLoss
from chumoku.evaluation.translation import compare_bleu

BLOCK = 128  # tokens; much longer than the reach of most dependences between losses


@dataclass(frozen=True)
class ModelPair:
    """What is known of two models; the first has the better score."""

    first: str
    second: str
    better: bool  # or they cannot be told apart
    difference: float  # by how much the first is better
    interval: PairedInterval | None  # at the level of the pair's test; sacrebleu gives none
    p_value: float  # adjusted by Holm
    unit: str  # "nats per token", "bits per byte" or "BLEU"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_losses(losses: Mapping[str, Sequence[DocumentLoss]], *, whole_text: bool) -> list[ModelPair]:
    """All pairs of models, by the losses of their tokens in the same documents.

    whole_text    whether all tokens are predicted, as by decoders, so that bits per byte are defined
    """
    rows = []
    for names in itertools.combinations(losses, 2):
        found = _paired_losses(*(losses[name] for name in names), whole_text=whole_text)
        means = [sum(map(math.prod, zip(side, found.weights, strict=True))) for side in found.values]
        better, worse = (0, 1) if means[0] <= means[1] else (1, 0)
        rows.append((names[better], names[worse], found.values[worse], found.values[better], found))
    tests = holm([paired_p_value(high, low, weights=row.weights) for _, _, high, low, row in rows], 1 - CONFIDENCE)
    pairs = []
    for (first, second, high, low, row), test in zip(rows, tests, strict=True):
        interval = paired_t(high, low, confidence=1 - test.level, weights=row.weights)
        pairs.append(ModelPair(first, second, test.rejected, interval.difference, interval, test.adjusted, row.unit))
    return pairs


class _PairedLosses(NamedTuple):
    unit: str
    values: tuple[list[float], list[float]]  # mean loss of each block or document, for both models
    weights: list[float]


def _paired_losses(one: Sequence[DocumentLoss], other: Sequence[DocumentLoss], *, whole_text: bool) -> _PairedLosses:
    documents = list(zip(one, other, strict=True))
    if all(a.ids == b.ids and a.places.equal(b.places) for a, b in documents):
        tables = [torch.stack([side.losses for side in pair]) for pair in documents]  # [2, tokens]
        blocks = [one[:, start : start + BLOCK] for one in tables for start in range(0, one.shape[1], BLOCK)]
        first, second = ([float(block[side].mean()) for block in blocks] for side in (0, 1))
        found = _PairedLosses("nats per token", (first, second), [float(block.shape[1]) for block in blocks])
        advice = f"a text of more than {BLOCK} tokens, or two files"
    elif whole_text:
        full = [pair for pair in documents if pair[0].bytes]
        bits = [[float(pair[side].losses.sum()) / math.log(2) / pair[0].bytes for pair in full] for side in (0, 1)]
        found = _PairedLosses("bits per byte", (bits[0], bits[1]), [float(pair[0].bytes) for pair in full])
        advice = "two files or more: these models have different tokenizers, so documents are compared"
    else:
        raise UsageError("These encoders predict different masked tokens, because their tokenizers or contexts differ.")
    if len(found.weights) < 2:
        raise UsageError(f"This text is too short to compare models on it. Give {advice}.")
    return found


def compare_translations(
    translations: Mapping[str, Sequence[str]], references: Sequence[str], *, language: str, tokenized: bool = False
) -> list[ModelPair]:
    """Each model compared with the first, by BLEU."""
    base, *others = translations
    found = compare_bleu(list(translations.values()), references, language=language, tokenized=tokenized)
    tests = holm([one.p_value for one in found], 1 - CONFIDENCE)
    pairs = []
    for name, one, test in zip(others, found, tests, strict=True):
        first, second = (name, base) if one.difference > 0 else (base, name)
        pairs.append(ModelPair(first, second, test.rejected, abs(one.difference), None, test.adjusted, "BLEU"))
    return pairs
