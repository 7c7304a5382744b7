"""Soft-capping: c · tanh(x / c) keeps numbers between −c and c, and small numbers nearly as they are (Gemma 2)."""

from __future__ import annotations

from torch import Tensor


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """Return c · tanh(x / c) for c = `cap`; None returns x."""
    return x if cap is None else cap * (x / cap).tanh()
