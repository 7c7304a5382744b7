"""Rotary positions of joined queries, keys and values on a GPU, in Triton: [T, 3, H, K] → [T, 3, H, K].

queries and keys    (a, b) → (a cos − b sin, a sin + b cos) for the elements i and i + K/2, at the token's angles
values              unchanged
backward            the same with −sin
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rotate_token(x, cos, sin, y, HEADS: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr, INVERSE: tl.constexpr):
    """All heads of one token, as pairs [3 · H, K/2]."""
    token = tl.program_id(0).to(tl.int64)
    heads, pairs = tl.arange(0, PADDED), tl.arange(0, HALF)
    c = tl.load(cos + token * HALF + pairs).to(tl.float32)[None, :]
    s = tl.load(sin + token * HALF + pairs).to(tl.float32)[None, :]
    if INVERSE:
        s = -s
    turned = (heads < 2 * HEADS)[:, None]
    c, s = tl.where(turned, c, 1.0), tl.where(turned, s, 0.0)
    places = token * 6 * HEADS * HALF + heads[:, None] * 2 * HALF + pairs[None, :]
    inside = (heads < 3 * HEADS)[:, None] & (pairs < HALF)[None, :]
    a = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + places + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + places, (a * c - b * s).to(y.dtype.element_ty), mask=inside)
    tl.store(y + places + HALF, (a * s + b * c).to(y.dtype.element_ty), mask=inside)


@torch.library.custom_op("chumoku::rotate_joined", mutates_args=())
def rotate_joined(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """x [T, 3, H, K] with rotated queries and keys; cos and sin [T, K/2], K a power of two."""
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    y, (tokens, _, heads, width) = torch.empty_like(x), x.shape
    sizes = {"HEADS": heads, "PADDED": triton.next_power_of_2(3 * heads), "HALF": width // 2}
    rotate_token[(tokens,)](x, cos, sin, y, **sizes, INVERSE=inverse, num_warps=2)
    return y


@rotate_joined.register_fake
def _(x, cos, sin, inverse):
    return x.new_empty(x.shape)


def _save_for_backward(ctx, inputs, output) -> None:
    _, cos, sin, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx, gradient: Tensor):
    return rotate_joined(gradient, *ctx.saved_tensors, not ctx.inverse), None, None, None


rotate_joined.register_autograd(_backward, setup_context=_save_for_backward)


@torch.library.custom_op("chumoku::compute_once", mutates_args=())
def compute_once(table: Tensor) -> Tensor:
    """A copy. The compiler cannot look inside, so it stores the table instead of computing it again in every layer."""
    return table.clone()


@compute_once.register_fake
def _(table):
    return torch.empty_like(table)
