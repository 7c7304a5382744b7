"""Mixed precision: computation in 16 bits with weights stored in 32 bits.

    forward     w₁₆ = cast(w₃₂),  loss = f(w₁₆)         all products, norms and residual sums in 16 bits
    backward    ∂loss/∂w₃₂ = cast(∂loss/∂w₁₆)           gradients are accumulated in 32 bits
    fp16        (s · loss) backward, then g / s          s halves when a gradient overflows, doubles after a while

The cast is part of the graph, so the optimizer, checkpoints and the moving average only see 32-bit weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

from chumoku.training.state import State

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextlib.contextmanager
def fast_kernels(precision: str) -> Iterator[None]:
    """A context without two kinds of kernels that are slow here.

    CPU   oneDNN where it has only its reference kernel for fp16, 40 times slower than PyTorch's own
    GPU   cuDNN's attention, which takes 9 ms to plan every new shape, and batches of pairs have many shapes
    """
    onednn, cudnn_attention = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_sdp_enabled()
    slow = precision == "fp16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported()
    torch._C._set_mkldnn_enabled(onednn and not slow)
    torch._C._set_sdp_use_cudnn(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        torch._C._set_sdp_use_cudnn(cudnn_attention)


class Cast(nn.Module):
    """Runs a module with its weights cast to another dtype."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        weights = {name: parameter.to(self.dtype) for name, parameter in self.inner.named_parameters()}
        # A tied table is one module under two names; swapping it twice would not restore the original.
        return functional_call(self.inner, weights, (batch,), tie_weights=False)  # type: ignore[no-any-return]


class LossScale:
    """The loss scale of fp16, stored in the run's state; always 1 in other precisions."""

    FIRST, LEAST, PATIENCE = 2.0**16, 1.0, 2000

    def __init__(self, precision: str, state: State) -> None:
        self.enabled, self._state = precision == "fp16", state
        if self.enabled and state.step == 0:
            state.scale = self.FIRST

    @property
    def value(self) -> float:
        return self._state.scale if self.enabled else 1.0

    def update(self, *, finite: bool) -> bool:
        """Adapt the scale after a step; returns True if an overflow only means that the scale was too large."""
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
