"""Quantised weights: whole numbers with a scale, a quarter or an eighth of float32's memory.

    int8   w ≈ s q             q ∈ −127 … 127,  one s for all weights of an output (a channel)
    int4   w ≈ s q + m         q ∈ 0 … 15,      one s and one m for 32 neighbouring inputs of an output (a group)

Decoding reads every weight once for each token, so a quarter of the bytes is up to four times the speed. Only matrices
are stored so; what flows between them stays as it was. `dequantised` is the formula read backwards; the modules use
packed kernels of PyTorch where it has one, and the formula elsewhere.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError

GROUP = 32
FEW = 32  # rows; for more, reading the formula backwards once and one large product are quicker
OUTPUTS = 16  # the int4 kernel makes so many at a time
Kind = Literal["int8", "int4"]


class Int8(NamedTuple):
    """Weights [N, K] as q [N, K] and a scale for each output [N]."""

    q: Tensor
    scale: Tensor

    def dequantised(self) -> Tensor:
        return self.q.to(self.scale.dtype) * self.scale[:, None]


class Int4(NamedTuple):
    """Weights [N, K] as two q a byte [N, K/2], the even input's in its lower half, and s and m of groups [N, K/32]."""

    packed: Tensor
    scale: Tensor
    low: Tensor

    def unpacked(self) -> Tensor:
        """q [N, K]"""
        return torch.stack([self.packed & 15, self.packed >> 4], dim=-1).flatten(1)

    def dequantised(self) -> Tensor:
        q = self.unpacked().view(*self.scale.shape, GROUP).float()
        return (q * self.scale.float()[..., None] + self.low.float()[..., None]).flatten(1)


def to_int8(weight: Tensor) -> Int8:
    """The nearest whole numbers, the largest weight of each output at ±127."""
    weight = weight.detach().float()
    scale = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return Int8((weight / scale[:, None]).round().to(torch.int8), scale)


def to_int4(weight: Tensor) -> Int4:
    """Each group's range in 15 equal steps."""
    if weight.shape[1] % GROUP:
        raise ShapeError(
            f"int4 needs a number of inputs that groups of {GROUP} divide, and a matrix here has {weight.shape[1]}. "
            "Use int8 for this model."
        )
    groups = weight.detach().float().reshape(len(weight), -1, GROUP)
    least, most = groups.aminmax(dim=-1)
    scale, low = ((most - least) / 15).half(), least.half()
    steps = (groups - low.float()[..., None]) / scale.float()[..., None]
    # A group of equal weights has a scale of 0, and any q stands for them.
    q = steps.nan_to_num(0.0).round().clamp(0, 15).flatten(1).to(torch.uint8)
    return Int4(q[:, ::2] | q[:, 1::2] << 4, scale, low)


class Quantised(nn.Module):
    """y = W x + b with W stored in whole numbers. Not trained."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.out_features, self.in_features = weight.shape
        stored = to_int8(weight) if kind == "int8" else to_int4(weight)
        for name, tensor in stored._asdict().items():
            self.register_buffer(name, tensor)
        self.register_buffer("bias", None if bias is None else bias.detach())
        self._made: tuple[Tensor, Tensor] | None = None  # for PyTorch's kernels, when they are first used

    @property
    def stored(self) -> Int8 | Int4:
        made = Int8 if self.kind == "int8" else Int4
        return made(*(getattr(self, name) for name in made._fields))

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        rows = x.flatten(0, -2)
        if x.device.type != "cpu" or len(rows) > FEW:
            return F.linear(x, self.stored.dequantised().to(x.dtype), bias)
        y = self._packed(rows).view(*x.shape[:-1], -1)
        return y if bias is None else y + bias

    def _packed(self, x: Tensor) -> Tensor:
        """PyTorch's own kernels for processors, which want bf16 inputs."""
        if self._made is None:
            self._made = self._pack()
        inputs, (weight, scales) = x.to(torch.bfloat16), self._made
        if self.kind == "int8":
            return torch._weight_int8pack_mm(inputs, weight, scales).to(x.dtype)
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(inputs, weight, GROUP, scales)
        return y[:, : self.out_features].to(x.dtype)  # type: ignore[no-any-return]

    def _pack(self) -> tuple[Tensor, Tensor]:
        stored = self.stored
        if isinstance(stored, Int8):
            return stored.q, stored.scale.to(torch.bfloat16)
        fill = (0, 0, 0, -self.out_features % OUTPUTS)
        weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(F.pad(stored.unpacked(), fill).int(), 2)
        # There w = s (q − 8) + z, so z = m + 8 s.
        scale, low = F.pad(stored.scale.float(), fill), F.pad(stored.low.float(), fill)
        scales = torch.stack([scale, low + 8 * scale], dim=-1).transpose(0, 1)
        return weight, scales.to(torch.bfloat16).contiguous()


class QuantisedLogits(Quantised):
    """The output matrix, stored so even where it is the embedding's table."""

    def forward(self, x: Tensor, table: Tensor | None = None) -> Tensor:
        return super().forward(x)
