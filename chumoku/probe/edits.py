"""Edits: functions that replace the tensors at a model's addresses while it runs.

    make_edit      replace a tensor by another, or by a function of it, at some positions and heads
    copy_places    edits that copy single positions of another run, for texts of any length
    apply_edits    a context in which edits are in effect

Tensors that are passed on can be replaced: embeddings, positions, norms, heads, outputs, the residual stream,
pre-activations, hidden units, logits. Attention weights are computed only for recording, beside the fused kernel. If
they or the values are replaced, the heads are recomputed: heads = weights · values. Queries, keys, scores and the
inside of experts can be recorded but not replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.errors import AddressError, ShapeError, UsageError
from chumoku.models.model import Model
from chumoku.nn.attention import Attention, repeat_kv
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.moe import MixtureOfExperts
from chumoku.nn.tap import Tape, addresses, edit, select

Edit = Callable[[Tensor], Tensor]
RECOMPUTED = ("weights", "values")
BY_HEAD = ("heads", *RECOMPUTED)  # tensors with a matrix for each head


class Replacement(NamedTuple):
    """A position of the tensor at an address, and the position of another run that replaces it."""

    address: str
    place: int
    other_place: int
    head: int | None = None  # None: all heads


@contextlib.contextmanager
def apply_edits(model: Model, changes: Mapping[str, Edit]) -> Iterator[None]:
    """Inside, each tensor at a matching address passes through its function; unsupported addresses raise an error."""
    model = unwrap_compiled(model)
    recomputed: dict[str, Edit] = {}
    known = addresses(model)
    wanted = {address: change for one, change in changes.items() for address in select(known, (one,))}
    for address in wanted:
        _check_editable(model, address)
    for path in {_path(address) for address in wanted if tensor_name(address) in RECOMPUTED}:
        recomputed |= _recompute_heads(path, wanted)
    with edit(model, {**wanted, **recomputed}):
        yield


def _check_editable(model: Model, address: str) -> None:
    module, name = model.get_submodule(_path(address)), tensor_name(address)
    if isinstance(module, Attention) and name in ("queries", "keys", "scores", "masked_scores"):
        raise AddressError(
            f"{address} can be recorded but not replaced: the fused kernel has already used it. Replace "
            f"{_path(address)}.weights, .values, .heads or .output instead."
        )
    if isinstance(module, MixtureOfExperts) and name != "output":
        raise AddressError(
            f"{address} can be recorded but not replaced: the experts have already used it. Replace "
            f"{_path(address)}.output instead."
        )


def _recompute_heads(path: str, wanted: Mapping[str, Edit]) -> dict[str, Edit]:
    """heads = weights · values, each edited or as computed by the model."""
    inputs: dict[str, Tensor] = {}

    def store(name: str) -> Edit:
        change = wanted.get(f"{path}.{name}", unchanged)

        def store_edited(tensor: Tensor) -> Tensor:
            inputs[name] = change(tensor)
            return tensor

        return store_edited

    def heads(tensor: Tensor) -> Tensor:
        product = inputs["weights"].to(tensor.dtype) @ repeat_kv(inputs["values"], tensor)
        return wanted.get(f"{path}.heads", unchanged)(product)

    return {f"{path}.weights": store("weights"), f"{path}.values": store("values"), f"{path}.heads": heads}


def make_edit(
    other: Tensor | Edit, address: str, *, positions: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Edit:
    """A function that replaces a tensor by `other`, only at the given positions and heads."""

    def replace(tensor: Tensor) -> Tensor:
        new = other(tensor) if callable(other) else other.to(tensor.device, tensor.dtype)
        if new.shape != tensor.shape and new.shape != (1, *tensor.shape[1:]):
            raise _wrong_shape(address, tensor, new)
        mask = torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)
        by_head = tensor_name(address) in BY_HEAD
        if heads is not None and not by_head:
            raise _no_heads(address)
        for indices, axis in ((positions, 2 if by_head else 1), (heads, 1)):
            if indices is not None:
                mask &= _index_mask(indices, tensor, axis, address, by_head=by_head)
        return torch.where(mask, new, tensor)

    return replace


def copy_places(replacements: Sequence[Replacement], tape: Tape) -> dict[str, Edit]:
    """Edits that replace single positions by those of another run, whose tape has all these addresses."""
    by_address: dict[str, list[Replacement]] = {}
    for one in replacements:
        by_address.setdefault(one.address, []).append(one)
    return {address: _copy_edit(some, tape[address]) for address, some in by_address.items()}


def _copy_edit(replacements: Sequence[Replacement], other: Tensor) -> Edit:
    def copy(tensor: Tensor) -> Tensor:
        new = tensor.clone()
        for address, place, other_place, head in replacements:
            by_head = tensor_name(address) in BY_HEAD
            axis, heads = (2, None if head is None else [head]) if by_head else (1, None)
            if head is not None and not by_head:
                raise _no_heads(address)
            here = _index_mask([place], tensor, axis, address, by_head=by_head)
            _index_mask([other_place], other, axis, address, by_head=by_head)
            if heads is not None:
                here = here & _index_mask(heads, tensor, 1, address, by_head=True)
            row = other.select(axis, other_place).unsqueeze(axis).to(new.device, new.dtype)
            if row.shape[axis + 1 :] != new.shape[axis + 1 :]:
                raise _wrong_shape(address, tensor, other)
            new = torch.where(here, row, new)
        return new

    return copy


def _index_mask(indices: Sequence[int], tensor: Tensor, axis: int, address: str, *, by_head: bool) -> Tensor:
    """A mask that is True at these indices of an axis."""
    kind = "head" if axis == 1 and by_head else "position"
    size = tensor.shape[axis] if tensor.ndim > 2 else 0
    wrong = [number for number in indices if not 0 <= number < size]
    if wrong:
        raise UsageError(f"There is no {kind} {wrong[0]} at {address}: it has {size}, numbered from 0.")
    mask = torch.zeros(size, dtype=torch.bool, device=tensor.device)
    mask[list(indices)] = True
    return mask.view(-1, *(1 for _ in tensor.shape[axis + 1 :]))


def _wrong_shape(address: str, tensor: Tensor, new: Tensor) -> ShapeError:
    return ShapeError(
        f"The tensor at {address} has shape {list(tensor.shape)}, but the replacement has {list(new.shape)}. "
        "Record the replacement from a text with the same number of tokens."
    )


def _no_heads(address: str) -> UsageError:
    return UsageError(f"{address} has no heads to choose from. Attention heads are at …attention.heads.")


def unchanged(tensor: Tensor) -> Tensor:
    return tensor


def tensor_name(address: str) -> str:
    return address.rpartition(".")[2]


def _path(address: str) -> str:
    return address.rpartition(".")[0]
