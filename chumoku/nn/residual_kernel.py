"""Residual sum, dropout and RMSNorm on a GPU, in one Triton kernel, for training.

    forward     x = x₀ + m ⊙ f,   y = γ x / √(mean(x²) + ε),   and r = 1 / √(mean(x²) + ε) of each row
    backward    dx₀ = dx + r (γ dy − n mean(γ dy ⊙ n)),   df = m ⊙ dx₀,   dγ = Σ dy ⊙ n over all rows,   n = r x

The mask m is 0 with probability p, else 1 / (1 − p). It is not stored: the backward pass draws it again from its seed,
16 random bits for each number, so p is a multiple of 2⁻¹⁶.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from chumoku.nn.dropout_kernel import STEPS

ROWS = 2  # that a program computes together
PROGRAMS = 132 * 8  # of the backward pass; each computes its part of dγ


@triton.jit
def draw_factors(seed, row, dropped, scale, ROWS: tl.constexpr, PADDED: tl.constexpr):
    """The mask of these rows [ROWS, PADDED]. One call of Philox gives 128 bits, for eight neighbors."""
    groups = row[:, None] * (PADDED // 8) + tl.arange(0, PADDED // 8)[None, :]
    a, b, c, d = tl.randint4x(tl.load(seed), groups)
    words = tl.join(tl.join(a, b), tl.join(c, d))
    bits = tl.join(words & 0xFFFF, (words >> 16) & 0xFFFF).to(tl.int32)
    return tl.where(tl.reshape(bits, [ROWS, PADDED]) >= dropped, scale, 0.0)


@triton.jit
def add_rows(
    x, f, gamma, seed, total, y, roots, rows, dropped, scale, epsilon,
    DROPS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, PADDED)
    inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
    places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
    added = tl.load(f + places, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        added *= draw_factors(seed, row, dropped, scale, ROWS, PADDED)
    stored = (tl.load(x + places, mask=inside, other=0.0).to(tl.float32) + added).to(total.dtype.element_ty)
    tl.store(total + places, stored, mask=inside)
    values = stored.to(tl.float32)
    root = 1 / tl.sqrt(tl.sum(values * values, 1) / WIDTH + epsilon)
    factor = tl.load(gamma + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    result = values * root[:, None] * factor[None, :]
    tl.store(y + places, result.to(y.dtype.element_ty), mask=inside)
    tl.store(roots + row, root, mask=row < rows)


@triton.jit
def differentiate_rows(
    total, gamma, seed, roots, total_gradient, y_gradient, x_gradient, f_gradient, gamma_parts, rows, dropped, scale,
    DROPS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, PADDED)
    factor = tl.load(gamma + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    part = tl.zeros([ROWS, PADDED], tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
        places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
        root = tl.load(roots + row, mask=row < rows, other=0.0)[:, None]
        n = tl.load(total + places, mask=inside, other=0.0).to(tl.float32) * root
        dy = tl.load(y_gradient + places, mask=inside, other=0.0).to(tl.float32)
        dx = tl.load(total_gradient + places, mask=inside, other=0.0).to(tl.float32)
        change = dy * factor[None, :]
        mean = tl.sum(change * n, 1) / WIDTH
        dx += root * (change - n * mean[:, None])
        tl.store(x_gradient + places, dx.to(x_gradient.dtype.element_ty), mask=inside)
        if DROPS:
            df = dx * draw_factors(seed, row, dropped, scale, ROWS, PADDED)
            tl.store(f_gradient + places, df.to(f_gradient.dtype.element_ty), mask=inside)
        part += dy * n
    tl.store(gamma_parts + tl.program_id(0) * WIDTH + columns, tl.sum(part, 0), mask=columns < WIDTH)


def _sizes(width: int, dropped: int) -> dict[str, int]:
    padded = max(8, triton.next_power_of_2(width))
    sizes = {"DROPS": dropped > 0, "WIDTH": width, "PADDED": padded, "ROWS": ROWS}
    return sizes | {"num_warps": min(16, max(4, padded // 128))}


def _scale(dropped: int) -> float:
    return STEPS / max(1, STEPS - dropped)


@torch.library.custom_op("chumoku::add_norm", mutates_args=())
def add_norm_rows(
    x: Tensor, f: Tensor, gamma: Tensor, seed: Tensor, dropped: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x + dropout(f), its RMSNorm and r: x and f [N, D], r [N]; p = dropped / STEPS."""
    x, f, (rows, width) = x.contiguous(), f.contiguous(), x.shape
    total, y, roots = torch.empty_like(x), torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)
    arguments = (x, f, gamma, seed, total, y, roots, rows, dropped, _scale(dropped), epsilon)
    add_rows[(triton.cdiv(rows, ROWS),)](*arguments, **_sizes(width, dropped))
    return total, y, roots


@add_norm_rows.register_fake
def _(x, f, gamma, seed, dropped, epsilon):
    return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(x.shape[0], dtype=torch.float32)


@torch.library.custom_op("chumoku::add_norm_backward", mutates_args=())
def differentiate_add_norm(
    total: Tensor,
    gamma: Tensor,
    seed: Tensor,
    roots: Tensor,
    total_gradient: Tensor,
    y_gradient: Tensor,
    dropped: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx; df, which is empty without dropout, where it equals dx; and dγ as parts to be summed [PROGRAMS, D]."""
    gradients, (rows, width) = (total_gradient.contiguous(), y_gradient.contiguous()), total.shape
    x_gradient, f_gradient, parts = _empty_gradients(total, dropped)
    found = (x_gradient, f_gradient, parts, rows, dropped, _scale(dropped))
    arguments = (total.contiguous(), gamma, seed, roots, *gradients, *found)
    differentiate_rows[(PROGRAMS,)](*arguments, **_sizes(width, dropped))
    return x_gradient, f_gradient, parts


@differentiate_add_norm.register_fake
def _(total, gamma, seed, roots, total_gradient, y_gradient, dropped):
    return _empty_gradients(total, dropped)


def _empty_gradients(total: Tensor, dropped: int) -> tuple[Tensor, Tensor, Tensor]:
    f_gradient = total.new_empty(total.shape if dropped else (0, total.shape[1]))
    return total.new_empty(total.shape), f_gradient, total.new_empty((PROGRAMS, total.shape[1]), dtype=torch.float32)


def _save_for_backward(ctx, inputs, output) -> None:
    _, _, gamma, seed, ctx.dropped, _ = inputs
    total, _, roots = output
    ctx.save_for_backward(total, gamma, seed, roots)


def _backward(ctx, total_gradient: Tensor, y_gradient: Tensor, _):
    found = differentiate_add_norm(*ctx.saved_tensors, total_gradient, y_gradient, ctx.dropped)
    x_gradient, f_gradient, parts = found
    gamma_gradient = parts.sum(0).to(ctx.saved_tensors[1].dtype)
    return x_gradient, f_gradient if ctx.dropped else x_gradient, gamma_gradient, None, None, None


add_norm_rows.register_autograd(_backward, setup_context=_save_for_backward)
