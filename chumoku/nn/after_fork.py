"""A forked process computes with one thread.

PyTorch's threads do not survive a fork, and the child would wait for them forever. On ARM, oneDNN has its own threads
with the same fault, so the child does without oneDNN; elsewhere it is as safe as PyTorch's other kernels.
"""

from __future__ import annotations

import os
import platform

import torch


def _compute_alone() -> None:
    torch.set_num_threads(1)
    if platform.machine() in ("arm64", "aarch64"):
        torch._C._set_mkldnn_enabled(False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_alone)
