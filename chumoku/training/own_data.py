"""Batches of your own, for `chumoku.train(train_data=…)`, instead of the data of a recipe.

A batch is a dict of tensors:

    decoder, encoder    tokens [B, T], labels [B, T]
    with classes        tokens [B, T], labels [B], mask [B, T] (False for padding; optional), also with tags
    encoder-decoder     source [B, S], source_mask [B, S] (False for padding), target [B, T], labels [B, T]

Labels are token ids, or indices of config.labels; −100 marks positions without a loss. For a decoder that predicts
tokens, labels[:, i] is the token after tokens[:, i].
A resumed run reads the same places again; it cannot notice that the data has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chumoku.data.batches import ALL, Share
from chumoku.data.order import Indices
from chumoku.errors import CorpusError, UsageError
from chumoku.models.config import ModelConfig
from chumoku.training.datasets import TrainingData
from chumoku.weights.bundle import Bundle

Batch = dict[str, Tensor]
UNKNOWN_LENGTH = 1 << 48  # batches of an iterable without a length
KEYS = {True: ("source", "source_mask", "target", "labels"), False: ("tokens", "labels")}


class OwnBatches:
    """A sequence, a torch Dataset or another iterable of batches, as the training loop reads them."""

    def __init__(self, source: Any, config: ModelConfig, name: str) -> None:
        if not hasattr(source, "__getitem__") and not isinstance(source, Iterable):
            raise UsageError(f"{name} must be an iterable of batches, or a torch Dataset of batches.")
        self._source, self._config, self._name = source, config, name
        self._iterator: Iterator[Any] = iter(()) if hasattr(source, "__len__") else iter(source)
        self._index, self._current = -1, None  # of an iterable without a length

    def __len__(self) -> int:
        return len(self._source) if hasattr(self._source, "__len__") else UNKNOWN_LENGTH

    def samples(self, epoch: int, index: int) -> Indices:
        return np.arange(index, index + 1)

    def batch(self, epoch: int, index: int, share: Share = ALL) -> Batch:
        batch = self._checked(self._read(index))
        if share.world == 1:
            return batch
        rows = torch.from_numpy(share.select(np.arange(len(batch["labels"]))))
        return {name: tensor[rows] for name, tensor in batch.items()}

    def _read(self, index: int) -> Any:
        if hasattr(self._source, "__getitem__") and hasattr(self._source, "__len__"):
            return self._source[index]
        if index < self._index:
            self._index, self._iterator = -1, iter(self._source)
        while self._index < index:
            try:
                self._current = next(self._iterator)
            except StopIteration:
                raise CorpusError(
                    f"{self._name} ended after {self._index + 1:,} batches, and batch {index + 1:,} is needed. Lower "
                    "train.steps, or pass a list or a Dataset, which is read again in every epoch."
                ) from None
            self._index += 1
        return self._current

    def _checked(self, batch: Any) -> Batch:
        keys = KEYS[self._config.kind == "encoder-decoder"]
        if not isinstance(batch, dict) or not all(isinstance(batch.get(key), Tensor) for key in keys):
            found = ", ".join(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
            raise UsageError(f"A batch of {self._name} must be a dict of tensors with {', '.join(keys)}; got {found}.")
        inputs = batch["target" if "target" in keys else "tokens"]
        classes = self._config.head_kind == "classes"
        if inputs.ndim != 2 or batch["labels"].shape != (inputs.shape[:1] if classes else inputs.shape):
            raise UsageError(
                f"In a batch of {self._name}, inputs {list(inputs.shape)} and labels {list(batch['labels'].shape)} "
                f"must be [rows, length] and [rows{'' if classes else ', length'}]."
            )
        return batch


def own_training_data(init: Bundle, train_data: Any, validation_data: Any) -> TrainingData:
    """Training data from your own batches; the tokenizers are those of `init`."""
    config = init.model.config
    train = train_data if is_batches(train_data) else OwnBatches(train_data, config, "train_data")
    if not is_batches(validation_data):
        if not isinstance(validation_data, Sequence) and not hasattr(validation_data, "__getitem__"):
            validation_data = list(validation_data)
        validation_data = OwnBatches(validation_data, config, "validation_data")
    if not len(train) or not len(validation_data):
        raise CorpusError("train_data and validation_data must have one batch or more each.")
    first = train.batch(0, 0)
    rows, length = first["target" if "target" in first else "tokens"].shape
    return TrainingData(
        config,
        init.tokenizer,
        init.source_tokenizer,
        train,
        validation_data,
        corpus="own data",
        length=length,
        fewest_rows=rows,
    )


def is_batches(data: Any) -> bool:
    """Whether this is one of `chumoku.data.batches`, which also knows the order of every epoch."""
    return all(hasattr(data, name) for name in ("__len__", "samples", "batch"))
