"""Scores of a confusion matrix [C, C]; row i counts what texts of class i were taken for.

accuracy   Σᵢ nᵢᵢ / Σᵢⱼ nᵢⱼ
F1         2 TP / (2 TP + FP + FN) of each class
macro F1   the mean of the F1 of all classes that occur, as right or as predicted label
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Confusion = NDArray[np.int64]


def count_confusion(right: Any, predicted: Any, classes: int) -> Confusion:
    """The confusion matrix of two equally long arrays of class numbers."""
    cells = np.asarray(right, np.int64) * classes + np.asarray(predicted, np.int64)
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes).astype(np.int64)


def accuracy(confusion: Confusion) -> float:
    """The share of correct predictions; 0 for an empty confusion matrix."""
    return ratio(confusion.trace(), confusion.sum())


def f1_by_class(confusion: Confusion) -> dict[int, float]:
    """The F1 of each class that occurs."""
    both = confusion.sum(0) + confusion.sum(1)
    return {int(number): ratio(2 * confusion[number, number], both[number]) for number in np.flatnonzero(both)}


def macro_f1(confusion: Confusion) -> float:
    """The mean F1 of the classes that occur; 0 for an empty confusion matrix."""
    scores = f1_by_class(confusion)
    return ratio(sum(scores.values()), len(scores))


def ratio(part: Any, total: Any) -> float:
    """part / total, or 0 if the total is 0."""
    return float(part / total) if total else 0.0
