"""Metrics of an objective beside its loss: means over the terms of a step, or of a validation, in all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from chumoku.training.distributed import World


class Metrics:
    """Sums by name and the number of their terms; an objective adds to them, the training loop takes the means."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.clear()

    def clear(self) -> None:
        self._count = 0
        self._sums: dict[str, Tensor] = {}

    def __len__(self) -> int:
        """How many metrics have been added to."""
        return len(self._sums)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def add(self, count: int, **sums: Tensor) -> None:
        """Add the sums of `count` terms."""
        self._count += count
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach()

    def take(self, world: World) -> dict[str, float]:
        """The means of all that was added, in all processes, which must all call this; then nothing is left."""
        names = [name for name in self._names if name in self._sums]
        if not names:
            return {}
        count, *sums = world.sum(self._count, *(float(self._sums[name]) for name in names))
        self.clear()
        return {name: total / max(1, count) for name, total in zip(names, sums, strict=True)}
