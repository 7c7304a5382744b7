"""Cross-entropy of rows of logits on a GPU of Hopper or later, which reads each row from memory once (loss_rows.cu)."""

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
LEAST = 30_000  # logits of a row; with fewer, too few bytes are on their way, and the kernel in Triton is faster
EXTRA_BYTES = 1024  # of shared memory beside a row: the kernel's own, and as many that are reserved for each block


class Rows(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "labels", "losses")),
        *((name, ctypes.c_int64) for name in ("count", "ignored")),
        ("smoothing", ctypes.c_float),
    )


class RowKernel(NamedTuple):
    kernel: Kernel
    blocks: int


def replace_rows(logits: Tensor, labels: Tensor, losses: Tensor, vocabulary: int, smoothing: float) -> bool:
    """Compute the losses, and replace the logits [N, P] by their gradient; False if there is no kernel for them."""
    if logits.device.type != "cuda" or logits.dtype not in (torch.bfloat16, torch.float16) or vocabulary < LEAST:
        return False
    found = open_kernel(logits.device, vocabulary, logits.shape[1], logits.dtype, smoothing > 0)
    if found is None:
        return False
    labels = labels.contiguous()
    pointers = (tensor.data_ptr() for tensor in (logits, labels, losses))
    found.kernel.launch(found.blocks, 32 * (WARPS + 1), Rows(*pointers, len(labels), IGNORE, smoothing))
    return True


@cache
def open_kernel(
    device: torch.device, vocabulary: int, padded: int, dtype: torch.dtype, smoothed: bool
) -> RowKernel | None:
    found = torch.cuda.get_device_properties(device)
    shared, most = 2 * padded + EXTRA_BYTES, found.shared_memory_per_block_optin  # type: ignore[attr-defined]
    if found.major < 9 or shared > most or not can_compile():
        return None
    together = 2 if 2 * (shared + EXTRA_BYTES) <= found.shared_memory_per_multiprocessor else 1
    constants = {
        **{"VOCABULARY": vocabulary, "PADDED": padded, "SMOOTHED": int(smoothed)},
        **{"FLOAT16": int(dtype == torch.float16), "WARPS": WARPS, "SHARED_BYTES": shared},
        **{"BLOCKS": together * found.multi_processor_count, "BLOCKS_TOGETHER": together},
    }
    sources = [INSTRUCTIONS, Path(__file__).with_name("loss_rows.cu")]
    return RowKernel(Kernel(sources, "replace_rows", constants, shared_bytes=shared), constants["BLOCKS"])
