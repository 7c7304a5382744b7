"""Self-attention of a packed row on a GPU, from the input of its projections to its heads, for training.

    [Q K V] = x W + b,   Q and K rotated,   O = softmax(Q Kᵀ / √d) V within each sequence

Queries, keys and values stay in one tensor [T, 3, H, K], as does their gradient, and both are rotated in place: nothing
is split, copied or joined between the matrix products.
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
    ranges: Tensor,
    heads: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output [T, H, K], log-sums [T, H], and queries, keys and values [T, 3, H, K] of x [T, D]; W is [3HK, D]."""
    joined = F.linear(x, weight, bias).view(len(x), 3, heads, -1)
    if cos is not None:
        rotate_in_place(joined, cos, sin)
    output, log_sums = attend_rows(*joined.unbind(1), numbers, numbers, ranges, causal)
    return output, log_sums, joined


@attend_joined_tiles.register_fake
def _(x, weight, bias, cos, sin, numbers, ranges, heads, causal):
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
    ranges: Tensor,
    causal: bool,
) -> Tensor:
    """The gradient of x W + b, in one tensor [T, 3, H, K]."""
    found = torch.empty_like(joined)
    packing = (numbers, numbers, ranges, ranges)
    differentiate_rows(found.unbind(1), gradient, output, log_sums, *joined.unbind(1), packing, causal)
    if cos is not None:
        rotate_in_place(found, cos, sin, inverse=True)
    return found


@differentiate_joined.register_fake
def _(gradient, output, log_sums, joined, cos, sin, numbers, ranges, causal):
    return joined.new_empty(joined.shape)


def _save_for_backward(ctx, inputs, output) -> None:
    x, weight, bias, cos, sin, numbers, ranges, _, ctx.causal = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight, *output, cos, sin, numbers, ranges)


def _backward(ctx, gradient: Tensor, *_):
    x, weight, *saved = ctx.saved_tensors
    found = differentiate_joined(gradient, *saved, ctx.causal).flatten(1)
    return found @ weight, found.T @ x, found.sum(0) if ctx.biased else None, *(None,) * 6


attend_joined_tiles.register_autograd(_backward, setup_context=_save_for_backward)
