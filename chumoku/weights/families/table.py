"""One table, two ways: which of our tensors is which of theirs.

    ours                                          theirs
    decoder.blocks.{}.attention.query.weight      model.layers.{}.self_attn.q_proj.weight

A row joins one or more of ours, outputs under outputs, to one of theirs, which may be transposed or in another order:

    joined    query, key and value are one matrix there
    transposed    it is [inputs, outputs] there
    heads     rotary positions: the outputs of each head may be paired otherwise there, side by side or half a head away
    unsqueezed    it has a dimension of 1 in front there

Names and shapes are all checked before a single number is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, overload

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.nn.quantized import Int4, Int8Groups

MaybeQuantized = Tensor | Int4 | Int8Groups  # floats, or whole numbers as a file has them


class Source(Protocol):
    """Named tensors of a file or a folder, read one by one."""

    @property
    def path(self) -> object: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @overload
    def read(self, name: str, *, dequantize: Literal[True] = True) -> Tensor: ...
    @overload
    def read(self, name: str, *, dequantize: bool) -> MaybeQuantized: ...
    def read(self, name: str, *, dequantize: bool = True) -> MaybeQuantized:
        """A tensor; whole numbers that we can compute with as they are stay so unless it is to be `dequantize`."""
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
    """A matrix and its bias, called so on both sides."""
    return [
        tensor_row(f"{ours}.weight", f"{theirs}.weight", heads=heads, transposed=transposed),
        tensor_row(f"{ours}.bias", f"{theirs}.bias", heads=heads),
    ]


def norm_rows(ours: str, theirs: str) -> list[Row]:
    return [tensor_row(f"{ours}.gamma", f"{theirs}.weight"), tensor_row(f"{ours}.beta", f"{theirs}.bias")]


def layer_rows(depth: int, rows: Iterable[Row]) -> list[Row]:
    """Rows with {} in their names, for every layer."""
    patterns = list(rows)
    return [
        row._replace(ours=tuple(name.format(layer) for name in row.ours), theirs=row.theirs.format(layer))
        for layer in range(depth)
        for row in patterns
    ]


def select_rows(rows: Iterable[Row], names: Iterable[str]) -> list[Row]:
    """The rows of a model that has these tensors: one without biases has no rows of biases."""
    known = set(names)
    return [row for row in rows if known.issuperset(row.ours)]


def check_tensors(rows: Sequence[Row], like: Mapping[str, Tensor], source: Source, ignored: Mapping[str, str]) -> None:
    """Refuse a source that lacks a tensor, has one that nobody explains, or one of another shape."""
    missing = next((row.theirs for row in rows if row.theirs not in source.shapes), None)
    if missing is not None:
        raise UsageError(f"{source.path} lacks the tensor {missing}, which its config asks for. Is the download whole?")
    used = {row.theirs for row in rows}
    explained = re.compile("|".join(f"(?:{pattern})" for pattern in ignored) or "(?!)")
    odd = next((name for name in source.shapes if name not in used and not explained.fullmatch(name)), None)
    if odd is not None:
        raise UsageError(
            f"{source.path} has the tensor {odd[:100]}, for which its config has no place. It is of another kind of "
            "model than it says, or of a variant that is not known here."
        )
    for row in rows:
        needed = _their_shape(row, [tuple(like[name].shape) for name in row.ours])
        found = tuple(source.shapes[row.theirs])
        if found != needed:
            raise UsageError(f"{source.path}: {row.theirs} is {list(found)}, and its config asks for {list(needed)}.")


def check_duplicates(
    duplicates: Callable[[ModelConfig], Mapping[str, str]], config: ModelConfig, source: Source
) -> None:
    """Refuse a file whose tensors that should be one and the same, as its config says, are not."""
    for name, first in duplicates(config).items():
        if name in source.shapes and first in source.shapes:
            same = source.shapes[name] == source.shapes[first] and torch.equal(source.read(name), source.read(first))
            if not same:
                raise UsageError(
                    f"{source.path} has {name} beside {first}, and they differ; its config says that they are one. If "
                    "each is meant, set tie_word_embeddings (or share_encoder_decoder_embeddings) to false there."
                )


def import_tensors(
    rows: Sequence[Row], like: Mapping[str, Tensor], source: Source, *, dequantize: bool
) -> dict[str, MaybeQuantized]:
    """Our tensors out of theirs."""
    made: dict[str, MaybeQuantized] = {}
    for row in rows:
        kept = not row.transposed and len(row.ours) == 1 and row.ours[0].endswith((".weight", ".embedding.table"))
        tensor = source.read(row.theirs, dequantize=dequantize or not kept)
        if not isinstance(tensor, Tensor):
            made[row.ours[0]] = tensor
            continue
        tensor = tensor[0] if row.unsqueezed else tensor.T if row.transposed else tensor
        parts = torch.split(tensor, [like[name].shape[0] for name in row.ours])
        made |= {name: part.contiguous() for name, part in zip(row.ours, parts, strict=True)}
    return made


def export_tensors(rows: Sequence[Row], tensors: Mapping[str, Tensor], *, order: Tensor | None) -> dict[str, Tensor]:
    """Their tensors out of ours; `order` is that of a head's outputs there, where it differs."""
    made: dict[str, Tensor] = {}
    written: set[str] = set()
    for row in rows:
        tensor = torch.cat([tensors[name] for name in row.ours]) if len(row.ours) > 1 else tensors[row.ours[0]]
        tensor = tensor.clone() if written.intersection(row.ours) else tensor  # files have no tensor twice
        written.update(row.ours)
        if row.heads and order is not None:
            tensor = reorder_heads(tensor, row.heads, order)
        tensor = tensor[None] if row.unsqueezed else tensor.T if row.transposed else tensor
        made[row.theirs] = tensor.contiguous()
    return made


def reorder_heads(tensor: Tensor, heads: int, order: Tensor) -> Tensor:
    """The outputs of each head in another order."""
    return tensor.view(heads, len(order), *tensor.shape[1:])[:, order].reshape(tensor.shape)


def head_order(wanted: str, pairing: str, head_width: int) -> Tensor | None:
    """Where a head's outputs, paired as they are, are found when they are to be paired otherwise."""
    if wanted == pairing:
        return None
    return half_order(head_width) if wanted == "half" else half_order(head_width).argsort()


def half_order(head_width: int) -> Tensor:
    """Pairs side by side → first halves, then second halves: 0, 2, 4 …, 1, 3, 5 …"""
    return torch.arange(head_width).view(-1, 2).T.flatten()


def _their_shape(row: Row, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    together = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    return (1, *together) if row.unsqueezed else together[::-1] if row.transposed else together
