"""Make forked processes compute with one thread.

PyTorch's threads do not exist in a forked process, which would wait for them forever. Where PyTorch uses OpenBLAS (on
ARM), matrix products hang in a forked process even with one thread; the native engine works there.
"""

from __future__ import annotations

import os

import torch


def _use_one_thread() -> None:
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_thread)
