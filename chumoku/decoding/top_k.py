"""Fast argmax, top-k and inverse-cumsum in long rows [n, V].

    blocks    a row is cut into V / 64 blocks; at first only the maximum or the sum of each block is computed
    largest   the k largest values are in the k blocks with the largest maxima
    reached   the cumulative sum reaches the target in one block, and only that block is searched

Each returns the same as PyTorch's function, which is used on other devices. On one core of a CPU, for 32 rows of
16,000: the largest 0.05 ms instead of 1.0, the 8 largest 0.2 instead of 1.2, a sum in float64 0.7 instead of 3.5.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64


class Largest(NamedTuple):
    values: Tensor  # [n, k], largest first; of `first_largest` [n]
    places: Tensor


def first_largest(rows: Tensor) -> Largest:
    """The largest number of each row and its first index, both [n]; a NaN, if there is one."""
    if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64):
        # NumPy's argmax is vectorized, PyTorch's is not.
        places = torch.from_numpy(rows.numpy().argmax(-1))
        return Largest(rows.gather(1, places[:, None])[:, 0], places)
    return Largest(*rows.max(-1))


def largest(rows: Tensor, k: int) -> Largest:
    """The k largest numbers of each row and their indices."""
    count, size = rows.shape
    if rows.device.type != "cpu" or size < 4 * BLOCK * k:
        return Largest(*rows.topk(k))
    cut = size - size % BLOCK
    best = rows[:, :cut].view(count, -1, BLOCK).amax(-1).topk(k).indices
    places = (best[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    rest = torch.arange(cut, size).expand(count, -1)
    places = torch.cat([places, rest], 1)
    top = rows.gather(1, places).topk(k)
    return Largest(top.values, places.gather(1, top.indices))


def reached(shares: Tensor, points: Tensor) -> Tensor:
    """The first index of each row where the cumulative sum exceeds points [n] times the total, 0 ≤ point < 1.

    The sums are computed in the dtype of `points`.
    """
    size = shares.shape[1]
    if shares.device.type != "cpu" or size < BLOCK**2:
        sums = shares.cumsum(-1, dtype=points.dtype)
        return torch.searchsorted(sums, points[:, None] * sums[:, -1:], right=True)[:, 0]
    blocks = F.pad(shares, (0, -size % BLOCK)).view(len(shares), -1, BLOCK)
    sums = blocks.sum(-1, dtype=points.dtype).cumsum(-1)
    goals = points[:, None] * sums[:, -1:]
    block = torch.searchsorted(sums, goals, right=True).clamp(max=sums.shape[1] - 1)
    before = F.pad(sums, (1, 0)).gather(1, block)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].cumsum(-1, dtype=points.dtype)
    place = torch.searchsorted(inside, (goals - before).clamp(min=0), right=True)
    # If rounding leads past the sum of the block, take its last nonzero share.
    last = torch.searchsorted(inside, inside[:, -1:].contiguous())
    return (block * BLOCK + torch.minimum(place, last))[:, 0]
