"""Validation loss:  Σ loss / Σ tokens over the validation batches, which are divided among the processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from chumoku.data.batches import Batches
from chumoku.training.average import Average
from chumoku.training.distributed import World
from chumoku.training.objectives import count_labels


@dataclass(frozen=True)
class Evaluator:
    """Computes the validation loss; `max_batches` limits the batches used."""

    module: nn.Module  # the wrapped objective
    average: Average
    batches: Batches
    world: World
    max_batches: int | None = None

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Put the model in eval mode, with the averaged weights if enabled, inside the block."""
        self.module.eval()
        with self.average.swapped_in():
            yield
        self.module.train()

    @torch.no_grad()
    def loss(self, *, stop: Callable[[], bool] = lambda: False) -> float | None:
        """The mean loss per token; None if `stop` returned True."""
        world, count = self.world, min(len(self.batches), self.max_batches or len(self.batches))
        total = tokens = 0.0
        for start in range(0, count, world.size):
            if stop():
                return None
            batch = self.batches.batch(0, min(start + world.rank, count - 1))
            loss = self.module(world.to_device(batch)).item()
            if start + world.rank < count:  # else this batch was already counted by another process
                total, tokens = total + loss, tokens + count_labels(batch)
        total, tokens = world.sum(total, tokens)
        return total / max(1.0, tokens)
