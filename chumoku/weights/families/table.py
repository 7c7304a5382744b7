"""Tables that map our tensors to another library's, in both directions.

    ours                                          theirs
    decoder.blocks.{}.attention.query.weight      model.layers.{}.self_attn.q_proj.weight

A row maps one or more of our tensors, concatenated over their outputs, to one of theirs:

    ours          several names: query, key and value are one matrix there
    transposed    their matrix is [inputs, outputs]
    heads         above 0: the first rows are of this many query and key heads; their order differs with the rotary
                  pairing
    per_head      above 0: theirs has all rows of one head after the other: query, key and value of head 0, of head 1 …
    expert        theirs is this element of ours
    offset        ours = theirs + offset
    unsqueezed    their tensor has an extra first dimension of 1
    unused_rows   their table of positions has first rows that no token uses; ours does not have them

All names and shapes are checked before any tensor is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, overload

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.nn.gguf_blocks import Blocks
from chumoku.nn.quantized import Int4, Int8

MaybeQuantized = Tensor | Int4 | Int8 | Blocks


class Source(Protocol):
    """The tensors of a file or folder, read one by one by name."""

    @property
    def path(self) -> object: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @overload
    def read(self, name: str, *, dequantize: Literal[True] = True) -> Tensor: ...
    @overload
    def read(self, name: str, *, dequantize: bool) -> MaybeQuantized: ...
    def read(self, name: str, *, dequantize: bool = True) -> MaybeQuantized:
        """Read a tensor; with dequantize=False, a quantized type that we can compute with stays quantized."""
        ...


class Row(NamedTuple):
    ours: tuple[str, ...]
    theirs: str
    transposed: bool = False
    heads: int = 0
    unsqueezed: bool = False
    per_head: int = 0
    expert: int | None = None
    offset: float = 0.0
    unused_rows: bool = False


def tensor_row(
    ours: str,
    theirs: str,
    *,
    heads: int = 0,
    transposed: bool = False,
    unsqueezed: bool = False,
    unused_rows: bool = False,
) -> Row:
    return Row((ours,), theirs, transposed, heads, unsqueezed, unused_rows=unused_rows)


def linear_rows(ours: str, theirs: str, *, heads: int = 0, transposed: bool = False) -> list[Row]:
    """Rows for the weight and the bias of a linear layer."""
    return [
        tensor_row(f"{ours}.weight", f"{theirs}.weight", heads=heads, transposed=transposed),
        tensor_row(f"{ours}.bias", f"{theirs}.bias", heads=heads),
    ]


def norm_rows(ours: str, theirs: str, *, offset: float = 0.0, heads: int = 0) -> list[Row]:
    """Rows for γ and β of a norm; `heads` if it is a norm of queries or keys."""
    gamma = tensor_row(f"{ours}.gamma", f"{theirs}.weight", heads=heads)
    return [gamma._replace(offset=offset), tensor_row(f"{ours}.beta", f"{theirs}.bias")]


def layer_rows(depth: int, rows: Iterable[Row]) -> list[Row]:
    """Repeat rows for every layer; {} in their names becomes the layer's number."""
    patterns = list(rows)
    return [
        row._replace(ours=tuple(name.format(layer) for name in row.ours), theirs=row.theirs.format(layer))
        for layer in range(depth)
        for row in patterns
    ]


def select_rows(rows: Iterable[Row], names: Iterable[str]) -> list[Row]:
    """The rows whose tensors the model has; for example no biases in a model without them."""
    existing = set(names)
    return [row for row in rows if existing.issuperset(row.ours)]


def check_tensors(rows: Sequence[Row], like: Mapping[str, Tensor], source: Source, ignored: Mapping[str, str]) -> None:
    """Refuse a source with a missing tensor, an unknown one that is not ignored, or a wrong shape."""
    missing = next((row.theirs for row in rows if row.theirs not in source.shapes), None)
    if missing is not None:
        raise UsageError(f"{source.path} lacks the tensor {missing}, which its config needs. Is the download complete?")
    used = {row.theirs for row in rows}
    skipped = re.compile("|".join(f"(?:{pattern})" for pattern in ignored) or "(?!)")
    odd = next((name for name in source.shapes if name not in used and not skipped.fullmatch(name)), None)
    if odd is not None:
        raise UsageError(
            f"{source.path} has the tensor {odd[:100]}, which does not belong to the model that its config describes. "
            "It may be a variant that is not supported."
        )
    for row in rows:
        needed = _their_shape(row, [tuple(like[name].shape) for name in row.ours])
        found = tuple(source.shapes[row.theirs])
        if row.unused_rows and found[:1] > needed[:1]:
            needed = (found[0], *needed[1:])
        if found != needed:
            raise UsageError(f"{source.path}: {row.theirs} has shape {list(found)}; its config needs {list(needed)}.")


def check_duplicates(duplicates: Mapping[str, str], source: Source) -> None:
    """Refuse a file in which a tensor differs from the one that it duplicates according to its config."""
    for name, first in duplicates.items():
        if name in source.shapes and first in source.shapes:
            same = source.shapes[name] == source.shapes[first] and torch.equal(source.read(name), source.read(first))
            if not same:
                raise UsageError(
                    f"{source.path}: {name} and {first} differ, but its config says that they are tied. If they should "
                    "differ, set tie_word_embeddings (or share_encoder_decoder_embeddings) to false in the config."
                )


def import_tensors(
    rows: Sequence[Row], like: Mapping[str, Tensor], source: Source, *, dequantize: bool
) -> dict[str, MaybeQuantized]:
    """Read their tensors and convert them to ours; `like` gives our shapes."""
    result: dict[str, MaybeQuantized] = {}
    experts: dict[str, list[Tensor]] = {}
    for row in rows:
        can_stay = not row.transposed and len(row.ours) == 1 and row.ours[0].endswith((".weight", ".embedding.table"))
        tensor = source.read(row.theirs, dequantize=dequantize or not can_stay)
        if not isinstance(tensor, Tensor):
            result[row.ours[0]] = tensor
            continue
        tensor = tensor[0] if row.unsqueezed else tensor.T if row.transposed else tensor
        tensor = tensor[-len(like[row.ours[0]]) :] if row.unused_rows else tensor
        tensor = tensor + row.offset if row.offset else tensor
        if row.expert is not None:
            experts.setdefault(row.ours[0], []).append(tensor)
            continue
        if row.per_head:
            tensor = (
                tensor.view(row.per_head, len(row.ours), -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)
            )
        parts = torch.split(tensor, [like[name].shape[0] for name in row.ours])
        result |= {name: part.contiguous() for name, part in zip(row.ours, parts, strict=True)}
    return {**result, **{name: torch.stack(parts) for name, parts in experts.items()}}


def export_tensors(
    rows: Sequence[Row], tensors: Mapping[str, Tensor], *, order: Tensor | None, unused_rows: int = 0
) -> dict[str, Tensor]:
    """Convert our tensors to theirs.

    order        their order of a head's rows, None if it is the same
    unused_rows  the number of unused first rows of their table of positions; they are written as zeros
    """
    result: dict[str, Tensor] = {}
    exported: set[str] = set()
    for row in rows:
        tensor = torch.cat([tensors[name] for name in row.ours]) if len(row.ours) > 1 else tensors[row.ours[0]]
        tensor = tensor.clone() if exported.intersection(row.ours) else tensor  # a file cannot store shared tensors
        exported.update(row.ours)
        if row.heads and order is not None:
            tensor = reorder_heads(tensor, row.heads, order)
        if row.per_head:
            tensor = (
                tensor.view(len(row.ours), row.per_head, -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)
            )
        tensor = tensor if row.expert is None else tensor[row.expert]
        tensor = tensor.float() - row.offset if row.offset else tensor
        tensor = tensor[None] if row.unsqueezed else tensor.T if row.transposed else tensor
        if row.unused_rows:
            tensor = torch.cat([tensor.new_zeros(unused_rows, tensor.shape[1]), tensor])
        result[row.theirs] = tensor.contiguous()
    return result


def reorder_heads(tensor: Tensor, heads: int, order: Tensor) -> Tensor:
    """Reorder the output rows of each of the first `heads` heads."""
    count = heads * len(order)
    first = tensor[:count].view(heads, len(order), *tensor.shape[1:])[:, order]
    return torch.cat([first.flatten(0, 1), tensor[count:]])


def head_order(target: str, pairing: str, head_width: int, rotated: int | None = None) -> Tensor | None:
    """The row order that converts a head from one rotary pairing to another; None if they are the same.

    rotated: how many elements of a head are rotated, the first ones; by default all.
    """
    if target == pairing:
        return None
    rotated = head_width if rotated is None else rotated
    order = half_order(rotated) if target == "half" else half_order(rotated).argsort()
    return torch.cat([order, torch.arange(rotated, head_width)])


def half_order(head_width: int) -> Tensor:
    """The order from interleaved pairs to halves: 0, 2, 4 …, 1, 3, 5 …"""
    return torch.arange(head_width).view(-1, 2).T.flatten()


def _their_shape(row: Row, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if row.expert is not None:
        return shapes[0][1:]
    joined = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    return (1, *joined) if row.unsqueezed else joined[::-1] if row.transposed else joined
