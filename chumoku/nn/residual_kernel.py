"""Residual sum, dropout and norm on a GPU, in one Triton kernel, for training.

    forward     x = x₀ + m ⊙ (f + b),   y = γ n + β,   n = r (x − μ),   r = 1 / √(mean((x − μ)²) + ε) of each row
    backward    dx₀ = dx + r (g − mean(g) − n mean(g ⊙ n)),   g = γ dy,   df = m ⊙ dx₀,
                dγ = Σ dy ⊙ n,   dβ = Σ dy,   db = Σ df over all rows

RMSNorm has no β, μ = 0, and no mean(g). b is the bias of the product f; without it here, db would be another pass over
df. The mask m is 0 with probability p, else 1 / (1 − p). It is not stored: the backward pass draws it again from its
seed, 16 random bits for each number, so p is a multiple of 2⁻¹⁶.
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
PROGRAMS = 132 * 8  # of the backward pass; each computes its part of dγ, dβ and db


@triton.jit
def draw_factors(seed, row, dropped, scale, ROWS: tl.constexpr, PADDED: tl.constexpr):
    """The mask of these rows [ROWS, PADDED]. One call of Philox gives 128 bits, for eight neighbors."""
    groups = row[:, None] * (PADDED // 8) + tl.arange(0, PADDED // 8)[None, :]
    a, b, c, d = tl.randint4x(tl.load(seed), groups)
    words = tl.join(tl.join(a, b), tl.join(c, d))
    bits = tl.join(words & 0xFFFF, (words >> 16) & 0xFFFF).to(tl.int32)
    return tl.where(tl.reshape(bits, [ROWS, PADDED]) >= dropped, scale, 0.0)


@triton.jit
def load_vector(vector, columns, PRESENT: tl.constexpr, WIDTH: tl.constexpr):
    """A vector as one row, zeros if it is not present."""
    if PRESENT:
        return tl.load(vector + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)[None, :]
    return tl.zeros([1, columns.shape[0]], tl.float32)


@triton.jit
def add_rows(
    x, f, bias, gamma, beta, seed, total, y, means, roots, rows, dropped, scale, epsilon,
    BIASED: tl.constexpr, CENTERED: tl.constexpr, SHIFTED: tl.constexpr, DROPS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, PADDED)
    inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
    places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
    added = tl.load(f + places, mask=inside, other=0.0).to(tl.float32) + load_vector(bias, columns, BIASED, WIDTH)
    if DROPS:
        added *= draw_factors(seed, row, dropped, scale, ROWS, PADDED)
    stored = (tl.load(x + places, mask=inside, other=0.0).to(tl.float32) + added).to(total.dtype.element_ty)
    tl.store(total + places, stored, mask=inside)
    values = stored.to(tl.float32)
    if CENTERED:
        mean = tl.sum(values, 1) / WIDTH
        tl.store(means + row, mean, mask=row < rows)
        values = tl.where(inside, values - mean[:, None], 0.0)
    root = 1 / tl.sqrt(tl.sum(values * values, 1) / WIDTH + epsilon)
    factor = load_vector(gamma, columns, True, WIDTH)
    result = values * root[:, None] * factor + load_vector(beta, columns, SHIFTED, WIDTH)
    tl.store(y + places, result.to(y.dtype.element_ty), mask=inside)
    tl.store(roots + row, root, mask=row < rows)


@triton.jit
def differentiate_rows(
    total, gamma, seed, means, roots, total_gradient, y_gradient, x_gradient, f_gradient, parts, rows, dropped, scale,
    BIASED: tl.constexpr, CENTERED: tl.constexpr, SHIFTED: tl.constexpr, DROPS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, PADDED)
    factor = load_vector(gamma, columns, True, WIDTH)
    gamma_part = tl.zeros([ROWS, PADDED], tl.float32)
    beta_part, bias_part = gamma_part, gamma_part
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
        places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
        n = tl.load(total + places, mask=inside, other=0.0).to(tl.float32)
        if CENTERED:
            n -= tl.load(means + row, mask=row < rows, other=0.0)[:, None]
        root = tl.load(roots + row, mask=row < rows, other=0.0)[:, None]
        n *= root
        dy = tl.load(y_gradient + places, mask=inside, other=0.0).to(tl.float32)
        dx = tl.load(total_gradient + places, mask=inside, other=0.0).to(tl.float32)
        change = dy * factor
        mean = tl.sum(change * n, 1) / WIDTH
        if CENTERED:
            change -= (tl.sum(change, 1) / WIDTH)[:, None]
        dx += root * (change - n * mean[:, None])
        tl.store(x_gradient + places, dx.to(x_gradient.dtype.element_ty), mask=inside)
        if DROPS:
            dx *= draw_factors(seed, row, dropped, scale, ROWS, PADDED)
            tl.store(f_gradient + places, dx.to(f_gradient.dtype.element_ty), mask=inside)
        gamma_part += dy * n
        if SHIFTED:
            beta_part += dy
        if BIASED:
            bias_part += dx
    parts += tl.program_id(0) * (1 + SHIFTED + BIASED) * WIDTH + columns
    tl.store(parts, tl.sum(gamma_part, 0), mask=columns < WIDTH)
    if SHIFTED:
        tl.store(parts + WIDTH, tl.sum(beta_part, 0), mask=columns < WIDTH)
    if BIASED:
        tl.store(parts + (1 + SHIFTED) * WIDTH, tl.sum(bias_part, 0), mask=columns < WIDTH)


def _sizes(width: int, dropped: int, *, centered: bool, shifted: bool, biased: bool) -> dict[str, int]:
    padded = max(8, triton.next_power_of_2(width))
    sizes = {"DROPS": dropped > 0, "WIDTH": width, "PADDED": padded, "ROWS": ROWS}
    sizes |= {"CENTERED": centered, "SHIFTED": shifted, "BIASED": biased}
    return sizes | {"num_warps": 4 if padded <= 1024 else min(16, padded // 128)}


def _scale(dropped: int) -> float:
    return STEPS / max(1, STEPS - dropped)


@torch.library.custom_op("chumoku::add_norm", mutates_args=())
def add_norm_rows(
    x: Tensor,
    f: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    seed: Tensor,
    dropped: int,
    epsilon: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x + dropout(f + b), its norm, μ if it is `centered`, and r: x and f [N, D], μ and r [N]; p = dropped / STEPS."""
    x, f, (rows, width) = x.contiguous(), f.contiguous(), x.shape
    found = total, y, means, roots = _empty_results(x, centered=centered)
    kinds = {"centered": centered, "shifted": beta is not None, "biased": bias is not None}
    vectors = (gamma if bias is None else bias, gamma, gamma if beta is None else beta)
    arguments = (x, f, *vectors, seed, total, y, means, roots, rows, dropped, _scale(dropped), epsilon)
    add_rows[(triton.cdiv(rows, ROWS),)](*arguments, **_sizes(width, dropped, **kinds))
    return found


@add_norm_rows.register_fake
def _(x, f, bias, gamma, beta, seed, dropped, epsilon, centered):
    return _empty_results(x, centered=centered)


def _empty_results(x: Tensor, *, centered: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = x.shape[0]
    means, roots = (x.new_empty(count, dtype=torch.float32) for count in (rows if centered else 0, rows))
    return x.new_empty(x.shape), x.new_empty(x.shape), means, roots


@torch.library.custom_op("chumoku::add_norm_backward", mutates_args=())
def differentiate_add_norm(
    total: Tensor,
    gamma: Tensor,
    seed: Tensor,
    means: Tensor,
    roots: Tensor,
    total_gradient: Tensor,
    y_gradient: Tensor,
    dropped: int,
    centered: bool,
    shifted: bool,
    biased: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx; df, which is empty without dropout, where it equals dx; and parts of dγ, dβ, db [PROGRAMS, 1 to 3, D]."""
    gradients, (rows, width) = (total_gradient.contiguous(), y_gradient.contiguous()), total.shape
    kinds = {"centered": centered, "shifted": shifted, "biased": biased}
    found = _empty_gradients(total, dropped, 1 + shifted + biased)
    arguments = (total.contiguous(), gamma, seed, means, roots, *gradients, *found, rows, dropped, _scale(dropped))
    differentiate_rows[(PROGRAMS,)](*arguments, **_sizes(width, dropped, **kinds))
    return found


@differentiate_add_norm.register_fake
def _(total, gamma, seed, means, roots, total_gradient, y_gradient, dropped, centered, shifted, biased):
    return _empty_gradients(total, dropped, 1 + shifted + biased)


def _empty_gradients(total: Tensor, dropped: int, vectors: int) -> tuple[Tensor, Tensor, Tensor]:
    width = total.shape[1]
    f_gradient = total.new_empty(total.shape if dropped else (0, width))
    return total.new_empty(total.shape), f_gradient, total.new_empty((PROGRAMS, vectors, width), dtype=torch.float32)


def _save_for_backward(ctx, inputs, output) -> None:
    _, _, bias, gamma, beta, seed, ctx.dropped, _, ctx.centered = inputs
    total, _, means, roots = output
    ctx.shifted, ctx.biased = beta is not None, bias is not None
    ctx.save_for_backward(total, gamma, seed, means, roots)


def _backward(ctx, total_gradient: Tensor, y_gradient: Tensor, *_):
    kinds = (ctx.centered, ctx.shifted, ctx.biased)
    found = differentiate_add_norm(*ctx.saved_tensors, total_gradient, y_gradient, ctx.dropped, *kinds)
    x_gradient, f_gradient, parts = found
    sums = parts.sum(0).to(ctx.saved_tensors[1].dtype)
    beta_gradient, bias_gradient = sums[1] if ctx.shifted else None, sums[-1] if ctx.biased else None
    f_gradient = f_gradient if ctx.dropped else x_gradient
    return x_gradient, f_gradient, bias_gradient, sums[0], beta_gradient, None, None, None, None


add_norm_rows.register_autograd(_backward, setup_context=_save_for_backward)
