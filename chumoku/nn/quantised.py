"""Quantised weights: whole numbers with a scale, a quarter or an eighth of float32's memory.

    int8          w ≈ s q         q ∈ −127 … 127,   one s for all weights of an output (a channel)
    int8-groups   w ≈ s q         q ∈ −128 … 127,   one s for 32 neighbouring inputs of an output (a group)
    int4          w ≈ s q + m     q ∈ 0 … 15,       one s and one m for a group

Decoding reads every weight once for each token, so a quarter of the bytes is up to four times the speed. Only matrices
are stored so; what flows between them stays as it was. `dequantised` is the formula read backwards; the modules use
packed kernels of PyTorch where it has one, and the formula elsewhere. Groups are laid out as in GGUF files, from which
weights come as they are.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn.embeddings import Embedding, check_range

GROUP = 32
FEW = 32  # rows; for more, reading the formula backwards once and one large product are quicker
OUTPUTS = 16  # the int4 kernel makes so many at a time
Kind = Literal["int8", "int8-groups", "int4"]


class Int8(NamedTuple):
    """Weights [N, K] as q [N, K] and a scale for each output [N]."""

    q: Tensor
    scale: Tensor

    def dequantised(self) -> Tensor:
        return self.q.to(self.scale.dtype) * self.scale[:, None]


class Int8Groups(NamedTuple):
    """Weights [N, K] as q [N, K/32, 32] and a scale for each group [N, K/32]."""

    q: Tensor
    scale: Tensor

    def dequantised(self) -> Tensor:
        return (self.q.float() * self.scale.float()[..., None]).flatten(1)


class Int4(NamedTuple):
    """Weights [N, K] as bytes [N, K/32, 16], and s and m of groups [N, K/32].

    Byte j of a group holds the q of its input j in the lower half, and of its input j + 16 in the upper.
    """

    packed: Tensor
    scale: Tensor
    low: Tensor

    def unpacked(self) -> Tensor:
        """q [N, K]"""
        return torch.cat([self.packed & 15, self.packed >> 4], dim=-1).flatten(1)

    def dequantised(self) -> Tensor:
        q = self.unpacked().view(*self.scale.shape, GROUP).float()
        return (q * self.scale.float()[..., None] + self.low.float()[..., None]).flatten(1)


Stored = Int8 | Int8Groups | Int4
STORED: dict[Kind, type[Stored]] = {"int8": Int8, "int8-groups": Int8Groups, "int4": Int4}


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
    q = steps.nan_to_num(0.0).round().clamp(0, 15).to(torch.uint8)
    return Int4(q[..., : GROUP // 2] | q[..., GROUP // 2 :] << 4, scale, low)


def keep(module: nn.Module, stored: Stored) -> Kind:
    """Make stored weights the module's own, and say of what kind they are."""
    for name, tensor in stored._asdict().items():
        module.register_buffer(name, tensor)
    return next(kind for kind, made in STORED.items() if type(stored) is made)


def kept(module: nn.Module, kind: Kind) -> Stored:
    made = STORED[kind]
    return made(*(getattr(module, name) for name in made._fields))


class Quantised(nn.Module):
    """y = W x + b with W stored in whole numbers. Not trained."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: Literal["int8", "int4"]) -> None:
        super().__init__()
        self._take(to_int8(weight) if kind == "int8" else to_int4(weight), bias)

    @classmethod
    def of(cls, stored: Stored, bias: Tensor | None = None) -> Self:
        """The module of weights that are whole numbers already; they are kept as they are given."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(stored, bias)
        return made

    def _take(self, stored: Stored, bias: Tensor | None) -> None:
        self.kind = keep(self, stored)
        self.out_features = len(stored.scale)
        self.in_features = stored[0].shape[1] if isinstance(stored, Int8) else stored.scale.shape[1] * GROUP
        self.register_buffer("bias", None if bias is None else bias.detach())
        self._made: tuple[Tensor, Tensor] | None = None  # for PyTorch's kernels, when they are first used

    @property
    def stored(self) -> Stored:
        return kept(self, self.kind)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.unpacks(x):
            return F.linear(x, self.stored.dequantised().to(x.dtype), bias)
        y = self._packed(x.flatten(0, -2)).view(*x.shape[:-1], -1)
        return y if bias is None else y + bias

    def unpacks(self, x: Tensor) -> bool:
        """Whether the formula is read backwards for these inputs: for many, and where no kernel will do."""
        trained = torch.is_grad_enabled() and x.requires_grad  # PyTorch's packed kernels have no gradients …
        odd = self.in_features % GROUP != 0  # … and the one for int8 reads past the end of such rows
        many = x.shape[:-1].numel() > FEW
        return trained or odd or many or x.device.type != "cpu" or self.kind == "int8-groups"

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
        if not isinstance(stored, Int4):
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


class QuantisedEmbedding(Embedding):
    """The token table in whole numbers: of the tokens at hand alone, rows are read backwards."""

    def __init__(self, stored: Stored, *, factor: float = 1.0) -> None:
        nn.Module.__init__(self)
        self.factor = factor
        self.kind = keep(self, stored)
        self._table: Tensor | None = None

    @property
    def stored(self) -> Stored:
        return kept(self, self.kind)

    @property
    def table(self) -> Tensor:  # type: ignore[override]
        """All of it in floats, made when somebody first asks."""
        if self._table is None or self._table.device != self.stored.scale.device:
            self._table = self.stored.dequantised()
        return self._table

    def forward(self, tokens: Tensor) -> Tensor:
        stored = self.stored
        check_range(tokens, len(stored.scale), "token")
        rows = type(stored)(*(part[tokens.flatten()] for part in stored)).dequantised()
        return rows.view(*tokens.shape, -1) * self.factor
