"""Positions: how a model that sees a set learns to see a sequence.

    sinusoidal   PE(i, 2d) = sin(i / 10000^{2d/D}),  PE(i, 2d+1) = cos(i / 10000^{2d/D}), added to the embedding
    learned      a table of vectors, one per position, added to the embedding
    relative     score(i, j) = (qᵢ·kⱼ + qᵢ·r_{i−j}) / √d_k,  i−j clipped to −c … c
    rotary       qᵢ and kⱼ turned by their positions in d/2 planes, so that qᵢ·kⱼ depends on i−j alone
    none         nothing

Each takes the positions themselves, so a past, a packed document or an odd start is nothing special.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import LengthError, ShapeError
from chumoku.nn.embeddings import check_range

Pairing = Literal["interleaved", "half"]


def sinusoidal(
    positions: Tensor,
    width: int,
    *,
    base: float = 10000.0,
    pairing: Pairing = "interleaved",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """PE [..., D] of positions [...]: sin and cos side by side as in the formula, or sines first, cosines after."""
    angles = positions[..., None].to(dtype) * frequencies(width, base=base, device=positions.device, dtype=dtype)
    sin, cos = angles.sin(), angles.cos()
    if pairing == "half":
        return torch.cat([sin, cos], dim=-1)[..., :width]
    return torch.stack([sin, cos], dim=-1).flatten(-2)[..., :width]


def frequencies(
    width: int, *, base: float, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """1 / base^{2d/D} for d = 0 … ⌈D/2⌉ − 1"""
    return 1 / base ** (torch.arange(0, width, 2, device=device, dtype=dtype) / width)


class Sinusoidal(nn.Module):
    """The fixed encoding: nothing to learn, no longest length."""

    def __init__(self, width: int, *, base: float = 10000.0, pairing: Pairing = "interleaved") -> None:
        super().__init__()
        self.width, self.base, self.pairing = width, base, pairing

    def forward(self, positions: Tensor, end: int, dtype: torch.dtype = torch.float32) -> Tensor:
        precise = torch.promote_types(dtype, torch.float32)
        return sinusoidal(positions, self.width, base=self.base, pairing=self.pairing, dtype=precise).to(dtype)


class Learned(nn.Module):
    """A table indexed by position. It ends where it ends."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, width))

    def forward(self, positions: Tensor, end: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The rows at `positions`. `end` is what they are known to stay below without asking the device."""
        if end > len(self.table):
            raise LengthError(
                f"Position {end - 1} was asked for, and the table of learned positions ends at "
                f"{len(self.table) - 1}. Shorten the text, or train with a larger context or another position kind."
            )
        check_range(positions, len(self.table), "position")
        return F.embedding(positions, self.table).to(dtype)


class Relative(nn.Module):
    """qᵢ·r_{i−j} / √d_k, to be added to the scores. One vector per distance, shared by the heads."""

    def __init__(self, clip: int, head_width: int) -> None:
        super().__init__()
        self.clip = clip
        self.table = nn.Parameter(torch.empty(2 * clip + 1, head_width))

    def forward(self, query: Tensor, distances: Tensor) -> Tensor:
        """[B, H, T, S] from queries [B, H, T, K] and distances [T, S] or [B, T, S]."""
        # Every query meets every distance once, then each pair (i, j) picks the one that is its own.
        against_all = query @ self.table.to(query.dtype).T / math.sqrt(query.shape[-1])
        index = distances.clamp(-self.clip, self.clip) + self.clip
        index = index[None, None] if index.ndim == 2 else index[:, None]
        return against_all.gather(-1, index.expand(*query.shape[:3], -1))


@dataclass(frozen=True)
class Scaling:
    """Stretching rotary positions past the trained length.

    linear   every frequency is divided by `factor`
    llama3   long waves (longer than `original` / `low`) are, short ones (shorter than `original` / `high`) are not,
             and those between are blended
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def __call__(self, frequency: Tensor) -> Tensor:
        if self.kind == "linear":
            return frequency / self.factor
        turns = self.original * frequency / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return kept * frequency + (1 - kept) * frequency / self.factor


class Rotation(NamedTuple):
    """cos and sin of each position's angles [T, K/2] or [B, 1, T, K/2], and which numbers form a pair."""

    cos: Tensor
    sin: Tensor
    pairing: Pairing


class Rotary(nn.Module):
    """The angles of each position. Computed when needed, so no lower precision can ever round them."""

    def __init__(
        self,
        head_width: int,
        *,
        base: float = 10000.0,
        pairing: Pairing = "interleaved",
        scaling: Scaling | None = None,
    ) -> None:
        super().__init__()
        if head_width % 2:
            raise ShapeError(f"Rotary positions turn pairs of numbers; a head width of {head_width} leaves one over.")
        self.head_width, self.base, self.pairing, self.scaling = head_width, base, pairing, scaling

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        precise = torch.promote_types(dtype, torch.float32)
        frequency = frequencies(self.head_width, base=self.base, device=positions.device, dtype=precise)
        if self.scaling is not None:
            frequency = self.scaling(frequency)
        angles = positions[..., None].to(precise) * frequency
        if angles.ndim == 3:
            angles = angles[:, None]
        return Rotation(angles.cos(), angles.sin(), self.pairing)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn each pair (a, b) of x [B, H, T, K] by its angle: (a cos − b sin, a sin + b cos)."""
    cos, sin, pairing = rotation
    if pairing == "half":
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)
    a, b = x.view(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
