"""Scores of predicted classes or tags against the right ones, counted over texts or words.

    accuracy    share of right predictions
    precision   TP / (TP + FP),   recall   TP / (TP + FN),   F1   2 · precision · recall / (precision + recall)
    macro F1    the mean of the F1 of all classes that occur, as right or as predicted label
    entity F1   of tags such as B-PER and I-PER: F1 of complete entities with the right type (CoNLL)

The interval of accuracy is Wilson's, 95 %. Row i of the confusion matrix counts what texts of class i were taken for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chumoku.decoding.label_scores import accuracy, count_confusion, f1_by_class, macro_f1, ratio
from chumoku.errors import UsageError

Z = 1.959964  # standard deviations of a 95 % interval
BIO = re.compile(r"O|[BI]-.+")


@dataclass(frozen=True)
class ClassScore:
    precision: float
    recall: float
    f1: float
    count: int  # how often it is the right label


@dataclass(frozen=True)
class ClassificationScore:
    accuracy: float
    accuracy_interval: tuple[float, float]  # 95 %
    macro_f1: float
    count: int
    classes: dict[str, ClassScore]
    labels: list[str]
    confusion: NDArray[np.int64]  # [C, C]: right label, predicted label
    entity_f1: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The numbers by name, with a key for each class."""
        found: dict[str, Any] = {"accuracy": self.accuracy, "accuracy_interval": self.accuracy_interval}
        found |= {"macro_f1": self.macro_f1, "entity_f1": self.entity_f1, "count": self.count}
        return found | {"classes": {name: vars(score) for name, score in self.classes.items()}}


def score_labels(
    predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]], labels: Sequence[str], *, tagged: bool
) -> ClassificationScore:
    """The score of predictions; each text has one label, or with `tagged` one for each word."""
    pairs = [pair for one, other in zip(right, predicted, strict=True) for pair in zip(one, other, strict=True)]
    if not pairs:
        raise UsageError("There is nothing to score. Give texts with labels.")
    names = [*labels, *sorted({label for pair in pairs for label in pair} - set(labels))]
    places = {name: place for place, name in enumerate(names)}
    right_ids, predicted_ids = ([places[name] for name in side] for side in zip(*pairs, strict=True))
    confusion = count_confusion(right_ids, predicted_ids, len(names))
    hits, expected, given = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    classes = {
        names[i]: ClassScore(ratio(hits[i], given[i]), ratio(hits[i], expected[i]), f1, int(expected[i]))
        for i, f1 in f1_by_class(confusion).items()
    }
    entity_f1 = None
    if tagged and all(BIO.fullmatch(name) for name in names):
        entity_f1 = entity_score(predicted, right)
    return ClassificationScore(
        accuracy=accuracy(confusion),
        accuracy_interval=wilson_interval(int(hits.sum()), len(pairs)),
        macro_f1=macro_f1(confusion),
        count=len(pairs),
        classes=classes,
        labels=names,
        confusion=confusion,
        entity_f1=entity_f1,
    )


def entity_score(predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> float:
    """F1 of complete entities with the right type."""
    found, truth = (
        {(number, *entity) for number, tags in enumerate(side) for entity in find_entities(tags)}
        for side in (predicted, right)
    )
    return ratio(2 * len(found & truth), len(found) + len(truth))


def find_entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """The entities (start, end, type) of BIO tags; an I that continues no entity of its type starts one."""
    found: list[tuple[int, int, str]] = []
    for place, tag in enumerate(tags):
        kind = tag[2:]
        continues = bool(found) and tag.startswith("I-") and found[-1][1:] == (place, kind)
        if continues:
            found[-1] = (found[-1][0], place + 1, kind)
        elif tag != "O":
            found.append((place, place + 1, kind))
    return found


def wilson_interval(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, spread = hits / count, Z * Z / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
