"""Cross-entropy of rows of logits in CUDA, on Hopper or later (loss_kernel_cuda.cu). Each row is read from memory once.

`loss_kernel.py` is the same in Triton, for other GPUs and fewer logits.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.data.batches import IGNORE
from chumoku.nn.cuda import INSTRUCTIONS, Kernel, can_compile

WARPS = 16  # that compute; one more copies
MIN_LOGITS = 30_000  # of a row; with fewer, too few bytes are in flight, and the kernel in Triton is faster
OWN_BYTES = 1024  # of shared memory beside the row: barriers and sums
RESERVED_BYTES = 1024  # that CUDA reserves for each block


class Arguments(ctypes.Structure):
    """`Arguments` of loss_kernel_cuda.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "labels", "losses")),
        *((name, ctypes.c_int64) for name in ("count", "ignored")),
        ("smoothing", ctypes.c_float),
    )


class RowKernel(NamedTuple):
    kernel: Kernel
    blocks: int


def replace_logits(logits: Tensor, labels: Tensor, losses: Tensor, vocabulary: int, smoothing: float) -> bool:
    """Compute the losses, and replace the logits [N, P] by their gradient; False if there is no kernel for them."""
    if logits.device.type != "cuda" or logits.dtype not in (torch.bfloat16, torch.float16) or vocabulary < MIN_LOGITS:
        return False
    with torch.cuda.device(logits.device):
        found = open_kernel(logits.device, vocabulary, logits.shape[1], logits.dtype, smoothing > 0)
        if found is None:
            return False
        labels = labels.long().contiguous()
        pointers = (tensor.data_ptr() for tensor in (logits, labels, losses))
        arguments = Arguments(*pointers, len(labels), IGNORE, smoothing)
        found.kernel.launch(found.blocks, 32 * (WARPS + 1), arguments, together=False)
    return True


@cache
def open_kernel(
    device: torch.device, vocabulary: int, padded: int, dtype: torch.dtype, smoothed: bool
) -> RowKernel | None:
    if not can_compile():
        return None
    gpu, shared = torch.cuda.get_device_properties(device), 2 * padded + OWN_BYTES
    limit = getattr(gpu, "shared_memory_per_block_optin", 0)  # PyTorch 2.6 does not know this size
    if gpu.major < 9 or shared > limit:
        return None
    blocks_per_sm = 2 if 2 * (shared + RESERVED_BYTES) <= gpu.shared_memory_per_multiprocessor else 1
    blocks = blocks_per_sm * gpu.multi_processor_count
    constants = {
        **{"VOCABULARY": vocabulary, "PADDED": padded, "SMOOTHED": int(smoothed)},
        **{"FLOAT16": int(dtype == torch.float16), "WARPS": WARPS, "SHARED_BYTES": shared},
        **{"BLOCKS": blocks, "BLOCKS_PER_SM": blocks_per_sm},
    }
    sources = [INSTRUCTIONS, Path(__file__).with_suffix(".cu")]
    return RowKernel(Kernel(sources, "replace_logits", constants, shared_bytes=shared), blocks)
