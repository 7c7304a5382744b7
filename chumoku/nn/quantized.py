"""Quantized matrices: y = W x + b with W in fewer bits. This file states what every engine computes.

    weights   bf16          w = w                              a float of 16 bits
              int8          w = s q         q ∈ −127 … 127     one s for all weights of an output (a channel)
              int8-groups   w = s q         q ∈ −128 … 127     one s for 32 neighboring inputs of an output (a group)
              int4          w = s q + m     q ∈ 0 … 15         one s and one m for a group

    inputs    bf16          x as it is
              others        x ≈ t p         p ∈ −32512 … 32512, p = round(x · 32512 / max|x|), t = max|x| / 32512
                                            one t for a group; for int8 one t for all inputs of a token

    sums      Σ_i w_i x_i in float32 or better, then + b

Decoding reads every weight once for each token, so a quarter of the bytes is up to four times the speed. Inputs of 16
bits are two bytes, 256 h + l, which processors multiply as fast as they read weights; rounding them moves an input by
1.5e-5 of its group's largest at most, so that the order of sums and the number of rows change no answer visibly (with
inputs of 8 bits, a last digit that falls the other way grows into whole logits). Only float32 inputs are rounded: in
float64 the formulas are exact, and a GPU's bf16 inputs are coarser already. All between the matrices stays in floats.
Groups are laid out as in GGUF files, from which weights come as they are.
"""

from __future__ import annotations

import weakref
from typing import Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn.embeddings import Embedding, check_range

GROUP = 32
LEVELS = 32512.0  # 127 · 256: the largest whole number an input becomes
TINY = 1e-30  # a group of inputs none of which is larger counts as zeros
Kind = Literal["bf16", "int8", "int8-groups", "int4"]


class Bf16(NamedTuple):
    """Weights [N, K] as floats of 16 bits."""

    weight: Tensor

    def dequantize(self) -> Tensor:
        return self.weight.float()


class Int8(NamedTuple):
    """Weights [N, K] as q [N, K] and a scale for each output [N]."""

    q: Tensor
    scale: Tensor

    def dequantize(self) -> Tensor:
        return self.q.to(self.scale.dtype) * self.scale[:, None]


class Int8Groups(NamedTuple):
    """Weights [N, K] as q [N, K/32, 32] and a scale for each group [N, K/32]."""

    q: Tensor
    scale: Tensor

    def dequantize(self) -> Tensor:
        return (self.q.float() * self.scale.float()[..., None]).flatten(1)


class Int4(NamedTuple):
    """Weights [N, K] as bytes [N, K/32, 16], and s and m of groups [N, K/32].

    Byte j of a group holds the q of its input j in the lower half, and of its input j + 16 in the upper.
    """

    packed: Tensor
    scale: Tensor
    low: Tensor

    def unpack(self) -> Tensor:
        """q [N, K]"""
        return torch.cat([self.packed & 15, self.packed >> 4], dim=-1).flatten(1)

    def dequantize(self) -> Tensor:
        q = self.unpack().view(*self.scale.shape, GROUP).float()
        return (q * self.scale.float()[..., None] + self.low.float()[..., None]).flatten(1)


StoredWeight = Bf16 | Int8 | Int8Groups | Int4
WEIGHT_TYPES: dict[Kind, type[StoredWeight]] = {"bf16": Bf16, "int8": Int8, "int8-groups": Int8Groups, "int4": Int4}


def quantize(weight: Tensor, kind: Literal["bf16", "int8", "int4"]) -> StoredWeight:
    """A float matrix [N, K] stored as `kind`."""
    if kind == "bf16":
        return Bf16(weight.detach().to(torch.bfloat16))
    return to_int8(weight) if kind == "int8" else to_int4(weight)


def round_inputs(x: Tensor, kind: Kind) -> Tensor:
    """The inputs t p that a product of this kind of weights computes with; gradients pass as if nothing was rounded."""
    if kind == "bf16" or x.dtype != torch.float32:
        return x
    groups = x.detach().reshape(*x.shape[:-1], -1, x.shape[-1] if kind == "int8" else GROUP)
    top = groups.abs().amax(-1, keepdim=True)
    levels = torch.full_like(top, LEVELS)  # a tensor, because PyTorch divides a number by multiplying with 1 / top
    whole = (groups * torch.where(top > TINY, levels / top, 0.0)).round()
    rounded: Tensor = (whole * (top / levels)).flatten(-2)
    return rounded + (x - x.detach()) if x.requires_grad and torch.is_grad_enabled() else rounded


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


def keep(module: nn.Module, stored: StoredWeight) -> Kind:
    """Make stored weights the module's own, and say of what kind they are."""
    for name, tensor in stored._asdict().items():
        module.register_buffer(name, tensor)
    return next(kind for kind, made in WEIGHT_TYPES.items() if type(stored) is made)


def kept(module: nn.Module, kind: Kind) -> StoredWeight:
    made = WEIGHT_TYPES[kind]
    return made(*(getattr(module, name) for name in made._fields))


class Quantized(nn.Module):
    """y = W x + b with a quantized W. Not trained."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: Literal["bf16", "int8", "int4"]) -> None:
        super().__init__()
        self._take(quantize(weight, kind), bias)

    @classmethod
    def of(cls, stored: StoredWeight, bias: Tensor | None = None) -> Self:
        """The module of weights that are quantized already; they are kept as they are given."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(stored, bias)
        return made

    def _take(self, stored: StoredWeight, bias: Tensor | None) -> None:
        self.kind = keep(self, stored)
        self.out_features = len(stored[0])
        self.in_features = (
            stored.scale.shape[1] * GROUP if isinstance(stored, Int8Groups | Int4) else stored[0].shape[1]
        )
        self.register_buffer("bias", None if bias is None else bias.detach())
        self._floats: weakref.ref[Tensor] | None = None
        self._dequantized_from: list[tuple[int, int]] = []

    @property
    def stored_weight(self) -> StoredWeight:
        return kept(self, self.kind)

    def float_weight(self) -> Tensor:
        """W in float32. While somebody keeps the result, later calls return it instead of dequantizing again."""
        if torch.compiler.is_compiling():
            return self.stored_weight.dequantize()
        version = [(part.data_ptr(), -1 if part.is_inference() else part._version) for part in self.stored_weight]
        floats = None if self._floats is None or version != self._dequantized_from else self._floats()
        if floats is None:
            floats = self.stored_weight.dequantize()
            self._floats, self._dequantized_from = weakref.ref(floats), version
        return floats

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(round_inputs(x, self.kind), self.float_weight().to(x.dtype), bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, kind={self.kind}, bias={self.bias is not None}"


class QuantizedLogits(Quantized):
    """The output matrix, quantized even where it is the embedding's table."""

    def forward(self, x: Tensor, table: Tensor | None = None) -> Tensor:
        return super().forward(x)


class QuantizedEmbedding(Embedding):
    """The token table, quantized; only the rows of the tokens at hand are dequantized."""

    def __init__(self, stored: StoredWeight, *, factor: float = 1.0) -> None:
        nn.Module.__init__(self)
        self.factor = factor
        self.kind = keep(self, stored)
        self._table: Tensor | None = None

    @property
    def stored_weight(self) -> StoredWeight:
        return kept(self, self.kind)

    @property
    def table(self) -> Tensor:  # type: ignore[override]
        """All of it in floats, made when it is first needed."""
        if self._table is None or self._table.device != self.stored_weight[0].device:
            self._table = self.stored_weight.dequantize()
        return self._table

    def forward(self, tokens: Tensor) -> Tensor:
        stored = self.stored_weight
        check_range(tokens, len(stored[0]), "token")
        rows = type(stored)(*(part[tokens.flatten()] for part in stored)).dequantize()
        return rows.view(*tokens.shape, -1) * self.factor
