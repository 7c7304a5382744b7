"""Several models of one shape computed as one, under torch.vmap.

    loss_i = f(w_i, x_i, m_i)      for weights w [N, …], batches x [N, …] and dropout masks m [N, …]

torch.vmap cannot look at values, has no rule for our GPU kernels, and draws the random numbers of all models from one
generator. So inside `ensemble`, indices are not checked, PyTorch's own kernels are used, and dropout multiplies by the
masks that are given, one for each call in the order of the model's computation. A mask has 1 / (1 − p) where a number
stays and 0 where it is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

Mask = Callable[[Tensor, float], Tensor]  # (x, p) → the mask that x is multiplied by


class DropoutCall(NamedTuple):
    """One call of dropout in a forward pass."""

    shape: torch.Size
    dtype: torch.dtype
    p: float


_mask: Mask | None = None
_thread = 0  # the thread that is inside `ensemble`


def in_ensemble() -> bool:
    """Whether this code runs inside `ensemble`. Compiled code cannot ask for its thread, and is compiled inside it."""
    return _mask is not None and (torch.compiler.is_compiling() or _thread == threading.get_ident())


@contextmanager
def ensemble(mask: Mask) -> Iterator[None]:
    """Inside, a model may be called under torch.vmap; `mask` is called for each dropout."""
    global _mask, _thread
    before = _mask, _thread
    _mask, _thread = mask, 0 if torch.compiler.is_compiling() else threading.get_ident()
    try:
        yield
    finally:
        _mask, _thread = before


def apply_mask(x: Tensor, p: float) -> Tensor:
    """Dropout of x inside `ensemble`."""
    return x if _mask is None else x * _mask(x, p)
