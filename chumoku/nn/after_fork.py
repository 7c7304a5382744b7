"""A forked process computes with one thread.

PyTorch's threads do not survive a fork, and the child would wait for them forever. Where PyTorch multiplies matrices by
OpenBLAS (on ARM), even one thread waits there; the native engine does not, so that text can be generated.
"""

from __future__ import annotations

import os

import torch


def _one_thread() -> None:
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_one_thread)
