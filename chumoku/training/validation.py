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
from chumoku.training.objectives import learned


@dataclass(frozen=True)
class Judge:
    module: nn.Module  # the objective as it runs
    average: Average
    batches: Batches
    here: World
    most: int | None = None  # batches

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Inside, the model is in eval mode and has the averaged weights, where there are any."""
        self.module.eval()
        with self.average.in_place():
            yield
        self.module.train()

    @torch.no_grad()
    def loss(self, *, stop: Callable[[], bool] = lambda: False) -> float | None:
        """The mean over tokens; None when told to stop."""
        here, count = self.here, min(len(self.batches), self.most or len(self.batches))
        total = tokens = 0.0
        for start in range(0, count, here.size):
            if stop():
                return None
            batch = self.batches.batch(0, min(start + here.rank, count - 1))
            loss = self.module(here.place(batch)).item()
            if start + here.rank < count:  # else another process has this batch, and we only keep it company
                total, tokens = total + loss, tokens + learned(batch)
        total, tokens = here.sum(total, tokens)
        return total / max(1.0, tokens)
