"""Our adapters and those of another library's names: which matrix is which, and in what order its rows lie.

    one to one     their A is ours; their B and m are ours, rows in their order of rotary pairs
    joined         theirs is [W_q; W_k; W_v]: B and m of ours lie one below the other. Where ours share one A, it is
                   theirs; where not,  A = [A_q; A_k; A_v]  and  B = diag(B_q, B_k, B_v)

What joins can be taken apart again by `Part`s, which say where in A and in B's columns each of ours lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from chumoku.errors import DamagedError
from chumoku.lora.adapters import Matrix, adaptable_matrices, base_layer
from chumoku.models.model import Model
from chumoku.nn.lora import LowRank, matrix_of

Matrices = Mapping[str, Matrix]  # `matrices` of the model


class RowLike(Protocol):
    """One tensor of another library and what it is here: a row of a family's table."""

    @property
    def ours(self) -> tuple[str, ...]: ...  # our parameters' names; several where theirs joins them

    @property
    def theirs(self) -> str: ...

    @property
    def transposed(self) -> bool: ...  # stored [in, out]

    @property
    def heads(self) -> int: ...  # above 0: the output rows of so many heads are in "half" order


class MatrixMap(NamedTuple):
    """A matrix of theirs, and the matrices of ours that it is."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool
    heads: int  # whose rows lie in another order than ours; 0: none


class Part(NamedTuple):
    """One of ours inside theirs: the place among `ours`, and its rows of A, which are its columns of B."""

    number: int
    first: int
    rank: int
    alpha: float


class AdapterTensors(NamedTuple):
    """The tensors of one adapter: A [r, in], B [out, r], m [out]."""

    a: Tensor
    b: Tensor
    magnitude: Tensor | None
    alpha: float
    parts: tuple[Part, ...] = ()


def map_matrices(model: Model, rows: Sequence[RowLike] | None) -> dict[str, MatrixMap]:
    """Every matrix that can have an adapter, by their name for it; by ours, where there are no rows."""
    known = adaptable_matrices(model)
    if rows is None:
        return {path: MatrixMap(path, (path,), False, 0) for path in known}
    found = {}
    for row in rows:
        ours = tuple(name.removesuffix(".weight") for name in row.ours)
        theirs = row.theirs.removesuffix(".weight")
        if theirs != row.theirs and ours and all(path in known for path in ours):
            heads = row.heads if model.config.pairing == "interleaved" else 0
            found[theirs] = MatrixMap(theirs, ours, row.transposed, heads)
    return found


def to_theirs(place: MatrixMap, known: Matrices, adapters: Mapping[str, LowRank]) -> AdapterTensors:
    """What stands beside their matrix, of what stands beside ours; some of a joined matrix may have no adapter."""
    there = [(number, adapters[path]) for number, path in enumerate(place.ours) if path in adapters]
    first = there[0][1]
    shared = all(torch.equal(low.a, first.a) and low.alpha == first.alpha for _, low in there)
    total = first.rank if shared else sum(low.rank for _, low in there)
    a = first.a if shared else torch.cat([low.a for _, low in there])
    heights = [known[path].out_features for path in place.ours]
    b, parts, column = first.b.new_zeros(sum(heights), total), [], 0
    for number, low in there:
        row = sum(heights[:number])
        # Theirs has one scale; ours have the same, but for adapters that were put together by hand.
        b[row : row + heights[number], column : column + low.rank] = low.b * (low.scale / first.scale)
        same = low.scale == first.scale
        alpha = low.alpha if same else _alpha(first.scale, low.rank, stabilised=low.stabilised)
        parts.append(Part(number, column, low.rank, alpha))
        column += 0 if shared else low.rank
    alpha = first.alpha if total == first.rank else _alpha(first.scale, total, stabilised=first.stabilised)
    magnitude = None
    if first.magnitude is not None:
        magnitude = _their_order(place, torch.cat([_magnitude(known[path], adapters.get(path)) for path in place.ours]))
    return AdapterTensors(a, _their_order(place, b), magnitude, alpha, tuple(parts) if len(place.ours) > 1 else ())


def to_ours(place: MatrixMap, known: Matrices, thin: AdapterTensors) -> dict[str, AdapterTensors]:
    """The adapters of our matrices, by their addresses."""
    heights = [known[path].out_features for path in place.ours]
    b = _our_order(place, thin.b)
    lengths = (
        [None] * len(heights) if thin.magnitude is None else torch.split(_our_order(place, thin.magnitude), heights)
    )
    parts = thin.parts or tuple(Part(number, 0, len(thin.a), thin.alpha) for number in range(len(heights)))
    found, left = {}, b.clone()
    for part in parts:
        first = sum(heights[: part.number])
        rows, columns = slice(first, first + heights[part.number]), slice(part.first, part.first + part.rank)
        left[rows, columns] = 0
        found[place.ours[part.number]] = AdapterTensors(
            thin.a[columns], b[rows, columns], lengths[part.number], part.alpha
        )
    if left.any():
        raise DamagedError(f"The parts that this adapter's file names leave some of {place.theirs} out.")
    return found


def _magnitude(module: Matrix, low: LowRank | None) -> Tensor:
    if low is not None and low.magnitude is not None:
        return low.magnitude.detach()
    weight = matrix_of(base_layer(module)).detach()
    norms: Tensor = torch.linalg.vector_norm(weight.to(torch.promote_types(weight.dtype, torch.float32)), dim=1)
    return norms


def _their_order(place: MatrixMap, rows: Tensor) -> Tensor:
    """Pairs (0, 1), (2, 3) … of each head's rows → first halves, then second."""
    return _reorder(place, rows, (-1, 2))


def _our_order(place: MatrixMap, rows: Tensor) -> Tensor:
    return _reorder(place, rows, (2, -1))


def _reorder(place: MatrixMap, rows: Tensor, split: tuple[int, int]) -> Tensor:
    if not place.heads:
        return rows
    return rows.reshape(place.heads, *split, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _alpha(scale: float, rank: int, *, stabilised: bool) -> float:
    return scale * (math.sqrt(rank) if stabilised else rank)
