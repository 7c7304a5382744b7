"""RMSNorm on a GPU, in Triton, for training: n = x / √(mean(x²) + ε), y = γ n.

    forward     y, and r = 1 / √(mean(x²) + ε) of each row
    backward    dx = r (γ dy − n mean(γ dy ⊙ n)),   dγ = Σ dy ⊙ n over all rows

PyTorch's compiler computes dx and dγ together, but 3 to 4 times slower than the numbers can be read.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4  # that a program computes together
PROGRAMS = 132 * 8  # each computes its part of dγ


@triton.jit
def normalize_rows(x, gamma, y, roots, rows, epsilon, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    row, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, PADDED)
    inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
    places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
    values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    root = 1 / tl.sqrt(tl.sum(values * values, 1) / WIDTH + epsilon)
    factor = tl.load(gamma + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    result = values * root[:, None] * factor[None, :]
    tl.store(y + places, result.to(y.dtype.element_ty), mask=inside)
    tl.store(roots + row, root, mask=row < rows)


@triton.jit
def differentiate_rows(
    x, gamma, roots, gradient, x_gradient, gamma_parts, rows,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, PADDED)
    factor = tl.load(gamma + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    part = tl.zeros([PADDED], tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
        places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
        root = tl.load(roots + row, mask=row < rows, other=0.0)[:, None]
        n = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) * root
        dy = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
        change = dy * factor[None, :]
        mean = tl.sum(change * n, 1) / WIDTH
        result = root * (change - n * mean[:, None])
        tl.store(x_gradient + places, result.to(x_gradient.dtype.element_ty), mask=inside)
        part += tl.sum(dy * n, 0)
    tl.store(gamma_parts + tl.program_id(0) * WIDTH + columns, part, mask=columns < WIDTH)


def _sizes(width: int) -> dict[str, int]:
    padded = triton.next_power_of_2(width)
    return {"WIDTH": width, "PADDED": padded, "ROWS": ROWS, "num_warps": 4 if padded <= 1024 else 16}


@torch.library.custom_op("chumoku::rms_norm", mutates_args=())
def rms_norm_rows(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of x [N, D], and r [N]."""
    x, (rows, width) = x.contiguous(), x.shape
    y, roots = torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)
    normalize_rows[(triton.cdiv(rows, ROWS),)](x, gamma, y, roots, rows, epsilon, **_sizes(width))
    return y, roots


@rms_norm_rows.register_fake
def _(x, gamma, epsilon):
    return x.new_empty(x.shape), x.new_empty(x.shape[0], dtype=torch.float32)


@torch.library.custom_op("chumoku::rms_norm_backward", mutates_args=())
def differentiate_norm(x: Tensor, gamma: Tensor, roots: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """dx, and dγ as parts to be summed [PROGRAMS, D]."""
    x, gradient, (rows, width) = x.contiguous(), gradient.contiguous(), x.shape
    x_gradient, parts = torch.empty_like(x), x.new_empty((PROGRAMS, width), dtype=torch.float32)
    differentiate_rows[(PROGRAMS,)](x, gamma, roots, gradient, x_gradient, parts, rows, **_sizes(width))
    return x_gradient, parts


@differentiate_norm.register_fake
def _(x, gamma, roots, gradient):
    return x.new_empty(x.shape), x.new_empty((PROGRAMS, x.shape[1]), dtype=torch.float32)


def _save_for_backward(ctx, inputs, output) -> None:
    x, gamma, _ = inputs
    ctx.save_for_backward(x, gamma, output[1])


def _backward(ctx, gradient: Tensor, _):
    x_gradient, parts = differentiate_norm(*ctx.saved_tensors, gradient)
    return x_gradient, parts.sum(0).to(ctx.saved_tensors[1].dtype), None


rms_norm_rows.register_autograd(_backward, setup_context=_save_for_backward)
