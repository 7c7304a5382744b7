"""Tables of a stack's positions: rotation angles, and what relative positions add to the scores."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.models.stack import Stack


class PositionTables(NamedTuple):
    """Tables for positions 0 … P − 1; None where a stack has none.

    rotation   cos and sin for each rotary base [bases, 2, P, R/2]; the second base is that of local layers
    bias       added to scores [H, 2 P]: for a key d positions after the query, at P − 1 + d
    """

    positions: int
    rotation: Tensor | None
    bias: Tensor | None


def make_tables(stack: Stack, positions: int) -> PositionTables:
    with torch.no_grad():
        return PositionTables(positions, _rotation(stack, positions), _bias(stack, positions))


def _rotation(stack: Stack, positions: int) -> Tensor | None:
    bases = [rotary for rotary in (stack.rotary, stack.local_rotary) if rotary is not None]
    rotations = [rotary(torch.arange(positions), torch.float32) for rotary in bases]
    return torch.stack([torch.stack([each.cos, each.sin]) for each in rotations]) if bases else None


def _bias(stack: Stack, positions: int) -> Tensor | None:
    bias = stack.alibi or stack.relative_bias
    if bias is None:
        return None
    found: Tensor = bias(torch.arange(positions - 1, -positions - 1, -1)[None], torch.float32)
    return found[0, :, 0].contiguous()
