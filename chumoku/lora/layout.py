"""Convert adapters between our matrices and another library's, which may be joined or in another row order.

    one to one     A is the same; rows of B and m are reordered to their rotary pairing
    per head       theirs has the rows of query, key and value of head 0, of head 1 … (GPT-NeoX)
    joined         theirs is [W_q; W_k; W_v]: our B and m are concatenated. If ours have the same A, it is theirs;
                   otherwise  A = [A_q; A_k; A_v]  and  B = diag(B_q, B_k, B_v)

A `Part` records which rows of A and columns of B belong to each of our matrices, so that they can be split again.
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
from chumoku.nn.lora import LowRank, dense_weight

Matrices = Mapping[str, Matrix]  # result of `adaptable_matrices`


class RowLike(Protocol):
    """A row of a family's table: a tensor of another library and our names for it."""

    @property
    def ours(self) -> tuple[str, ...]: ...  # our parameters' names; several if theirs is joined

    @property
    def theirs(self) -> str: ...

    @property
    def transposed(self) -> bool: ...  # stored [in, out]

    @property
    def heads(self) -> int: ...  # above 0: the first rows are of this many heads, in "half" order

    @property
    def per_head(self) -> int: ...  # above 0: all rows of one of this many heads after the other


class MatrixMap(NamedTuple):
    """A matrix of theirs, and our matrices that it corresponds to."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool
    heads: int = 0  # above 0: the first rows are of this many heads, which have another order than ours
    head_width: int = 0
    rotated: int = 0  # rows of each head that have another order
    per_head: int = 0  # above 0: the rows of all parts of one head after the other, for this many heads


class Part(NamedTuple):
    """One of our matrices inside theirs: its index in `ours`, and its rows of A, which are its columns of B."""

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
    """All matrices that can have an adapter, by the other library's name; by ours if `rows` is None."""
    known = adaptable_matrices(model)
    if rows is None:
        return {path: MatrixMap(path, (path,), False) for path in known}
    config = model.config
    found = {}
    for row in rows:
        ours = tuple(name.removesuffix(".weight") for name in row.ours)
        theirs = row.theirs.removesuffix(".weight")
        if theirs != row.theirs and ours and all(path in known for path in ours):
            heads = row.heads if config.pairing == "interleaved" else 0
            widths = (config.key_width, config.rotated_width)
            found[theirs] = MatrixMap(theirs, ours, row.transposed, heads, *widths, row.per_head)
    return found


def to_theirs(mapping: MatrixMap, known: Matrices, adapters: Mapping[str, LowRank]) -> AdapterTensors:
    """The adapter of their matrix from those of ours; some parts of a joined matrix may have no adapter."""
    present = [(number, adapters[path]) for number, path in enumerate(mapping.ours) if path in adapters]
    first = present[0][1]
    shared = all(torch.equal(low.a, first.a) and low.alpha == first.alpha for _, low in present)
    total = first.rank if shared else sum(low.rank for _, low in present)
    a = first.a if shared else torch.cat([low.a for _, low in present])
    heights = [known[path].out_features for path in mapping.ours]
    b, parts, column = first.b.new_zeros(sum(heights), total), [], 0
    for number, low in present:
        row = sum(heights[:number])
        # Theirs has one scale. Ours differ only if adapters were combined by hand.
        b[row : row + heights[number], column : column + low.rank] = low.b * (low.scale / first.scale)
        same = low.scale == first.scale
        alpha = low.alpha if same else _alpha(first.scale, low.rank, stabilized=low.stabilized)
        parts.append(Part(number, column, low.rank, alpha))
        column += 0 if shared else low.rank
    alpha = first.alpha if total == first.rank else _alpha(first.scale, total, stabilized=first.stabilized)
    magnitude = None
    if first.magnitude is not None:
        rows = torch.cat([_magnitude(known[path], adapters.get(path)) for path in mapping.ours])
        magnitude = _their_order(mapping, rows)
    return AdapterTensors(a, _their_order(mapping, b), magnitude, alpha, tuple(parts) if len(mapping.ours) > 1 else ())


def to_ours(mapping: MatrixMap, known: Matrices, tensors: AdapterTensors) -> dict[str, AdapterTensors]:
    """The adapters of our matrices by address, from one of theirs."""
    heights = [known[path].out_features for path in mapping.ours]
    b = _our_order(mapping, tensors.b)
    magnitudes: Sequence[Tensor | None] = [None] * len(heights)
    if tensors.magnitude is not None:
        magnitudes = torch.split(_our_order(mapping, tensors.magnitude), heights)
    parts = tensors.parts or tuple(Part(number, 0, len(tensors.a), tensors.alpha) for number in range(len(heights)))
    found, uncovered = {}, b.clone()
    for part in parts:
        first = sum(heights[: part.number])
        rows, columns = slice(first, first + heights[part.number]), slice(part.first, part.first + part.rank)
        uncovered[rows, columns] = 0
        a, magnitude = tensors.a[columns], magnitudes[part.number]
        found[mapping.ours[part.number]] = AdapterTensors(a, b[rows, columns], magnitude, part.alpha)
    if uncovered.any():
        raise DamagedError(f"The parts listed in this adapter's file do not cover all of {mapping.theirs}.")
    return found


def _magnitude(module: Matrix, low: LowRank | None) -> Tensor:
    if low is not None and low.magnitude is not None:
        return low.magnitude.detach()
    weight = dense_weight(base_layer(module)).detach()
    norms: Tensor = torch.linalg.vector_norm(weight.to(torch.promote_types(weight.dtype, torch.float32)), dim=1)
    return norms


def _their_order(mapping: MatrixMap, rows: Tensor) -> Tensor:
    """Reorder each head's rows from interleaved pairs (0, 1), (2, 3) … to halves, then by heads."""
    rows = _swap_pairing(mapping, rows, (-1, 2))
    return _swap(rows, len(mapping.ours), mapping.per_head) if mapping.per_head else rows


def _our_order(mapping: MatrixMap, rows: Tensor) -> Tensor:
    rows = _swap(rows, mapping.per_head, len(mapping.ours)) if mapping.per_head else rows
    return _swap_pairing(mapping, rows, (2, -1))


def _swap_pairing(mapping: MatrixMap, rows: Tensor, split: tuple[int, int]) -> Tensor:
    if not mapping.heads:
        return rows
    count = mapping.heads * mapping.head_width
    heads = rows[:count].reshape(mapping.heads, mapping.head_width, *rows.shape[1:])
    turned, others = heads[:, : mapping.rotated], heads[:, mapping.rotated :]
    swapped = turned.reshape(mapping.heads, *split, *rows.shape[1:]).transpose(1, 2).reshape(turned.shape)
    return torch.cat([torch.cat([swapped, others], 1).flatten(0, 1), rows[count:]])


def _swap(rows: Tensor, first: int, second: int) -> Tensor:
    """Rows in blocks [first, second], as blocks [second, first]."""
    return rows.reshape(first, second, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


def _alpha(scale: float, rank: int, *, stabilized: bool) -> float:
    return scale * (math.sqrt(rank) if stabilized else rank)
