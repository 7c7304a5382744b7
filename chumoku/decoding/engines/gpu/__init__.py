"""Decoding on a GPU: each step is one CUDA graph, mostly of our own kernels.

weights      matrices concatenated for the kernels
kernels      the kernels, in Triton; those of attention and of experts are in `attention` and `experts`
launch       a Python function for each kernel; those of attention are in `launch_attention`
sources      keys and values of an encoder's outputs
tables       tables of positions, and how scores are computed
blocks       the blocks of a model
whole_step   a step of one row in one kernel: step.cu and its parts, compiled by `cuda`
engine       GpuEngine
"""

from __future__ import annotations

import importlib.util

from torch import nn

from chumoku.decoding.engines.gpu.weights import unsupported


def available(model: nn.Module) -> bool:
    """Whether this model, on its device, can be decoded by `GpuEngine`."""
    first = next(model.parameters(), None)
    on_gpu = first is not None and first.device.type == "cuda"
    return on_gpu and importlib.util.find_spec("triton") is not None and unsupported(model) is None
