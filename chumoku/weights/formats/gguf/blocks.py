"""How ggml stores numbers: in blocks of a row, each with its scales.

    F32, F16, BF16, F64          themselves
    Q8_0   32   w = d q                        q in int8
    Q4_0   32   w = d (q − 8)                  q of 4 bits; q[j] and q[j + 16] share byte j, in Q5 too
    Q4_1   32   w = d q + m
    Q5_0   32   w = d (q − 16)                 the fifth bits of all 32 in a word of their own
    Q5_1   32   w = d q + m
    Q4_K  256   w = (d s) q − (e t)            8 × 32 numbers, a pair s, t of 6 bits for each 32
    Q5_K  256   the same with fifth bits
    Q6_K  256   w = (d s) (q − 32)             16 × 16 numbers, an s in int8 for each 16

d, e and m are float16. All products of whole numbers and scales below have room in float32, so that no order of
computing them gives another result. A block's fields follow each other as named in `TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.nn.quantized import GROUP, Int4, Int8Groups

CHUNK = 1 << 20  # numbers unpacked at a time, so that what is needed on the way stays small
LARGEST_Q4_0 = 65504 / 8  # of d: beyond, −8 d has no float16


class Type(NamedTuple):
    name: str
    numbers: int  # in a block
    bytes: int
    parts: tuple[int, ...] = ()  # of the block's fields, in bytes
    read: Callable[..., Tensor] | None = None  # fields [n, …] → numbers [n, …]
    dtype: torch.dtype | None = None  # of what is stored as it is


def _half(part: Tensor) -> Tensor:
    return part.view(torch.float16).float()


def _nibbles(q: Tensor) -> Tensor:
    """[n, b] → [n, 2 b]: all lower halves, then all upper ones."""
    return torch.cat([q & 15, q >> 4], -1)


def _fifth_bits(bits: Tensor) -> Tensor:
    """A word of 32 bits [n, 4] → 16 where a bit is set [n, 32]"""
    return ((bits[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1) << 4


def _q8_0(d: Tensor, q: Tensor) -> Tensor:
    return q.view(torch.int8).float().mul_(_half(d))


def _q4_0(d: Tensor, q: Tensor) -> Tensor:
    return _nibbles(q).float().sub_(8).mul_(_half(d))


def _q4_1(d: Tensor, m: Tensor, q: Tensor) -> Tensor:
    return _nibbles(q).float().mul_(_half(d)).add_(_half(m))


def _q5_0(d: Tensor, high: Tensor, q: Tensor) -> Tensor:
    return (_nibbles(q) | _fifth_bits(high)).float().sub_(16).mul_(_half(d))


def _q5_1(d: Tensor, m: Tensor, high: Tensor, q: Tensor) -> Tensor:
    return (_nibbles(q) | _fifth_bits(high)).float().mul_(_half(d)).add_(_half(m))


def _unpack_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight s and eight t of 6 bits from 12 bytes: the lower four of each in a byte, the upper two bits spread."""
    first, second, third = torch.split(packed, 4, dim=-1)
    s = torch.cat([first & 63, (third & 15) | (first >> 6) << 4], -1)
    t = torch.cat([second & 63, (third >> 4) | (second >> 6) << 4], -1)
    return s.float(), t.float()


def _q4_k(d: Tensor, e: Tensor, packed: Tensor, q: Tensor) -> Tensor:
    # 32 bytes hold two runs of 32 numbers, the first in their lower halves.
    return _dequantize_k(d, e, packed, _nibbles(q.view(-1, 4, 32)).view(-1, 8, 32))


def _q5_k(d: Tensor, e: Tensor, packed: Tensor, high: Tensor, q: Tensor) -> Tensor:
    # Bit r of byte j is the fifth one of number j in run r.
    fifth = (high[:, None, :] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 4
    return _dequantize_k(d, e, packed, _nibbles(q.view(-1, 4, 32)).view(-1, 8, 32) | fifth)


def _dequantize_k(d: Tensor, e: Tensor, packed: Tensor, q: Tensor) -> Tensor:
    s, t = _unpack_scales(packed)
    return q.float().mul_((_half(d) * s)[..., None]).sub_((_half(e) * t)[..., None]).flatten(1)


def _q6_k(low: Tensor, high: Tensor, s: Tensor, d: Tensor) -> Tensor:
    # Half a block is 128 numbers: 64 bytes of lower four bits, 32 bytes of upper two, four numbers each.
    four = _nibbles(low.view(-1, 2, 64)).view(-1, 2, 4, 32)
    two = high.view(-1, 2, 1, 32) >> (2 * torch.arange(4, dtype=torch.uint8)[:, None]) & 3
    q = (four | two << 4).float().sub_(32).view(-1, 16, 16)
    return q.mul_((_half(d) * s.view(torch.int8).float())[..., None]).flatten(1)


TYPES = {
    0: Type("F32", 1, 4, dtype=torch.float32),
    1: Type("F16", 1, 2, dtype=torch.float16),
    2: Type("Q4_0", 32, 18, (2, 16), _q4_0),
    3: Type("Q4_1", 32, 20, (2, 2, 16), _q4_1),
    6: Type("Q5_0", 32, 22, (2, 4, 16), _q5_0),
    7: Type("Q5_1", 32, 24, (2, 2, 4, 16), _q5_1),
    8: Type("Q8_0", 32, 34, (2, 32), _q8_0),
    12: Type("Q4_K", 256, 144, (2, 2, 12, 128), _q4_k),
    13: Type("Q5_K", 256, 176, (2, 2, 12, 32, 128), _q5_k),
    14: Type("Q6_K", 256, 210, (128, 64, 16, 2), _q6_k),
    28: Type("F64", 1, 8, dtype=torch.float64),
    30: Type("BF16", 1, 2, dtype=torch.bfloat16),
}
TYPES_BY_NAME = {kind.name: kind for kind in TYPES.values()}


def dequantize_blocks(data: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """The numbers that bytes of this type stand for: float32, or the stored ones where they are floats already."""
    kind = TYPES_BY_NAME[name]
    if kind.dtype is not None:
        return data.view(kind.dtype).view(shape)
    blocks = data.view(-1, kind.bytes)
    found = torch.empty(len(blocks), kind.numbers)
    step = CHUNK // kind.numbers
    for start in range(0, len(blocks), step):
        parts = torch.split(blocks[start : start + step], list(kind.parts), dim=1)
        found[start : start + step] = kind.read(*(part.contiguous() for part in parts))  # type: ignore[misc]
    return found.view(shape)


def as_quantized(data: Tensor, name: str, shape: tuple[int, ...]) -> Int4 | Int8Groups | None:
    """A matrix as the house itself stores it, without loss and where it lies; None where the house has no such kind."""
    if len(shape) != 2 or name not in ("Q4_0", "Q4_1", "Q8_0"):
        return None
    blocks = data.view(shape[0], shape[1] // GROUP, -1)
    # Halves are views of halves: a block has an even number of bytes.
    scale = blocks.view(torch.float16)[..., 0]
    if name == "Q8_0":
        return Int8Groups(blocks[..., 2:].view(torch.int8), scale)
    if name == "Q4_1":
        return Int4(blocks[..., 4:], scale, blocks.view(torch.float16)[..., 1])
    if float(scale.abs().max()) > LARGEST_Q4_0:
        return None
    return Int4(blocks[..., 2:], scale, scale * -8)
