"""Low-rank adapters: a matrix learns through two thin ones beside it, and stays as it is.

    LoRA   y = W x + b + s · B A x                                    A [r, in], B [out, r];  s = α / r, or α / √r
    DoRA   y = g ⊙ (W + s · B A) x + b,   g = m / ‖W + s · B A‖       m [out]; ‖·‖ of each output's row

A fresh B is 0 and a fresh m is ‖W‖, so that nothing changes before something is learned. DoRA's norm is a constant to
the backward pass, as in its paper. Dropout, in training, falls on the x that the adapter sees; DoRA's adapter also sees
(g − 1) W x. `merged_weight` is the whole matrix and `plain` multiplies by it; `forward` never forms B A for LoRA, and for
DoRA only to take its norm. Inside `chumoku.plain()` `forward` is `plain`, unless dropout makes them different maps.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn.plain import plain_formulas
from chumoku.nn.quantized import Quantized


def dense_weight(base: nn.Linear | Quantized) -> Tensor:
    """W in floats, however it is stored."""
    return base.stored_weight.dequantize() if isinstance(base, Quantized) else base.weight


class LowRank(nn.Module):
    """s · B A, and DoRA's m where there is one. Made with B = 0 and A = 0; `fill` draws A."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        rank: int,
        *,
        alpha: float,
        stabilised: bool = False,
        dropout: float = 0.0,
        magnitude: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if min(inputs, outputs, rank) < 1:
            raise ShapeError(f"An adapter of rank {rank} for {inputs} inputs and {outputs} outputs has no numbers.")
        self.rank, self.alpha, self.stabilised, self.dropout = rank, float(alpha), stabilised, dropout
        self.a = nn.Parameter(torch.zeros(rank, inputs, dtype=dtype, device=device))
        self.b = nn.Parameter(torch.zeros(outputs, rank, dtype=dtype, device=device))
        self.magnitude = nn.Parameter(torch.zeros(outputs, dtype=dtype, device=device)) if magnitude else None

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.stabilised else self.rank)

    @torch.no_grad()
    def initialize(self, weight: Tensor, generator: torch.Generator | None = None) -> LowRank:
        """A from U(±1 / √in), as a new linear layer's weights; m as the weight's norms."""
        bound = self.a.shape[1] ** -0.5
        # Drawn on the processor, so that a seed gives the same adapter on every device.
        drawn = torch.empty(self.a.shape, dtype=self.a.dtype).uniform_(-bound, bound, generator=generator)
        self.a.copy_(drawn)
        if self.magnitude is not None:
            self.magnitude.copy_(self.norms(weight))
        return self

    def change(self) -> Tensor:
        """s · B A [out, in]"""
        return self.scale * (self.b @ self.a)

    def norms(self, weight: Tensor) -> Tensor:
        """‖W + s · B A‖ of each row, a constant; above 0, so that a row of zeros stays one."""
        with torch.no_grad():
            precise = torch.promote_types(weight.dtype, torch.float32)
            whole = weight.to(precise) + self.change().to(precise)
            norms: Tensor = torch.linalg.vector_norm(whole, dim=1)
            return norms.clamp(min=torch.finfo(precise).tiny)


class Adapted(nn.Module):
    """A linear map and the adapters beside it, by name; `active` says which one is heard, if any.

    The map itself is `base`, the very module that was given. There is no `weight` here: whoever reads one directly
    would leave the adapter out.
    """

    def __init__(self, base: nn.Linear | Quantized) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.base = base
        self.adapters = nn.ModuleDict()
        self.active: str | None = None
        self.train(base.training)

    @property
    def active_adapter(self) -> LowRank | None:
        """The adapter that `active` names, where this matrix has one of that name."""
        if self.active is None or self.active not in self.adapters:
            return None
        return self.adapters[self.active]  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        low = self.active_adapter
        dropping = low is not None and self.training and low.dropout > 0
        if plain_formulas() and not dropping:
            return self.plain(x)
        y: Tensor = self.base(x)
        if low is None:
            return y
        seen = F.dropout(x, low.dropout) if dropping else x
        beside = F.linear(F.linear(seen.to(low.a.dtype), low.a), low.b) * low.scale
        if low.magnitude is not None:
            # (g − 1) W x + g · s B A x; fresh, g is 1 to the last bit.
            gain = low.magnitude / low.norms(dense_weight(self.base)).to(low.magnitude.dtype)
            unbiased = self._unbiased(self.base(seen) if dropping else y)
            beside = (gain - 1) * unbiased.to(beside.dtype) + gain * beside
        return (y + beside).to(y.dtype)

    def plain(self, x: Tensor) -> Tensor:
        """The formula: one product with the whole matrix, in float32 or better. Without dropout."""
        precise = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.base.bias is None else self.base.bias.to(precise)
        return F.linear(x.to(precise), self._matrix(self.active_adapter, precise), bias).to(x.dtype)

    def merged_weight(self, low: LowRank | None) -> Tensor:
        """The matrix with this adapter in it: W + s · B A, for DoRA each row scaled to m."""
        weight = dense_weight(self.base)
        if low is None:
            return weight
        return self._matrix(low, torch.promote_types(weight.dtype, low.a.dtype)).to(weight.dtype)

    def _matrix(self, low: LowRank | None, dtype: torch.dtype) -> Tensor:
        """The same in another type: in 16 bits a small B A would be lost beside W."""
        weight = dense_weight(self.base)
        if low is None:
            return weight.to(dtype)
        whole = weight.to(dtype) + low.change().to(dtype)
        if low.magnitude is not None:
            whole = whole * (low.magnitude / low.norms(weight).to(low.magnitude.dtype)).to(dtype)[:, None]
        return whole

    def _unbiased(self, y: Tensor) -> Tensor:
        return y if self.base.bias is None else y - self.base.bias.to(y.dtype)
