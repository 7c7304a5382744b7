"""The loss on what is not learnt from:  Σ loss / Σ tokens over validation batches, shared among processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from chumoku.data.batches import Batches
from chumoku.training.distributed import World
from chumoku.training.objectives import learnt


@torch.no_grad()
def mean_loss(
    summed: Callable[[dict[str, Tensor]], Tensor],
    batches: Batches,
    here: World,
    *,
    most: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """The mean over tokens of up to `most` batches; None when told to stop."""
    count = min(len(batches), most or len(batches))
    total = tokens = 0.0
    for start in range(0, count, here.size):
        if stop():
            return None
        index = min(start + here.rank, count - 1)
        batch = batches.batch(0, index)
        loss = summed(batch).item()
        if start + here.rank < count:  # else another process has this batch, and we only keep it company
            total, tokens = total + loss, tokens + learnt(batch)
    total, tokens = here.sum(total, tokens)
    return total / max(1.0, tokens)
