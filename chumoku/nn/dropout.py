"""Dropout: each number becomes 0 with probability p, and the others are divided by 1 − p.

Compiled code on a GPU draws 128 random bits for every number, which takes longer than reading it. There, the kernel in
`dropout_kernel.py` uses 16 bits for each instead, so p is rounded to a multiple of 2⁻¹⁶. In an ensemble, each model has
its own mask.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.nn.ensemble import apply_mask, in_ensemble
from chumoku.nn.gpu_kernels import has_kernels


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Return x with dropout; in evaluation, x itself."""
    if training and p > 0 and in_ensemble():
        return apply_mask(x, p)
    if not (training and p > 0 and torch.compiler.is_compiling() and has_kernels(x)):
        return F.dropout(x, p, training)
    from chumoku.nn.dropout_kernel import STEPS, draw_mask

    dropped = round(p * STEPS)
    mask: Tensor = draw_mask(torch.randint(2**31, (1,), device=x.device), x.numel(), dropped)
    return x * mask.view(x.shape) * (STEPS / max(1, STEPS - dropped))
