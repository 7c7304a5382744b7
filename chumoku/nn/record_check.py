"""Looking never changes the result: in debug mode every pass that is to be seen is first made unseen.

    unseen   the output of a model, or of one of its stacks, while nobody records
    seen     the same call with the same random numbers and buffers, while somebody does

Every bit of the two must agree. Debug mode is CHUMOKU_DEBUG=1 in the environment, or `debug=True` where that is asked.
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
    return os.environ.get("CHUMOKU_DEBUG", "0") not in ("", "0") if debug is None else debug


def recording_suspended() -> bool:
    """Whether this thread just makes a pass unseen."""
    return getattr(_suspended, "on", False)


@contextlib.contextmanager
def without_recording() -> Iterator[None]:
    """Inside, nothing that this thread computes is recorded."""
    before = recording_suspended()
    _suspended.on = True
    try:
        yield
    finally:
        _suspended.on = before


@contextlib.contextmanager
def compare_with_unrecorded(model: nn.Module) -> Iterator[None]:
    """Inside, every pass of the model, and of each stack that is called by itself, is compared with an unseen one."""
    alone: dict[nn.Module, Any] = {}
    names = {model: "the answer", **{module: name for name, module in model.named_children()}}

    def begins(module: nn.Module, args: Any, kwargs: Any) -> None:
        if recording_suspended():
            return
        chance = _Chance(module)
        try:
            with without_recording():
                alone[module] = module.forward(*args, **kwargs)
        finally:
            chance.restore()

    def ends(module: nn.Module, args: Any, kwargs: Any, seen: Any) -> None:
        if not recording_suspended():
            check_same(alone.pop(module), seen, "recorded", names[module])

    for function in (begins, ends):
        function.only_compares = True  # type: ignore[union-attr]
    hooks = []
    for module in names:
        hooks.append(module.register_forward_pre_hook(begins, with_kwargs=True))
        hooks.append(module.register_forward_hook(ends, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Chance:
    """What a pass depends on besides its input, and may change: random numbers, and buffers such as a norm's means."""

    def __init__(self, module: nn.Module) -> None:
        self._random = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if _on_gpu(module) else []
        self._buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]

    def restore(self) -> None:
        torch.set_rng_state(self._random)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)
        with torch.no_grad():
            for buffer, was in self._buffers:
                buffer.copy_(was)


def _on_gpu(module: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in module.parameters())


def check_same(unseen: Any, seen: Any, how: str, what: str = "the answer") -> None:
    """Every bit of both, or an error that names what moved."""
    for (name, one), (_, other) in zip(_tensors(unseen, what), _tensors(seen, what), strict=True):
        if not same_bits(one, other):
            far = float((one.double() - other.double()).abs().max()) if one.shape == other.shape else float("inf")
            raise ChumokuError(
                f"Looking changed the result: {name} {how} and {name} alone differ by up to {far:.3g}. Looking must "
                "not do that; please report it, with the model and the text."
            )


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same in every bit, so that no number equals itself less than another."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _tensors(output: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an output by name. A cache is none of them: both passes wrote into the same."""
    if isinstance(output, Tensor):
        yield name, output.detach()
    elif isinstance(output, tuple):
        for key in ("logits", "hidden", "vector", "states"):
            yield from _tensors(getattr(output, key, None), key)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            if field.name != "cache":
                yield from _tensors(getattr(output, field.name), field.name)
