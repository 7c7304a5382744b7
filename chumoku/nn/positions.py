"""Position encodings.

    sinusoidal     PE(i, 2d) = sin(i / 10000^{2d/D}),  PE(i, 2d+1) = cos(i / 10000^{2d/D}), added to the embedding
                   with `endpoint` d/(D/2−1) instead of 2d/D, and i from `start`, as in fairseq
    learned        a table of vectors, one per position, added to the embedding
    relative       score(i, j) = (qᵢ·kⱼ + qᵢ·r_{i−j}) / √d_k,  i−j clipped to −c … c
    relative_bias  score(i, j) = qᵢ·kⱼ / √d_k + b_h(bucket(i−j)), learned; far distances share a bucket, as in T5
    alibi          score(i, j) = qᵢ·kⱼ / √d_k − m_h |i−j|,  m_h = 2^{−8h/H} for head h = 1 … H
    rotary         qᵢ and kⱼ rotated by their positions in d/2 planes, so that qᵢ·kⱼ depends only on i−j
    none           no position information

Each takes the positions as a tensor, so cached tokens and packed documents need no special case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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
    endpoint: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return PE [..., D] of positions [...]; `pairing` "half" puts all sines before all cosines."""
    frequency = frequencies(width, base=base, endpoint=endpoint, device=positions.device, dtype=dtype)
    angles = positions[..., None].to(dtype) * frequency
    sin, cos = angles.sin(), angles.cos()
    if pairing == "half":
        return torch.cat([sin, cos], dim=-1)[..., :width]
    return torch.stack([sin, cos], dim=-1).flatten(-2)[..., :width]


def frequencies(
    width: int,
    *,
    base: float,
    endpoint: bool = False,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return 1 / base^{2d/D} for d = 0 … ⌈D/2⌉ − 1; with `endpoint`, the last is 1 / base."""
    even = torch.arange(0, width, 2, device=device, dtype=dtype)
    return 1 / base ** (even / (max(1, 2 * len(even) - 2) if endpoint else width))


class SinusoidalPositions(nn.Module):
    """The fixed sinusoidal encoding: positions → vectors, without parameters and without a maximum length."""

    def __init__(
        self,
        width: int,
        *,
        base: float = 10000.0,
        pairing: Pairing = "interleaved",
        endpoint: bool = False,
        start: int = 0,
    ) -> None:
        super().__init__()
        self.width, self.base, self.pairing = width, base, pairing
        self.endpoint, self.start = endpoint, start

    def forward(self, positions: Tensor, end: int, dtype: torch.dtype = torch.float32) -> Tensor:
        wide = torch.promote_types(dtype, torch.float32)
        options: dict[str, Any] = {"base": self.base, "pairing": self.pairing, "endpoint": self.endpoint}
        return sinusoidal(positions + self.start, self.width, **options, dtype=wide).to(dtype)

    def extra_repr(self) -> str:
        options = f"pairing={self.pairing}, endpoint={self.endpoint}, start={self.start}"
        return f"{self.width}, base={self.base}, {options}"


class LearnedPositions(nn.Module):
    """A learned table of `length` position vectors."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, width))

    def forward(self, positions: Tensor, end: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the rows at `positions`, all below `end`: a Python number, so the check need not wait for a GPU."""
        if end > len(self.table):
            raise LengthError(
                f"Position {end - 1} is beyond the table of learned positions, which ends at {len(self.table) - 1}. "
                "Shorten the text, or train with a larger context or another position kind."
            )
        check_range(positions, len(self.table), "position")
        return F.embedding(positions, self.table).to(dtype)

    def extra_repr(self) -> str:
        return f"length={self.table.shape[0]}, width={self.table.shape[1]}"


class RelativePositions(nn.Module):
    """The bias qᵢ·r_{i−j} / √d_k that is added to the scores. One vector per distance, shared by all heads."""

    def __init__(self, clip: int, head_width: int) -> None:
        super().__init__()
        self.clip = clip
        self.table = nn.Parameter(torch.empty(2 * clip + 1, head_width))

    def forward(self, query: Tensor, distances: Tensor) -> Tensor:
        """Return the bias [B, H, T, S] for queries [B, H, T, K] and distances [T, S] or [B, T, S]."""
        # Multiply each query by every distance vector once, then select the distance of each pair (i, j).
        all_distances = query @ self.table.to(query.dtype).T / math.sqrt(query.shape[-1])
        index = distances.clamp(-self.clip, self.clip) + self.clip
        index = index[None, None] if index.ndim == 2 else index[:, None]
        return all_distances.gather(-1, index.expand(*query.shape[:3], -1))

    def extra_repr(self) -> str:
        return f"clip={self.clip}, head_width={self.table.shape[1]}"


class RelativeBias(nn.Module):
    """The learned bias b_h(bucket(i−j)) that is added to the scores: one number per bucket and head.

    Of the n buckets of a causal stack, half have one distance each, and the others equal parts of a logarithmic scale
    up to `max_distance`. Other stacks have as many for keys before the query as for keys after it, n / 2.
    """

    def __init__(self, buckets: int, heads: int, *, max_distance: int, causal: bool) -> None:
        super().__init__()
        self.max_distance, self.causal = max_distance, causal
        self.table = nn.Parameter(torch.empty(buckets, heads))

    def forward(self, distances: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the bias [1, H, T, S] or [B, H, T, S] for distances [T, S] or [B, T, S]."""
        bias = F.embedding(self.bucket(distances), self.table).to(dtype)
        return bias.view(-1, *bias.shape[-3:]).permute(0, 3, 1, 2)

    def bucket(self, distances: Tensor) -> Tensor:
        """Return the row of the table for each distance, a query's position minus a key's."""
        buckets, first = len(self.table), torch.zeros_like(distances)
        if self.causal:
            distances = distances.clamp(min=0)
        else:
            buckets //= 2
            first, distances = (distances < 0) * buckets, distances.abs()
        exact = buckets // 2
        share = torch.log(distances.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (share * (buckets - exact)).to(distances.dtype)).clamp(max=buckets - 1)
        return first + torch.where(distances < exact, distances, far)

    def extra_repr(self) -> str:
        buckets, heads = self.table.shape
        return f"buckets={buckets}, heads={heads}, max_distance={self.max_distance}, causal={self.causal}"


class AlibiPositions(nn.Module):
    """The bias −m_h |i−j| that is added to the scores: nothing to learn, and no maximum length."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, distances: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the bias [1, H, T, S] or [B, H, T, S] for distances [T, S] or [B, T, S]."""
        wide = torch.promote_types(dtype, torch.float32)
        slopes = alibi_slopes(self.heads, device=distances.device, dtype=wide)
        return -slopes[:, None, None] * distances.abs().view(-1, 1, *distances.shape[-2:])

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


def alibi_slopes(heads: int, *, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return m_1 … m_H. If H is no power of 2: those of the next lower power P, then every second one of 2P."""
    lower = 1 << (heads.bit_length() - 1)
    first = torch.arange(1, lower + 1, device=device, dtype=dtype)
    rest = torch.arange(heads - lower, device=device, dtype=dtype) + 0.5
    return 2 ** (-8 * torch.cat([first, rest]) / lower)


@dataclass(frozen=True)
class RotaryScaling:
    """Scaling of rotary frequencies for texts longer than the trained length.

    linear   divides every frequency by `factor`
    llama3   divides frequencies with wavelengths above `original` / `low`, keeps those below `original` / `high`,
             and interpolates between
    yarn     the same, but interpolates by the number of the frequency, and multiplies cos and sin by
             `attention_factor` (by default 0.1 ln `factor` + 1), so that scores grow with the length
    longrope divides each frequency by its own one of `divisors`, and multiplies cos and sin by `attention_factor` (by
             default √(1 + ln `factor` / ln `original`))
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    attention_factor: float | None = None
    divisors: tuple[float, ...] = ()

    def __call__(self, frequency: Tensor, base: float) -> Tensor:
        """Scale the frequencies 1 / base^{2d/D}."""
        if self.kind == "linear":
            return frequency / self.factor
        if self.kind == "longrope":
            return frequency / torch.tensor(self.divisors, device=frequency.device, dtype=frequency.dtype)
        if self.kind == "yarn":
            unscaled = self._yarn_unscaled(frequency, base)
        else:
            periods = self.original * frequency / (2 * math.pi)
            unscaled = ((periods - self.low) / (self.high - self.low)).clamp(0, 1)
        return unscaled * frequency + (1 - unscaled) * frequency / self.factor

    @property
    def magnitude(self) -> float:
        """The factor of cos and sin."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "yarn":
            return 0.1 * math.log(self.factor) + 1
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original))

    def _yarn_unscaled(self, frequency: Tensor, base: float) -> Tensor:
        """Return 1 for frequencies that stay, 0 for those that are divided, and numbers between."""
        width = 2 * len(frequency)
        # The number d of the frequency that turns this often within the original context.
        high, low = (
            width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.high, self.low)
        )
        first, last = max(math.floor(high), 0), min(math.ceil(low), width - 1)
        number = torch.arange(len(frequency), device=frequency.device, dtype=frequency.dtype)
        return 1 - ((number - first) / (last - first or 0.001)).clamp(0, 1)


class Rotation(NamedTuple):
    """cos and sin of each position's angles, [T, R/2] or [B, 1, T, R/2], and which elements form a pair.

    The first R elements of a head are rotated, by default all K.
    """

    cos: Tensor
    sin: Tensor
    pairing: Pairing


class RotaryPositions(nn.Module):
    """Positions → the rotation of queries and keys, computed on each call so that model.to(bf16) cannot round it.

    width: how many elements of each head are rotated, the first ones.
    """

    def __init__(
        self,
        width: int,
        *,
        base: float = 10000.0,
        pairing: Pairing = "interleaved",
        scaling: RotaryScaling | None = None,
    ) -> None:
        super().__init__()
        if width % 2:
            raise ShapeError(f"Rotary positions need an even head width, not {width}.")
        self.width, self.base, self.pairing, self.scaling = width, base, pairing, scaling

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        wide = torch.promote_types(dtype, torch.float32)
        frequency = frequencies(self.width, base=self.base, device=positions.device, dtype=wide)
        if self.scaling is not None:
            frequency = self.scaling(frequency, self.base)
        angles = positions[..., None].to(wide) * frequency
        if angles.ndim == 3:
            angles = angles[:, None]
        magnitude = 1.0 if self.scaling is None else self.scaling.magnitude
        if magnitude == 1.0:
            return Rotation(angles.cos(), angles.sin(), self.pairing)
        return Rotation(magnitude * angles.cos(), magnitude * angles.sin(), self.pairing)

    def extra_repr(self) -> str:
        scaling = None if self.scaling is None else self.scaling.kind
        return f"{self.width}, base={self.base}, pairing={self.pairing}, scaling={scaling}"


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair (a, b) of the first R elements of x [B, H, T, K]: (a cos − b sin, a sin + b cos)."""
    cos, sin, pairing = rotation
    width = 2 * cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([rotate(x[..., :width], rotation), x[..., width:]], dim=-1)
    if pairing == "half":
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)
    a, b = x.view(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
