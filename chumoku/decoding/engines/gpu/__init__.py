"""Decoding on a GPU: one captured graph a step, most of it in kernels of our own.

weights      matrices joined as the kernels read them
kernels      the kernels, in Triton; attention's are in `attention`
launch       each as a function of tensors
engine       GpuEngine
"""

from __future__ import annotations

import importlib.util

from torch import nn

from chumoku.decoding.engines.gpu.weights import unsupported


def available(model: nn.Module) -> bool:
    """Whether this model, where it is, can be decoded by `GpuEngine`."""
    first = next(model.parameters(), None)
    on_gpu = first is not None and first.device.type == "cuda"
    return on_gpu and importlib.util.find_spec("triton") is not None and unsupported(model) is None
