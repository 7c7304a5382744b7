"""Weights that no longer depend on the file they came from.

Files are mapped when a model is opened: tensors are read from the disk when they are first used, and a file that is
truncated later ends the whole process (SIGBUS). A process that must outlive its files copies them once.
"""

from __future__ import annotations

from torch import Tensor

from chumoku.models.model import Model


def copy_into_memory(model: Model) -> None:
    """Give every parameter and buffer memory of its own; what two modules share, they still share."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    copies: dict[int, tuple[Tensor, Tensor]] = {}  # with the original, so that no other object gets its id
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            # A buffer may be a view, which would keep its base mapped: it is replaced, not given other data.
            if id(buffer) not in copies:
                copies[id(buffer)] = buffer, buffer.detach().clone()
            setattr(module, name, copies[id(buffer)][1])
