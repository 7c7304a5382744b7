"""Signals, the lock of a run's folder, and the search for NaN and infinity."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from chumoku.errors import BusyError, StorageError, UsageError
from chumoku.nn.modules import unwrap_compiled
from chumoku.training.distributed import local_part


class Interrupt:
    """Records the first Ctrl-C, SIGTERM or SIGHUP in `signal`; a second one ends the process as usual."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            try:
                self._before[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not the main thread, which alone can handle signals
                return self
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.signal = number


@contextmanager
def lock_folder(folder: Path, *, option: str = "train.out") -> Iterator[None]:
    """Lock a run's folder, so that a second run is refused. The lock of a dead process is released by the system.

    option: what a user changes to get another folder, for the error message.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, but a run needs a folder. Choose another {option}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written to: {error.strerror}. Choose another {option}.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(handle, 32).decode("ascii", "replace").strip() or "another process"
            raise BusyError(
                f"{folder} is in use by a run (process {owner}). Wait for it, stop it, or choose another {option}."
            ) from error
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def find_non_finite(objective: nn.Module, batches: list[dict[str, Tensor]]) -> str:
    """The address of the first NaN or infinity: in the weights, the forward pass, or the gradients."""
    objective = unwrap_compiled(objective)
    for name, parameter in objective.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"{_address(name)} (its weights)"
    bad_modules: list[str] = []

    def make_hook(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not bad_modules and isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
                bad_modules.append(name)

        return hook

    handles = [module.register_forward_hook(make_hook(name)) for name, module in objective.named_modules() if name]
    try:
        with torch.no_grad():
            losses = [objective(batch) for batch in batches]
    finally:
        for handle in handles:
            handle.remove()
    inside = [name for name in bad_modules if _address(name)]
    if inside:
        return f"{_address(inside[0])} (its output)"
    if not all(bool(torch.isfinite(loss)) for loss in losses):
        return "the loss"
    for name, parameter in reversed(list(objective.named_parameters())):
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return f"{_address(name)} (its gradient)"
    return "the norm of the gradient"


def first_non_finite_tensor(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with NaN or infinity; of a sharded tensor only this process's part is checked.

    The sum of a tensor with NaN or infinity is not finite, so all sums are computed in one transfer. A sum of finite
    values may overflow, so `isfinite` must confirm it.
    """
    local: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            divided = local_part(tensor.detach())
            local[name] = tensor.detach() if divided is None else divided
    sums = torch.stack([tensor.sum().float().cpu() for tensor in local.values()]) if local else torch.zeros(0)
    suspects = (name for name, finite in zip(local, torch.isfinite(sums).tolist(), strict=True) if not finite)
    return next((name for name in suspects if not bool(torch.isfinite(local[name]).all())), None)


def _address(name: str) -> str:
    """The address inside the model, without the wrappers around it; empty for a wrapper."""
    parts = name.split(".")
    return ".".join(parts[parts.index("model") + 1 :]) if "model" in parts else ""
