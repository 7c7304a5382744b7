"""Rotary positions of joined queries, keys and values [T, 3, H, K] on a GPU, in Triton, in place.

queries and keys    (a, b) → (a cos − b sin, a sin + b cos) for the elements i and i + K/2, at the token's angles
values              unchanged
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rotate_token(x, cos, sin, HEADS: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr):
    """Queries and keys of one token, as pairs [2 · H, K/2]."""
    token = tl.program_id(0).to(tl.int64)
    heads, pairs = tl.arange(0, PADDED), tl.arange(0, HALF)
    c = tl.load(cos + token * HALF + pairs).to(tl.float32)[None, :]
    s = tl.load(sin + token * HALF + pairs).to(tl.float32)[None, :]
    places = token * 6 * HEADS * HALF + heads[:, None] * 2 * HALF + pairs[None, :]
    inside = (heads < 2 * HEADS)[:, None] & (pairs < HALF)[None, :]
    a = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + places + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + places, (a * c - b * s).to(x.dtype.element_ty), mask=inside)
    tl.store(x + places + HALF, (a * s + b * c).to(x.dtype.element_ty), mask=inside)


def rotate_in_place(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the queries and keys of x [T, 3, H, K], which is contiguous; cos and sin [T, K/2], K a power of two."""
    tokens, _, heads, width = x.shape
    sizes = {"HEADS": heads, "PADDED": triton.next_power_of_2(2 * heads), "HALF": width // 2}
    rotate_token[(tokens,)](x, cos.contiguous(), sin.contiguous(), **sizes, num_warps=2)


@torch.library.custom_op("chumoku::compute_once", mutates_args=())
def compute_once(table: Tensor) -> Tensor:
    """A copy. The compiler cannot look inside, so it stores the table instead of computing it again in every layer."""
    return table.clone()


@compute_once.register_fake
def _(table):
    return torch.empty_like(table)
