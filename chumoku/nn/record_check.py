"""Check that recording does not change results: in debug mode every recorded pass is first run without recording.

Both passes use the same inputs, random numbers and buffers, and their outputs must be equal in every bit. Debug mode is
on with CHUMOKU_DEBUG=1 in the environment or `debug=True` as an argument.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from chumoku.errors import ChumokuError

_suspended = threading.local()


def debug_enabled(debug: bool | None = None) -> bool:
    """Return `debug`; if it is None, whether CHUMOKU_DEBUG is set."""
    return os.environ.get("CHUMOKU_DEBUG", "0") not in ("", "0") if debug is None else debug


def recording_suspended() -> bool:
    """Return True inside `without_recording` in this thread."""
    return getattr(_suspended, "on", False)


@contextlib.contextmanager
def without_recording() -> Iterator[None]:
    """Suspend all recording in this thread. Edits stay active."""
    before = recording_suspended()
    _suspended.on = True
    try:
        yield
    finally:
        _suspended.on = before


@contextlib.contextmanager
def compare_with_unrecorded(model: nn.Module) -> Iterator[None]:
    """Inside, compare every pass of the model, and of each of its stacks, with a pass that is not recorded."""
    unrecorded: dict[nn.Module, Any] = {}
    names = {model: "the output", **{module: name for name, module in model.named_children()}}

    def run_unrecorded(module: nn.Module, args: Any, kwargs: Any) -> None:
        if recording_suspended():
            return
        state = _SavedState(module)
        try:
            with without_recording():
                unrecorded[module] = module.forward(*args, **kwargs)
        finally:
            state.restore()

    def compare(module: nn.Module, args: Any, kwargs: Any, recorded: Any) -> None:
        if not recording_suspended():
            check_same(unrecorded.pop(module), recorded, "while recording", names[module])

    for function in (run_unrecorded, compare):
        function.changes_nothing = True  # type: ignore[union-attr]
    hooks = []
    for module in names:
        hooks.append(module.register_forward_pre_hook(run_unrecorded, with_kwargs=True))
        hooks.append(module.register_forward_hook(compare, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _SavedState:
    """The state that a forward pass may change: random generators, and buffers such as a batch norm's averages."""

    def __init__(self, module: nn.Module) -> None:
        self._random = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if _on_gpu(module) else []
        self._buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]

    def restore(self) -> None:
        torch.set_rng_state(self._random)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)
        with torch.no_grad():
            for buffer, saved in self._buffers:
                buffer.copy_(saved)


def _on_gpu(module: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in module.parameters())


def check_same(expected: Any, found: Any, how: str, what: str = "the output") -> None:
    """Raise unless two outputs are equal in every bit; `how` says in the message how `found` was computed."""
    for (name, one), (_, other) in zip(_tensors(expected, what), _tensors(found, what), strict=True):
        if not same_bits(one, other):
            error = float((one.double() - other.double()).abs().max()) if one.shape == other.shape else float("inf")
            raise ChumokuError(
                f"Observing the model changed its result: {how}, {name} differs by up to {error:.3g}. This is a bug; "
                "please report it, with the model and the text."
            )


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Compare two tensors bitwise, so NaN equals NaN and 0.0 differs from −0.0."""
    same_type = one.shape == other.shape and one.dtype == other.dtype
    return same_type and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _tensors(output: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an output by name, without the cache, into which both passes wrote."""
    if isinstance(output, Tensor):
        yield name, output.detach()
    elif isinstance(output, tuple):
        for key in ("logits", "hidden", "vector", "states"):
            yield from _tensors(getattr(output, key, None), key)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            if field.name != "cache":
                yield from _tensors(getattr(output, field.name), field.name)
