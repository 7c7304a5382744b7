"""Attention of a packed row on a GPU with joined projections, for training.

    self-attention     [Q K V] = x W + b in one tensor [T, 3, H, K],   Q and K rotated in place
    cross-attention    Q [T, H, K],   [K V] in one tensor [S, 2, H, K]
    both               O = softmax(Q Kᵀ / √d) V within each sequence

Gradients have the same form as their tensors, so nothing is split, copied or joined between the matrix products.
"""

# mypy: ignore-errors
# `custom_op` and `register_autograd` are not typed.
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.nn.packed_kernels import attend_rows, differentiate_rows
from chumoku.nn.rotary_kernel import rotate_in_place


@torch.library.custom_op("chumoku::attend_joined", mutates_args=())
def attend_joined_tiles(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    numbers: Tensor,
    tiles: Tensor,
    heads: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output [T, H, K], log-sums [T, H], and queries, keys and values [T, 3, H, K] of x [T, D]; W is [3HK, D]."""
    joined = F.linear(x, weight, bias).view(len(x), 3, heads, -1)
    if cos is not None:
        rotate_in_place(joined, cos, sin)
    output, log_sums = attend_rows(*joined.unbind(1), (numbers, numbers), tiles, causal)
    return output, log_sums, joined


@attend_joined_tiles.register_fake
def _(x, weight, bias, cos, sin, numbers, tiles, heads, causal):
    tokens, width = x.shape[0], weight.shape[0] // (3 * heads)
    output, log_sums = x.new_empty((tokens, heads, width)), x.new_empty((tokens, heads), dtype=torch.float32)
    return output, log_sums, x.new_empty((tokens, 3, heads, width))


@torch.library.custom_op("chumoku::attend_joined_backward", mutates_args=())
def differentiate_joined(
    gradient: Tensor,
    output: Tensor,
    log_sums: Tensor,
    joined: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    numbers: Tensor,
    tiles: Tensor,
    causal: bool,
) -> Tensor:
    """The gradient of x W + b, in one tensor [T, 3, H, K]."""
    found, angles = torch.empty_like(joined), None if cos is None else (cos.contiguous(), sin.contiguous())
    rows = (*joined.unbind(1), (numbers, numbers), tiles, causal, angles)
    differentiate_rows(found.unbind(1), gradient, output, log_sums, *rows)
    return found


@differentiate_joined.register_fake
def _(gradient, output, log_sums, joined, cos, sin, numbers, tiles, causal):
    return joined.new_empty(joined.shape)


def _save_for_backward(ctx, inputs, output) -> None:
    x, weight, bias, cos, sin, numbers, tiles, _, ctx.causal = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight, *output, cos, sin, numbers, tiles)


def _backward(ctx, gradient: Tensor, *_):
    x, weight, *saved = ctx.saved_tensors
    found = differentiate_joined(gradient, *saved, ctx.causal).flatten(1)
    return found @ weight, found.T @ x, found.sum(0) if ctx.biased else None, *(None,) * 6


attend_joined_tiles.register_autograd(_backward, setup_context=_save_for_backward)


@torch.library.custom_op("chumoku::attend_joined_source", mutates_args=())
def attend_source_tiles(
    query: Tensor, joined: Tensor, query_numbers: Tensor, key_numbers: Tensor, tiles: Tensor
) -> tuple[Tensor, Tensor]:
    """The output [T, H, K] and log-sums [T, H] of queries [T, H, K], and keys and values [S, 2, H, K]."""
    return attend_rows(query, *joined.unbind(1), (query_numbers, key_numbers), tiles, False)


@attend_source_tiles.register_fake
def _(query, joined, query_numbers, key_numbers, tiles):
    return query.new_empty(query.shape), query.new_empty(query.shape[:2], dtype=torch.float32)


@torch.library.custom_op("chumoku::attend_joined_source_backward", mutates_args=())
def differentiate_source(
    gradient: Tensor,
    output: Tensor,
    log_sums: Tensor,
    query: Tensor,
    joined: Tensor,
    query_numbers: Tensor,
    key_numbers: Tensor,
    tiles: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of the queries, and of the keys and values."""
    gradients = query.new_empty(query.shape), joined.new_empty(joined.shape)
    parts, rows = (gradients[0], *gradients[1].unbind(1)), (query, *joined.unbind(1), (query_numbers, key_numbers))
    differentiate_rows(parts, gradient, output, log_sums, *rows, tiles, False)
    return gradients


@differentiate_source.register_fake
def _(gradient, output, log_sums, query, joined, query_numbers, key_numbers, tiles):
    return query.new_empty(query.shape), joined.new_empty(joined.shape)


def _save_source(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output, *inputs)


def _differentiate_source(ctx, gradient: Tensor, _):
    return (*differentiate_source(gradient, *ctx.saved_tensors), None, None, None)


attend_source_tiles.register_autograd(_differentiate_source, setup_context=_save_source)
