"""Precision: arithmetic in 16 bits on weights that are kept in 32.

    forward     w₁₆ = cast(w₃₂),  loss = f(w₁₆)         every product, norm and sum of the stream in 16 bits
    backward    ∂loss/∂w₃₂ = cast(∂loss/∂w₁₆)           gradients are added up in 32
    fp16        (s · loss) backward, then g / s          s halves when a gradient overflows, doubles after a while

The cast is part of the graph, so that an optimizer, a checkpoint or an average never meets a 16-bit weight.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from chumoku.training.state import State

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Cast(nn.Module):
    """A module that computes with its weights in another type."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        weights = {name: parameter.to(self.dtype) for name, parameter in self.inner.named_parameters()}
        # A shared table is one module under two names; exchanged twice, it would not come back as it was.
        return functional_call(self.inner, weights, (batch,), tie_weights=False)  # type: ignore[no-any-return]


class LossScale:
    """fp16's loss scale, kept in a run's state. In other precisions it is 1 and stays so."""

    FIRST, LEAST, PATIENCE = 2.0**16, 1.0, 2000

    def __init__(self, precision: str, state: State) -> None:
        self.enabled, self._state = precision == "fp16", state
        if self.enabled and state.step == 0:
            state.scale = self.FIRST

    @property
    def value(self) -> float:
        return self._state.scale if self.enabled else 1.0

    def update(self, *, finite: bool) -> bool:
        """Note how a step went; True when an overflow is explained by the scale alone, and nothing is wrong."""
        state = self._state
        if not self.enabled:
            return False
        state.scale_good = state.scale_good + 1 if finite else 0
        if not finite and state.scale > self.LEAST:
            state.scale /= 2
            return True
        if state.scale_good == self.PATIENCE:
            state.scale, state.scale_good = state.scale * 2, 0
        return False
