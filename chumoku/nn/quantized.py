"""Quantized matrices: y = W x + b with W in fewer bits. This file defines what every engine computes.

    weights   bf16      w = w           16-bit floats
              int8      w = s q         q ∈ −128 … 127, one s for 32 neighboring inputs of an output (a group)
              int4      w = s q + m     q ∈ 0 … 15, one s and one m for a group
              others    w = s q + m     the blocks of GGUF files: 2 to 6 bits, groups of 16 or 32 (gguf_blocks.py)

    inputs    bf16      x unchanged
              others    x ≈ t p         p ∈ −32512 … 32512, p = round(x · 32512 / max|x|), t = max|x| / 32512
                                        one t for a group

    sums      Σ_i w_i x_i in float32 or better, then + b

Decoding reads every weight once per token, so a quarter of the bytes is up to four times as fast. A 16-bit input is two
bytes, 256 h + l, which CPUs multiply as fast as they read weights. Rounding changes an input by at most 1.5e-5 of the
largest in its group, so the order of summation and the batch size do not visibly change the output (with 8-bit inputs,
one different rounding can change logits by more than 1). Only float32 inputs are rounded: float64 is used for exact
formulas, and bf16 inputs on a GPU are coarser already. Everything between the matrices stays in floats. Groups have
the layout of GGUF files, so their weights are used unchanged. The last group of an int8 matrix is padded with zeros.
"""

from __future__ import annotations

import weakref
from typing import Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn.embeddings import Embedding, check_range
from chumoku.nn.gguf_blocks import Blocks

GROUP = 32
LEVELS = 32512.0  # 127 · 256: the largest integer for an input
TINY = 1e-30  # a group whose largest input is not above this counts as zeros
Kind = Literal["bf16", "int8", "int4"]


class Bf16(NamedTuple):
    """Weights [N, K] as 16-bit floats."""

    weight: Tensor

    def dequantize(self) -> Tensor:
        return self.weight.float()


class Int8(NamedTuple):
    """Weights [N, K] as q [N, K/32, 32] and one scale per group [N, K/32]; K is rounded up to a multiple of 32."""

    q: Tensor
    scale: Tensor

    def dequantize(self) -> Tensor:
        return (self.q.float() * self.scale.float()[..., None]).flatten(1)


class Int4(NamedTuple):
    """Weights [N, K] as bytes [N, K/32, 16], and s and m of each group [N, K/32].

    Byte j of a group holds the q of input j in its lower four bits and of input j + 16 in its upper four.
    """

    packed: Tensor
    scale: Tensor
    low: Tensor

    def unpack(self) -> Tensor:
        """Return q [N, K]."""
        return torch.cat([self.packed & 15, self.packed >> 4], dim=-1).flatten(1)

    def dequantize(self) -> Tensor:
        q = self.unpack().view(*self.scale.shape, GROUP).float()
        return (q * self.scale.float()[..., None] + self.low.float()[..., None]).flatten(1)


StoredWeight = Bf16 | Int8 | Int4 | Blocks
KINDS: dict[type[StoredWeight], Kind] = {Bf16: "bf16", Int8: "int8", Int4: "int4"}


def quantize(weight: Tensor, kind: Kind) -> StoredWeight:
    """Quantize a float matrix [N, K] to the given kind."""
    if kind == "bf16":
        return Bf16(weight.detach().to(torch.bfloat16))
    return to_int8(weight) if kind == "int8" else to_int4(weight)


def round_inputs(x: Tensor, kind: str) -> Tensor:
    """Return the rounded inputs t p for weights of this kind; gradients ignore the rounding (straight-through)."""
    if kind == "bf16" or x.dtype != torch.float32:
        return x
    groups = _groups(x.detach())
    top = groups.abs().amax(-1, keepdim=True)
    levels = torch.full_like(top, LEVELS)  # a tensor, because PyTorch computes number / tensor as number · (1 / tensor)
    integers = (groups * torch.where(top > TINY, levels / top, 0.0)).round()
    rounded: Tensor = (integers * (top / levels)).flatten(-2)[..., : x.shape[-1]]
    return rounded + (x - x.detach()) if x.requires_grad and torch.is_grad_enabled() else rounded


def to_int8(weight: Tensor) -> Int8:
    """Round to the nearest integers, with the largest weight of each group at about ±127."""
    groups = _groups(weight.detach().float())
    scale = (groups.abs().amax(-1) / 127).half()
    return Int8(_steps(groups, scale).clamp(-128, 127).to(torch.int8), scale)


def to_int4(weight: Tensor) -> Int4:
    """Divide the range of each group into 15 equal steps."""
    if weight.shape[1] % GROUP:
        raise ShapeError(
            f"int4 needs a multiple of {GROUP} inputs, and a matrix of this model has {weight.shape[1]}. Use int8."
        )
    groups = weight.detach().float().reshape(len(weight), -1, GROUP)
    lowest, highest = groups.aminmax(dim=-1)
    scale, low = ((highest - lowest) / 15).half(), lowest.half()
    q = _steps(groups - low.float()[..., None], scale).clamp(0, 15).to(torch.uint8)
    return Int4(q[..., : GROUP // 2] | q[..., GROUP // 2 :] << 4, scale, low)


def _groups(x: Tensor) -> Tensor:
    """Return x [..., K] in groups [..., K/32, 32], the last one padded with zeros."""
    return F.pad(x, (0, -x.shape[-1] % GROUP)).reshape(*x.shape[:-1], -1, GROUP)


def _steps(groups: Tensor, scale: Tensor) -> Tensor:
    """Return groups [N, K/32, 32] in steps of their scales [N, K/32], rounded; with a scale of 0 any q is right."""
    return (groups / scale.float()[..., None]).nan_to_num(0.0).round()


def _register(module: nn.Module, stored: StoredWeight) -> str:
    """Register the stored tensors as buffers of the module, and return their kind."""
    for name, tensor in stored._asdict().items():
        module.register_buffer(name, tensor)
    return stored.kind if isinstance(stored, Blocks) else KINDS[type(stored)]


def _registered(module: nn.Module, weight_type: type[StoredWeight]) -> StoredWeight:
    return weight_type(*(getattr(module, name) for name in weight_type._fields))


class QuantizedLinear(nn.Module):
    """A linear layer y = W x + b with a quantized W, which is not trained."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: Kind) -> None:
        super().__init__()
        self._set_weight(quantize(weight, kind), bias)
        self.in_features = weight.shape[1]

    @classmethod
    def of(cls, stored: StoredWeight, bias: Tensor | None = None) -> Self:
        """Create the layer from weights that are already quantized, without copying them."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._set_weight(stored, bias)
        return layer

    def _set_weight(self, stored: StoredWeight, bias: Tensor | None) -> None:
        self.kind, self._weight_type = _register(self, stored), type(stored)
        self.out_features = len(stored[0])
        inputs = stored[0].shape[1] * (1 if isinstance(stored, Bf16) else GROUP)
        self.in_features = stored.inputs if isinstance(stored, Blocks) else inputs
        self.register_buffer("bias", None if bias is None else bias.detach())
        self._floats: weakref.ref[Tensor] | None = None
        self._dequantized_from: list[tuple[int, int]] = []

    @property
    def stored_weight(self) -> StoredWeight:
        return _registered(self, self._weight_type)

    def float_weight(self) -> Tensor:
        """Return W in float32. While the caller holds the result, later calls return the same tensor."""
        if torch.compiler.is_compiling():
            return self.stored_weight.dequantize()[:, : self.in_features]
        version = [(part.data_ptr(), -1 if part.is_inference() else part._version) for part in self.stored_weight]
        floats = None if self._floats is None or version != self._dequantized_from else self._floats()
        if floats is None:
            floats = self.stored_weight.dequantize()[:, : self.in_features]
            self._floats, self._dequantized_from = weakref.ref(floats), version
        return floats

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(round_inputs(x, self.kind), self.float_weight().to(x.dtype), bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, kind={self.kind}, bias={self.bias is not None}"


class QuantizedLogits(QuantizedLinear):
    """The quantized output matrix; `table` is not used, even if the output is tied to the embedding table."""

    def forward(self, x: Tensor, table: Tensor | None = None) -> Tensor:
        return super().forward(x)


class QuantizedEmbedding(Embedding):
    """A quantized embedding table; `forward` dequantizes only the rows it needs."""

    def __init__(self, stored: StoredWeight, *, factor: float = 1.0) -> None:
        nn.Module.__init__(self)
        self.factor = factor
        self.kind, self._weight_type = _register(self, stored), type(stored)
        self._table: Tensor | None = None

    @property
    def stored_weight(self) -> StoredWeight:
        return _registered(self, self._weight_type)

    @property
    def table(self) -> Tensor:  # type: ignore[override]
        """The whole table in floats, dequantized on first use."""
        if self._table is None or self._table.device != self.stored_weight[0].device:
            self._table = self.stored_weight.dequantize()
        return self._table

    def forward(self, tokens: Tensor) -> Tensor:
        stored = self.stored_weight
        check_range(tokens, len(stored[0]), "token")
        rows = type(stored)(*(part.index_select(0, tokens.flatten()) for part in stored)).dequantize()
        return rows.view(*tokens.shape, -1) * self.factor

    def extra_repr(self) -> str:
        return f"vocabulary={len(self.stored_weight[0])}, kind={self.kind}, factor={self.factor:.4g}"


def quantized_kinds(model: nn.Module) -> set[str]:
    """The kinds of the quantized matrices of the model; empty if none is quantized."""
    return {module.kind for module in model.modules() if isinstance(module, QuantizedLinear)}


def is_quantized(model: nn.Module) -> bool:
    """Whether any matrix of the model is quantized."""
    return bool(quantized_kinds(model))
