"""Feed-forward: two or three linear layers applied to each position separately.

plain   f(x W_up + b) W_down + b                f = ReLU, GELU (exact or tanh), SiLU
gated   (f(x W_gate + b) ⊙ (x W_up + b)) W_down + b    GEGLU: f = GELU (exact or tanh), SwiGLU: f = SiLU
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.nn.gpu_kernels import has_kernels
from chumoku.nn.modules import apply_linear
from chumoku.nn.plain import plain_formulas
from chumoku.nn.tap import tap

Kind = Literal["relu", "gelu", "gelu_tanh", "silu", "geglu", "geglu_tanh", "swiglu"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def gelu_tanh(x: Tensor) -> Tensor:
    """A function and not a functools.partial, so that a copied model still equals its config."""
    return F.gelu(x, approximate="tanh")


class Activation(NamedTuple):
    function: Callable[[Tensor], Tensor]
    gated: bool


ACTIVATIONS: dict[Kind, Activation] = {
    "relu": Activation(F.relu, gated=False),
    "gelu": Activation(F.gelu, gated=False),
    "gelu_tanh": Activation(gelu_tanh, gated=False),
    "silu": Activation(F.silu, gated=False),
    "geglu": Activation(F.gelu, gated=True),
    "geglu_tanh": Activation(gelu_tanh, gated=True),
    "swiglu": Activation(F.silu, gated=True),
}


class FeedForward(nn.Module):
    """[..., D] → [..., F] → [..., D]. `hidden` is the inner width F, `kind` the activation, gated or not."""

    TAPS = ("pre_activation", "hidden", "output")

    def __init__(self, width: int, hidden: int, *, kind: Kind = "relu", bias: bool = True) -> None:
        super().__init__()
        self.kind, self.activation = kind, ACTIVATIONS[kind]
        self.up = nn.Linear(width, hidden, bias=bias)
        self.gate = nn.Linear(width, hidden, bias=bias) if self.activation.gated else None
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor, *, add_bias: bool = True) -> Tensor:
        """`add_bias=False` leaves out the bias of the output product."""
        if self._has_kernel(x):
            return self._run_kernel(x.flatten(0, -2), add_bias).view(x.shape)
        pre_activation = tap(self, "pre_activation", (self.up if self.gate is None else self.gate)(x))
        hidden = self.activation.function(pre_activation)
        if self.gate is not None:
            hidden = hidden * self.up(x)
        return tap(self, "output", apply_linear(self.down, tap(self, "hidden", hidden), add_bias=add_bias))

    def _has_kernel(self, x: Tensor) -> bool:
        """Return True in compiled training on a GPU, without a gate, adapters and quantized weights."""
        if not (torch.compiler.is_compiling() and torch.is_grad_enabled() and has_kernels(x)) or plain_formulas():
            return False
        return self.kind in ("relu", "gelu", "gelu_tanh") and isinstance(self.up, nn.Linear)

    def _run_kernel(self, x: Tensor, add_bias: bool) -> Tensor:
        """[N, D] → [N, D]."""
        up, down = self.up, self.down
        if self.kind == "relu" and isinstance(down, nn.Linear):
            from chumoku.nn.relu_kernel import BULK_COPIES, MULTIPLE, relu_feedforward

            if BULK_COPIES and up.in_features % MULTIPLE == 0 and up.out_features % MULTIPLE == 0:
                bias = down.bias if add_bias else None
                return relu_feedforward(x, up.weight, up.bias, down.weight, bias)[0]  # type: ignore[no-any-return]
        from chumoku.nn.activation_kernel import linear_activation

        return apply_linear(down, linear_activation(x, up.weight, up.bias, self.kind), add_bias=add_bias)

    def extra_repr(self) -> str:
        return f"kind={self.kind}"
