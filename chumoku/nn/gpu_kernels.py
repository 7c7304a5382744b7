"""Which tensors our Triton kernels for training can compute with."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from chumoku.nn.ensemble import in_ensemble

TRITON = importlib.util.find_spec("triton") is not None  # not on Windows


def has_kernels(x: Tensor) -> bool:
    """Whether this is a tensor of 16 bits on a GPU, of one model, and Triton is installed."""
    return TRITON and x.device.type == "cuda" and x.dtype in (torch.bfloat16, torch.float16) and not in_ensemble()
