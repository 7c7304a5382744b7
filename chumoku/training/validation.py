"""The loss on what is not learned from:  Σ loss / Σ tokens over validation batches, shared among processes."""

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
    module: nn.Module  # the objective as it runs
    average: Average
    batches: Batches
    world: World
    max_batches: int | None = None  # batches

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Inside, the model is in eval mode and has the averaged weights, where there are any."""
        self.module.eval()
        with self.average.swapped_in():
            yield
        self.module.train()

    @torch.no_grad()
    def loss(self, *, stop: Callable[[], bool] = lambda: False) -> float | None:
        """The mean over tokens; None when told to stop."""
        world, count = self.world, min(len(self.batches), self.max_batches or len(self.batches))
        total = tokens = 0.0
        for start in range(0, count, world.size):
            if stop():
                return None
            batch = self.batches.batch(0, min(start + world.rank, count - 1))
            loss = self.module(world.to_device(batch)).item()
            if start + world.rank < count:  # else another process has this batch, and we only keep it company
                total, tokens = total + loss, tokens + count_labels(batch)
        total, tokens = world.sum(total, tokens)
        return total / max(1.0, tokens)
