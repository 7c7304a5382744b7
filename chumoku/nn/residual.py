"""Residual sums of a pre-norm stack, each computed together with the norm that follows it.

    x ← x + dropout(f + b),   y = norm(x)      f + b: the output of a sublayer, y: the input of the next one

In compiled training on a GPU both are one kernel. The next norm may belong to the next block or to the stack, so blocks
pass on a sum that is not computed yet, and the bias of the sublayer's last product with it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.nn.dropout import dropout
from chumoku.nn.norms import LayerNorm, RMSNorm


class PendingSum(NamedTuple):
    """x + dropout(f + b), not computed yet; without f, x."""

    x: Tensor
    f: Tensor | None = None
    bias: Tensor | None = None
    p: float = 0.0  # the probability that dropout sets a number to 0

    def normalize(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the sum and its norm."""
        if self.f is None:
            return self.x, norm(self.x)
        if type(norm) is LayerNorm or (type(norm) is RMSNorm and not norm.unit_offset):
            return self._run_kernel(self.f, norm)
        x = self.x + dropout(self.f if self.bias is None else self.f + self.bias, self.p, training=True)
        return x, norm(x)

    def _run_kernel(self, f: Tensor, norm: LayerNorm | RMSNorm) -> tuple[Tensor, Tensor]:
        from chumoku.nn.dropout_kernel import STEPS
        from chumoku.nn.norm_kernel import add_norm_rows

        seed = torch.randint(2**31, (1,), device=f.device)
        beta, centered = (norm.beta, True) if isinstance(norm, LayerNorm) else (None, False)
        rows = (self.x.flatten(0, -2), f.flatten(0, -2), self.bias)
        x, y, *_ = add_norm_rows(*rows, norm.gamma, beta, seed, round(self.p * STEPS), norm.epsilon, centered)
        return x.view(f.shape), y.view(f.shape)
