"""Copy a model's weights from memory-mapped files into memory.

A model's files are memory-mapped, and tensors are read from disk on first use. If such a file is truncated later, the
process is killed (SIGBUS). A server copies the weights once to be safe from that.
"""

from __future__ import annotations

from torch import Tensor

from chumoku.models.model import Model


def copy_into_memory(model: Model) -> None:
    """Copy every parameter and buffer into new memory, in place; shared tensors stay shared."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    copies: dict[int, tuple[Tensor, Tensor]] = {}  # keeps the original alive, so that its id is not reused
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            # A buffer may be a view, which would keep its base mapped: replace it instead of setting its data.
            if id(buffer) not in copies:
                copies[id(buffer)] = buffer, buffer.detach().clone()
            setattr(module, name, copies[id(buffer)][1])
