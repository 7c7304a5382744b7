"""ggml's number types: blocks of a row, each with its own scales.

    F32, F16, BF16, F64                        stored as they are
    Q8_0   32   w = d q                        q in int8
    Q4_0   32   w = d (q − 8)                  q of 4 bits; q[j] and q[j + 16] share byte j, in Q5 too
    Q4_1   32   w = d q + m
    Q5_0   32   w = d (q − 16)                 the fifth bits of all 32 values are in a separate word
    Q5_1   32   w = d q + m
    Q4_K  256   w = (d s) q − (e t)            8 × 32 values, with 6-bit s and t for each 32
    Q5_K  256   the same with fifth bits
    Q6_K  256   w = (d s) (q − 32)             16 × 16 values, with an int8 s for each 16

d, e and m are float16. All products below are exact in float32, so the order of computation does not matter. The fields
of a block are stored in the order given in `TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.nn.quantized import GROUP, Int4, Int8

CHUNK = 1 << 20  # values dequantized at a time, to limit temporary memory
LARGEST_Q4_0 = 65504 / 8  # largest d for which −8 d fits into float16


class Type(NamedTuple):
    name: str
    block_values: int
    block_bytes: int
    field_bytes: tuple[int, ...] = ()
    read: Callable[..., Tensor] | None = None  # fields [n, …] → values [n, …]
    dtype: torch.dtype | None = None  # of float types


def _half(part: Tensor) -> Tensor:
    return part.view(torch.float16).float()


def _nibbles(q: Tensor) -> Tensor:
    """[n, b] bytes → [n, 2 b] 4-bit values: all lower halves, then all upper ones."""
    return torch.cat([q & 15, q >> 4], -1)


def _fifth_bits(bits: Tensor) -> Tensor:
    """32 bits in 4 bytes [n, 4] → 16 where a bit is set, else 0 [n, 32]."""
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
    """Eight s and eight t of 6 bits from 12 bytes: the last four of each are split over two bytes."""
    first, second, third = torch.split(packed, 4, dim=-1)
    s = torch.cat([first & 63, (third & 15) | (first >> 6) << 4], -1)
    t = torch.cat([second & 63, (third >> 4) | (second >> 6) << 4], -1)
    return s.float(), t.float()


def _q4_k(d: Tensor, e: Tensor, packed: Tensor, q: Tensor) -> Tensor:
    # 32 bytes hold two groups of 32 values, the first one in the lower halves.
    return _dequantize_k(d, e, packed, _nibbles(q.view(-1, 4, 32)).view(-1, 8, 32))


def _q5_k(d: Tensor, e: Tensor, packed: Tensor, high: Tensor, q: Tensor) -> Tensor:
    # Bit r of byte j is the fifth bit of value j in group r.
    fifth = (high[:, None, :] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 4
    return _dequantize_k(d, e, packed, _nibbles(q.view(-1, 4, 32)).view(-1, 8, 32) | fifth)


def _dequantize_k(d: Tensor, e: Tensor, packed: Tensor, q: Tensor) -> Tensor:
    s, t = _unpack_scales(packed)
    return q.float().mul_((_half(d) * s)[..., None]).sub_((_half(e) * t)[..., None]).flatten(1)


def _q6_k(low: Tensor, high: Tensor, s: Tensor, d: Tensor) -> Tensor:
    # Half a block is 128 values: 64 bytes with the lower four bits, and 32 bytes with the upper two bits.
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
    """Convert bytes of the type `name` to a tensor: float32 for quantized types, else a view of the stored floats."""
    kind = TYPES_BY_NAME[name]
    if kind.dtype is not None:
        return data.view(kind.dtype).view(shape)
    blocks = data.view(-1, kind.block_bytes)
    values = torch.empty(len(blocks), kind.block_values)
    step = CHUNK // kind.block_values
    for start in range(0, len(blocks), step):
        parts = torch.split(blocks[start : start + step], list(kind.field_bytes), dim=1)
        values[start : start + step] = kind.read(*(part.contiguous() for part in parts))  # type: ignore[misc]
    return values.view(shape)


def as_quantized(data: Tensor, name: str, shape: tuple[int, ...]) -> Int4 | Int8 | None:
    """A view of a matrix as our own quantized type, without loss; None for types that we cannot compute with."""
    if len(shape) != 2 or name not in ("Q4_0", "Q4_1", "Q8_0"):
        return None
    blocks = data.view(shape[0], shape[1] // GROUP, -1)
    # A block has an even number of bytes, so it can be viewed as float16.
    scale = blocks.view(torch.float16)[..., 0]
    if name == "Q8_0":
        return Int8(blocks[..., 2:].view(torch.int8), scale)
    if name == "Q4_1":
        return Int4(blocks[..., 4:], scale, blocks.view(torch.float16)[..., 1])
    if float(scale.abs().max()) > LARGEST_Q4_0:
        return None
    return Int4(blocks[..., 2:], scale, scale * -8)
