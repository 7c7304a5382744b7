"""Residual sums of a pre-norm stack, each computed together with the norm that follows it.

    x ← x + dropout(f + b),   y = norm(x)      f + b: the output of a sublayer, y: the input of the next one

In compiled training on a GPU both are one kernel. The next norm may belong to the next block or to the stack, so blocks
pass on a sum that is not computed yet, and the bias of the sublayer's last product with it.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from chumoku.nn.norms import LayerNorm, RMSNorm


class PendingSum(NamedTuple):
    """x + dropout(f + b), not computed yet; without f, x."""

    x: Tensor
    f: Tensor | None = None
    bias: Tensor | None = None
    p: float = 0.0  # the probability that dropout sets a number to 0

    def normalize(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the sum and its norm, for which there is a kernel."""
        if self.f is None:
            return self.x, norm(self.x)
        from chumoku.nn.dropout_kernel import STEPS
        from chumoku.nn.residual_kernel import add_norm_rows

        norm = cast("LayerNorm | RMSNorm", norm)
        f, seed = self.f, torch.randint(2**31, (1,), device=self.f.device)
        beta, centered = (norm.beta, True) if isinstance(norm, LayerNorm) else (None, False)
        rows = (self.x.flatten(0, -2), f.flatten(0, -2), self.bias)
        x, y, *_ = add_norm_rows(*rows, norm.gamma, beta, seed, round(self.p * STEPS), norm.epsilon, centered)
        return x.view(f.shape), y.view(f.shape)


def can_follow_sums(norm: nn.Module | None) -> bool:
    """Whether there is a kernel for a sum and this norm."""
    return isinstance(norm, LayerNorm) or (isinstance(norm, RMSNorm) and not norm.unit_offset)
