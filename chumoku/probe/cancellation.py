"""Interruption of long computations.

check_interrupt()   called before every block of a forward pass. It may wait until other requests have had their turn,
                    and it raises if the result is no longer needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import nn

from chumoku.models.model import Model
from chumoku.models.stack import Stack
from chumoku.nn.modules import unwrap_compiled

CheckInterrupt = Callable[[], None]


def never_interrupt() -> None:
    """The default check: never waits, never raises."""


@contextlib.contextmanager
def interruptible(model: Model, check_interrupt: CheckInterrupt) -> Iterator[None]:
    """Inside, `check_interrupt` is called before every block of a forward pass; only one thread may use the model.

    Only on a CPU: on a GPU a pass is short, and may be under capture as a CUDA graph.
    """
    model = unwrap_compiled(model)
    active = check_interrupt is not never_interrupt and model.device.type == "cpu"
    with contextlib.ExitStack() as hooks:
        for stack in model.modules() if active else ():
            for block in stack.blocks if isinstance(stack, Stack) else ():
                hooks.callback(block.register_forward_pre_hook(_make_hook(check_interrupt)).remove)
        yield


def _make_hook(check_interrupt: CheckInterrupt) -> Callable[[nn.Module, object], None]:
    def hook(block: nn.Module, inputs: object) -> None:
        check_interrupt()

    hook.changes_nothing = True  # type: ignore[attr-defined] # so that the model still counts as unmodified
    return hook
