"""Exponential moving average of the weights:  a ← d · a + (1 − d) · w  after each step, with decay d."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from chumoku import lora


class Average:
    """The moving average of a model's trainable weights; disabled if the decay is 0."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters = lora.trainable_parameters(model) if decay else {}
        self.tensors = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def update(self) -> None:
        if self.tensors:
            now = [parameter.detach() for parameter in self._parameters.values()]
            torch._foreach_lerp_(list(self.tensors.values()), now, 1 - self.decay)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Use the averaged weights in the model inside the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            current = parameter.detach().clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(current)
