"""The number types of GGUF files: blocks of a row, each with its own scales.

    F32, F16, BF16, F64                        stored as they are
    Q8_0   32   w = d q                        q in int8
    Q4_0   32   w = d (q − 8)                  q of 4 bits; q[j] and q[j + 16] share byte j, in Q5 too
    Q4_1   32   w = d q + m
    Q5_0   32   w = d (q − 16)                 the fifth bits of all 32 values are in a separate word
    Q5_1   32   w = d q + m
    IQ4_NL 32   w = d TABLE[q]                 q of 4 bits, as in Q4_0
    Q2_K  256   w = (d s) q − (e t)            16 × 16 values, with 4-bit s and t for each 16
    Q3_K  256   w = (d s) (q − 4)              16 × 16 values, with an s of −32 … 31 for each 16
    Q4_K  256   w = (d s) q − (e t)            8 × 32 values, with 6-bit s and t for each 32
    Q5_K  256   the same with fifth bits
    Q6_K  256   w = (d s) (q − 32)             16 × 16 values, with an int8 s for each 16

d, e and m are float16. All products below are exact in float32, so the order of computation does not matter. The fields
of a block are stored in the order given in `TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 1 << 20  # values dequantized at a time, to limit temporary memory
TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of IQ4_NL


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
    return (_shift(bits[:, :, None], range(8)) & 1).flatten(1) << 4


def _shift(part: Tensor, by: Sequence[int]) -> Tensor:
    """Shift bytes to the right by each of these numbers, along the last dimension."""
    return part >> torch.tensor(by, dtype=torch.uint8, device=part.device)


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


def _iq4_nl(d: Tensor, q: Tensor) -> Tensor:
    return torch.tensor(TABLE, dtype=torch.float32, device=q.device)[_nibbles(q).int()].mul_(_half(d))


def _quarters(q: Tensor) -> Tensor:
    """[n, 64] bytes → [n, 8, 32] 2-bit values: 32 bytes hold four groups of 32 values, the first in the lowest bits."""
    return (_shift(q.view(-1, 2, 32, 1), (0, 2, 4, 6)) & 3).transpose(2, 3).reshape(-1, 8, 32)


def _q2_k(scales: Tensor, q: Tensor, d: Tensor, e: Tensor) -> Tensor:
    s, t = (scales & 15).float(), (scales >> 4).float()
    return _dequantize_k(d, e, s, t, _quarters(q).view(-1, 16, 16))


def _q3_k(high: Tensor, q: Tensor, packed: Tensor, d: Tensor) -> Tensor:
    # Bit r of byte j is the third bit of value j in group r of 32. Of s, four bits are in 8 bytes and two in 4 bytes.
    third = (_shift(high[..., None], range(8)) & 1).transpose(1, 2) << 2
    s = _nibbles(packed[:, :8]) | (_shift(packed[:, 8:, None], (0, 2, 4, 6)) & 3).transpose(1, 2).flatten(1) << 4
    values = (_quarters(q) | third).float().sub_(4).view(-1, 16, 16)
    return values.mul_((_half(d) * s.float().sub_(32))[..., None]).flatten(1)


def _unpack_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight s and eight t of 6 bits from 12 bytes: the last four of each are split over two bytes."""
    first, second, third = torch.split(packed, 4, dim=-1)
    s = torch.cat([first & 63, (third & 15) | (first >> 6) << 4], -1)
    t = torch.cat([second & 63, (third >> 4) | (second >> 6) << 4], -1)
    return s.float(), t.float()


def _q4_k(d: Tensor, e: Tensor, packed: Tensor, q: Tensor) -> Tensor:
    # 32 bytes hold two groups of 32 values, the first one in the lower halves.
    return _dequantize_k(d, e, *_unpack_scales(packed), _nibbles(q.view(-1, 4, 32)).view(-1, 8, 32))


def _q5_k(d: Tensor, e: Tensor, packed: Tensor, high: Tensor, q: Tensor) -> Tensor:
    # Bit r of byte j is the fifth bit of value j in group r.
    fifth = (_shift(high[..., None], range(8)) & 1).transpose(1, 2) << 4
    return _dequantize_k(d, e, *_unpack_scales(packed), _nibbles(q.view(-1, 4, 32)).view(-1, 8, 32) | fifth)


def _dequantize_k(d: Tensor, e: Tensor, s: Tensor, t: Tensor, q: Tensor) -> Tensor:
    return q.float().mul_((_half(d) * s)[..., None]).sub_((_half(e) * t)[..., None]).flatten(1)


def _q6_k(low: Tensor, high: Tensor, s: Tensor, d: Tensor) -> Tensor:
    # Half a block is 128 values: 64 bytes with the lower four bits, and 32 bytes with the upper two bits.
    four = _nibbles(low.view(-1, 2, 64)).view(-1, 2, 4, 32)
    two = _quarters(high).view(-1, 2, 4, 32)
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
    10: Type("Q2_K", 256, 84, (16, 64, 2, 2), _q2_k),
    11: Type("Q3_K", 256, 110, (32, 64, 12, 2), _q3_k),
    12: Type("Q4_K", 256, 144, (2, 2, 12, 128), _q4_k),
    13: Type("Q5_K", 256, 176, (2, 2, 12, 32, 128), _q5_k),
    14: Type("Q6_K", 256, 210, (128, 64, 16, 2), _q6_k),
    20: Type("IQ4_NL", 32, 18, (2, 16), _iq4_nl),
    28: Type("F64", 1, 8, dtype=torch.float64),
    30: Type("BF16", 1, 2, dtype=torch.bfloat16),
}
TYPES_BY_NAME = {kind.name: kind for kind in TYPES.values()}
BLOCK_KINDS = ("q5_0", "q5_1", "iq4_nl", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")  # types that run as `Blocks`
TYPES_BY_BYTES = {kind.block_bytes: kind for kind in TYPES.values() if kind.name.lower() in BLOCK_KINDS}


class Blocks(NamedTuple):
    """Weights [N, K] as blocks [N, K/b, bytes] of b weights; the number of bytes tells the type."""

    blocks: Tensor

    @property
    def type(self) -> Type:
        return TYPES_BY_BYTES[self.blocks.shape[-1]]

    @property
    def kind(self) -> str:
        return self.type.name.lower()

    @property
    def inputs(self) -> int:
        return self.blocks.shape[1] * self.type.block_values

    def dequantize(self) -> Tensor:
        return dequantize_blocks(self.blocks, self.type.name, (len(self.blocks), self.inputs))


def dequantize_blocks(data: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Convert bytes of the type `name` to a tensor: float32 for quantized types, else a view of the stored floats."""
    kind = TYPES_BY_NAME[name]
    if kind.dtype is not None:
        return data.view(kind.dtype).view(shape)
    blocks = data.reshape(-1, kind.block_bytes)
    values = torch.empty(len(blocks), kind.block_values, device=data.device)
    step = CHUNK // kind.block_values
    for start in range(0, len(blocks), step):
        parts = torch.split(blocks[start : start + step], list(kind.field_bytes), dim=1)
        values[start : start + step] = kind.read(*(part.contiguous() for part in parts))  # type: ignore[misc]
    return values.view(shape)
