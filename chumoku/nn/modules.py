"""Functions for any module: list its parts, unwrap it, copy it, replace a part, put it into eval mode for a while."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def unwrap_compiled(module: M) -> M:
    """The module itself if torch.compile has wrapped it, else `module`."""
    inner: M = getattr(module, "_orig_mod", module)
    return inner


def apply_linear(layer: nn.Module, x: Tensor, *, add_bias: bool) -> Tensor:
    """The output of a linear layer; add_bias=False leaves out the bias of an nn.Linear."""
    if add_bias:
        return layer(x)  # type: ignore[no-any-return]
    return F.linear(x, layer.weight)  # type: ignore[arg-type]


def named_parts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The same as model.named_modules(remove_duplicate=False), several times faster."""
    found, waiting = [], [("", model)]
    while waiting:
        path, part = waiting.pop()
        found.append((path, part))
        inner = [
            (f"{path}.{name}" if path else name, child) for name, child in part._modules.items() if child is not None
        ]
        waiting += reversed(inner)
    return found


def copy_containers(model: M) -> M:
    """A copy whose parts can be replaced; parameters, buffers and modules without submodules are shared."""
    shared = chain(model.parameters(), model.buffers(), (part for part in model.modules() if not [*part.children()]))
    return copy.deepcopy(model, {id(one): one for one in shared})


def replace_module(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


@contextlib.contextmanager
def eval_mode(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Put these modules into eval mode, and restore the mode of each one afterwards."""
    training = [part for part in parts if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
