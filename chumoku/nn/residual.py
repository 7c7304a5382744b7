"""Residual sums of a pre-norm stack, each computed together with the norm that follows it.

    x ← x + dropout(f),   y = norm(x)      f: the output of a sublayer, y: the input of the next one

In compiled training on a GPU both are one kernel. The next norm may belong to the next block or to the stack, so blocks
pass on a sum that is not computed yet.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.nn.dropout import dropout
from chumoku.nn.norms import RMSNorm


class PendingSum(NamedTuple):
    """x + dropout(f), not computed yet; without f, x."""

    x: Tensor
    f: Tensor | None = None
    p: float = 0.0  # the probability that dropout sets a number to 0

    def normalize(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the sum and its norm."""
        if self.f is not None and isinstance(norm, RMSNorm) and not norm.unit_offset:
            return self._add_and_normalize(self.f, norm)
        x = self.x if self.f is None else self.x + dropout(self.f, self.p, training=True)
        return x, norm(x)

    def _add_and_normalize(self, f: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        from chumoku.nn.dropout_kernel import STEPS
        from chumoku.nn.residual_kernel import add_norm_rows

        seed = torch.randint(2**31, (1,), device=f.device)
        rows = (self.x.flatten(0, -2), f.flatten(0, -2))
        x, y, _ = add_norm_rows(*rows, norm.gamma, seed, round(self.p * STEPS), norm.epsilon)
        return x.view(f.shape), y.view(f.shape)
