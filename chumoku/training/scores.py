"""Accuracy and macro F1 on the validation data of a model with classes or tags, shown beside the validation loss."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from chumoku.data.batches import IGNORE
from chumoku.decoding.label_scores import accuracy, count_confusion, macro_f1
from chumoku.models.model import Model
from chumoku.training.datasets import TrainingData
from chumoku.training.objectives import forward


def make_scorer(model: Model, data: TrainingData, max_batches: int | None) -> Callable[[], dict[str, float]]:
    """A function that returns the scores of the current model by name; none if it has no labels."""
    if model.config.labels is None:
        return dict
    classes = model.config.label_count
    count = min(len(data.validation), max_batches or len(data.validation))

    @torch.no_grad()
    def scores() -> dict[str, float]:
        confusion = np.zeros((classes, classes), np.int64)
        for index in range(count):
            batch = {name: table.to(model.device) for name, table in data.validation.batch(0, index).items()}
            logits = forward(model, batch).logits
            if logits is not None:
                counted = batch["labels"] != IGNORE
                right, predicted = (one[counted].cpu().numpy() for one in (batch["labels"], logits.argmax(-1)))
                confusion += count_confusion(right, predicted, classes)
        return {"accuracy": accuracy(confusion), "macro_f1": macro_f1(confusion)}

    return scores
