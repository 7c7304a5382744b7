"""Mixed precision: computation in 16 bits with weights stored in 32 bits.

    forward     w₁₆ = cast(w₃₂),  loss = f(w₁₆)         all products, norms and residual sums in 16 bits
    backward    ∂loss/∂w₃₂ = cast(∂loss/∂w₁₆)           gradients are accumulated in 32 bits
    fp16        (s · loss) backward, then g / s          s halves when a gradient overflows, doubles after a while

The cast is part of the graph, so the optimizer, checkpoints and the moving average only see 32-bit weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

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


@torch.library.custom_op("chumoku::cast_together", mutates_args=())
def cast_together(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The tensors in another dtype, by one kernel. The compiler makes one for each, and one for each gradient."""
    found = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(found, tensors)
    return found


@cast_together.register_fake
def _(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]


def _save_dtype(ctx: Any, inputs: tuple[list[Tensor], torch.dtype], output: list[Tensor]) -> None:
    ctx.dtype = inputs[0][0].dtype


def _cast_back(ctx: Any, gradients: list[Tensor]) -> tuple[list[Tensor], None]:
    return cast_together(gradients, ctx.dtype), None


cast_together.register_autograd(_cast_back, setup_context=_save_dtype)


class Cast(nn.Module):
    """Runs a module with its weights cast to another dtype.

    together: whether compiled code casts all trained weights at once, and so all gradients after the last is computed;
        only if all are used.
    """

    def __init__(self, inner: nn.Module, dtype: torch.dtype, *, together: bool = False) -> None:
        super().__init__()
        self.inner, self.dtype, self.together = inner, dtype, together

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        weights: dict[str, Tensor] = dict(self.inner.named_parameters())
        if self.together and torch.compiler.is_compiling():
            trained = {
                name: weight
                for name, weight in weights.items()
                if weight.requires_grad and weight.dtype == torch.float32
            }
            weights.update(zip(trained, cast_together(list(trained.values()), self.dtype), strict=True))
        weights = {name: weight.to(self.dtype) for name, weight in weights.items()}
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
