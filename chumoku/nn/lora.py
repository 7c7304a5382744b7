"""Low-rank adapters (LoRA): two small trainable matrices beside a frozen matrix W.

    LoRA   y = W x + b + s · B A x                                    A [r, in], B [out, r];  s = α / r, or α / √r
    DoRA   y = g ⊙ (W + s · B A) x + b,   g = m / ‖W + s · B A‖       m [out]; ‖·‖ of each output's row

B starts as 0 and m as ‖W‖, so a new adapter does not change the output. The backward pass treats DoRA's norm as a
constant, as in its paper. In training, dropout applies to the x that the adapter gets; in DoRA also to the x of
(g − 1) W x. `merged_weight` returns the full matrix and `plain` multiplies by it. `forward` does not compute B A for
LoRA, and for DoRA only for the norm. Inside `chumoku.plain()` `forward` calls `plain`, unless dropout is active.
`RowAdapted` is for a batch whose rows have different adapters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn.plain import plain_formulas
from chumoku.nn.quantized import QuantizedLinear


def dense_weight(base: nn.Linear | QuantizedLinear) -> Tensor:
    """Return the weight W of a linear or quantized layer as a float tensor."""
    return base.float_weight() if isinstance(base, QuantizedLinear) else base.weight


class LowRank(nn.Module):
    """The parameters of one adapter: A, B, and DoRA's m. All are 0 until `initialize` is called.

    alpha: numerator of the scale s.
    stabilized: s = α / √r instead of α / r (rsLoRA).
    magnitude: True for DoRA.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        rank: int,
        *,
        alpha: float,
        stabilized: bool = False,
        dropout: float = 0.0,
        magnitude: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if min(inputs, outputs, rank) < 1:
            raise ShapeError(
                f"An adapter needs a rank, inputs and outputs of 1 or more, not {rank}, {inputs}, {outputs}."
            )
        self.rank, self.alpha, self.stabilized, self.dropout = rank, float(alpha), stabilized, dropout
        self.a = nn.Parameter(torch.zeros(rank, inputs, dtype=dtype, device=device))
        self.b = nn.Parameter(torch.zeros(outputs, rank, dtype=dtype, device=device))
        self.magnitude = nn.Parameter(torch.zeros(outputs, dtype=dtype, device=device)) if magnitude else None

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.stabilized else self.rank)

    @torch.no_grad()
    def initialize(self, weight: Tensor, generator: torch.Generator | None = None) -> LowRank:
        """Fill A from U(±1 / √in), as nn.Linear does, and m with the row norms of `weight`. Returns itself."""
        bound = self.a.shape[1] ** -0.5
        # Sampled on the CPU, so that a seed gives the same adapter on every device.
        sample = torch.empty(self.a.shape, dtype=self.a.dtype).uniform_(-bound, bound, generator=generator)
        self.a.copy_(sample)
        if self.magnitude is not None:
            self.magnitude.copy_(self.row_norms(weight))
        return self

    def delta(self, x: Tensor) -> Tensor:
        """Return s · B A x."""
        return F.linear(F.linear(x.to(self.a.dtype), self.a), self.b) * self.scale

    def delta_weight(self) -> Tensor:
        """Return s · B A [out, in]."""
        return self.scale * (self.b @ self.a)

    def row_norms(self, weight: Tensor) -> Tensor:
        """Return ‖W + s · B A‖ of each row, without gradient; never 0, because m is divided by it."""
        with torch.no_grad():
            dtype = torch.promote_types(weight.dtype, torch.float32)
            merged = weight.to(dtype) + self.delta_weight().to(dtype)
            norms: Tensor = torch.linalg.vector_norm(merged, dim=1)
            return norms.clamp(min=torch.finfo(dtype).tiny)

    def extra_repr(self) -> str:
        sizes = f"{self.a.shape[1]}, {self.b.shape[0]}, rank={self.rank}, alpha={self.alpha}"
        return f"{sizes}, dropout={self.dropout}, dora={self.magnitude is not None}"


Adapter = Mapping[str, LowRank]  # the matrices of one adapter, by the address of the matrix that each one changes


class Adapted(nn.Module):
    """A linear layer with adapters by name; `active` names the one that is used, or None.

    `base` is the given module itself. There is no `weight` attribute, because it would lack the adapter's change.
    """

    def __init__(self, base: nn.Linear | QuantizedLinear) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.base = base
        self.adapters = nn.ModuleDict()
        self.active: str | None = None
        self.train(base.training)

    @property
    def active_adapter(self) -> LowRank | None:
        """The adapter named by `active`, or None if this layer has no adapter of that name."""
        if self.active is None or self.active not in self.adapters:
            return None
        return self.adapters[self.active]  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        adapter = self.active_adapter
        use_dropout = adapter is not None and self.training and adapter.dropout > 0
        if plain_formulas() and not use_dropout:
            return self.plain(x)
        y: Tensor = self.base(x)
        if adapter is None:
            return y
        dropped = F.dropout(x, adapter.dropout) if use_dropout else x
        delta = adapter.delta(dropped)
        if adapter.magnitude is not None:
            # (g − 1) W x + g · s B A x; for a new adapter, g is exactly 1.
            gain = adapter.magnitude / adapter.row_norms(dense_weight(self.base)).to(adapter.magnitude.dtype)
            unbiased = self._subtract_bias(self.base(dropped) if use_dropout else y)
            delta = (gain - 1) * unbiased.to(delta.dtype) + gain * delta
        return (y + delta).to(y.dtype)

    def plain(self, x: Tensor) -> Tensor:
        """Multiply by the merged matrix, in float32 or better, without dropout."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.base.bias is None else self.base.bias.to(dtype)
        return F.linear(x.to(dtype), self._merge(self.active_adapter, dtype), bias).to(x.dtype)

    def merged_weight(self, adapter: LowRank | None) -> Tensor:
        """Return the matrix with this adapter merged: W + s · B A; for DoRA, each row scaled to length m."""
        weight = dense_weight(self.base)
        if adapter is None:
            return weight
        return self._merge(adapter, torch.promote_types(weight.dtype, adapter.a.dtype)).to(weight.dtype)

    def _merge(self, adapter: LowRank | None, dtype: torch.dtype) -> Tensor:
        """Return the merged matrix, computed in `dtype`: in 16 bits a small B A would be rounded away."""
        weight = dense_weight(self.base)
        if adapter is None:
            return weight.to(dtype)
        merged = weight.to(dtype) + adapter.delta_weight().to(dtype)
        if adapter.magnitude is not None:
            merged = (
                merged * (adapter.magnitude / adapter.row_norms(weight).to(adapter.magnitude.dtype)).to(dtype)[:, None]
            )
        return merged

    def _subtract_bias(self, y: Tensor) -> Tensor:
        return y if self.base.bias is None else y - self.base.bias.to(y.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, active={self.active}"


class RowAdapted(nn.Module):
    """A linear layer for a batch whose rows have different adapters: y_i = W x_i + b + s · B A x_i, A and B of row i.

    adapters: by name; LoRA only.
    groups: which rows of the batch have which adapter. All layers share this list, and its owner changes it.
    """

    def __init__(
        self,
        base: nn.Linear | QuantizedLinear,
        adapters: Mapping[str, LowRank],
        groups: Sequence[tuple[str, Tensor]],
    ) -> None:
        super().__init__()
        self.base, self.adapters, self.groups = base, dict(adapters), groups

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        for name, rows in self.groups:
            if name in self.adapters:
                y[rows] += self.adapters[name].delta(x[rows]).to(y.dtype)
        return y
