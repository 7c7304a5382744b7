"""Tables that map our tensors to another library's, in both directions.

    ours                                          theirs
    decoder.blocks.{}.attention.query.weight      model.layers.{}.self_attn.q_proj.weight

A row maps one or more of our tensors, concatenated over their outputs, to one of theirs:

    ours          several names: query, key and value are one matrix there
    transposed    their matrix is [inputs, outputs]
    heads         above 0: a query or key matrix, whose rows for rotary positions may have another order there
    unsqueezed    their tensor has an extra first dimension of 1

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


def tensor_row(ours: str, theirs: str, *, heads: int = 0, transposed: bool = False, unsqueezed: bool = False) -> Row:
    return Row((ours,), theirs, transposed=transposed, heads=heads, unsqueezed=unsqueezed)


def linear_rows(ours: str, theirs: str, *, heads: int = 0, transposed: bool = False) -> list[Row]:
    """Rows for the weight and the bias of a linear layer."""
    return [
        tensor_row(f"{ours}.weight", f"{theirs}.weight", heads=heads, transposed=transposed),
        tensor_row(f"{ours}.bias", f"{theirs}.bias", heads=heads),
    ]


def norm_rows(ours: str, theirs: str) -> list[Row]:
    return [tensor_row(f"{ours}.gamma", f"{theirs}.weight"), tensor_row(f"{ours}.beta", f"{theirs}.bias")]


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
    for row in rows:
        can_stay = not row.transposed and len(row.ours) == 1 and row.ours[0].endswith((".weight", ".embedding.table"))
        tensor = source.read(row.theirs, dequantize=dequantize or not can_stay)
        if not isinstance(tensor, Tensor):
            result[row.ours[0]] = tensor
            continue
        tensor = tensor[0] if row.unsqueezed else tensor.T if row.transposed else tensor
        parts = torch.split(tensor, [like[name].shape[0] for name in row.ours])
        result |= {name: part.contiguous() for name, part in zip(row.ours, parts, strict=True)}
    return result


def export_tensors(rows: Sequence[Row], tensors: Mapping[str, Tensor], *, order: Tensor | None) -> dict[str, Tensor]:
    """Convert our tensors to theirs; `order` is their order of a head's rows, None if it is the same."""
    result: dict[str, Tensor] = {}
    exported: set[str] = set()
    for row in rows:
        tensor = torch.cat([tensors[name] for name in row.ours]) if len(row.ours) > 1 else tensors[row.ours[0]]
        tensor = tensor.clone() if exported.intersection(row.ours) else tensor  # a file cannot store shared tensors
        exported.update(row.ours)
        if row.heads and order is not None:
            tensor = reorder_heads(tensor, row.heads, order)
        tensor = tensor[None] if row.unsqueezed else tensor.T if row.transposed else tensor
        result[row.theirs] = tensor.contiguous()
    return result


def reorder_heads(tensor: Tensor, heads: int, order: Tensor) -> Tensor:
    """Reorder the output rows of each head."""
    return tensor.view(heads, len(order), *tensor.shape[1:])[:, order].reshape(tensor.shape)


def head_order(target: str, pairing: str, head_width: int) -> Tensor | None:
    """The row order that converts a head from one rotary pairing to another; None if they are the same."""
    if target == pairing:
        return None
    return half_order(head_width) if target == "half" else half_order(head_width).argsort()


def half_order(head_width: int) -> Tensor:
    """The order from interleaved pairs to halves: 0, 2, 4 …, 1, 3, 5 …"""
    return torch.arange(head_width).view(-1, 2).T.flatten()


def _their_shape(row: Row, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    joined = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    return (1, *joined) if row.unsqueezed else joined[::-1] if row.transposed else joined
