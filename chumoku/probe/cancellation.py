"""Pausing: whoever looks asks again and again whether anybody still waits, and lets others have a turn.

going()    before every block of a pass; it returns when it is one's turn again, or raises when nobody waits
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import nn

from chumoku.models.model import Model
from chumoku.models.stack import Stack

Going = Callable[[], None]


def on() -> None:
    """Nobody is asked."""


@contextlib.contextmanager
def pausing(model: Model, going: Going) -> Iterator[None]:
    """Inside, `going` is asked before every block of a pass, in one thread at a time.

    On a processor alone: elsewhere a pass is short, and may be one that is being captured.
    """
    model = getattr(model, "_orig_mod", model)
    asks = going is not on and model.device.type == "cpu"
    with contextlib.ExitStack() as hooks:
        for stack in model.modules() if asks else ():
            for block in stack.blocks if isinstance(stack, Stack) else ():
                hooks.callback(block.register_forward_pre_hook(_asking(going)).remove)
        yield


def _asking(going: Going) -> Callable[[nn.Module, object], None]:
    return lambda block, inputs: going()
