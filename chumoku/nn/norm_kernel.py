"""Residual sum, dropout and norm on a GPU, in one Triton kernel, for training; and RMSNorm alone.

    forward     x = x₀ + m ⊙ (f + b),   y = γ n + β,   n = r (x − μ),   r = 1 / √(mean((x − μ)²) + ε) of each row
    backward    dx₀ = dx + r (g − mean(g) − n mean(g ⊙ n)),   g = γ dy,   df = m ⊙ dx₀,
                dγ = Σ dy ⊙ n,   dβ = Σ dy,   db = Σ df over all rows

RMSNorm has no β, μ = 0, and no mean(g); alone, x = x₀ and dx = 0. b is the bias of the product f; without it here, db
would be another pass over df. The mask m is 0 with probability p, else 1 / (1 − p). It is not stored: the backward pass
draws it again from its seed, 16 random bits for each number, so p is a multiple of 2⁻¹⁶.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from chumoku.nn.dropout_kernel import STEPS


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
    ADDS: tl.constexpr, BIASED: tl.constexpr, CENTERED: tl.constexpr, SHIFTED: tl.constexpr, DROPS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, PADDED)
    inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
    places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
    values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        added = tl.load(f + places, mask=inside, other=0.0).to(tl.float32) + load_vector(bias, columns, BIASED, WIDTH)
        if DROPS:
            added *= draw_factors(seed, row, dropped, scale, ROWS, PADDED)
        stored = (values + added).to(total.dtype.element_ty)
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
    ADDS: tl.constexpr, BIASED: tl.constexpr, CENTERED: tl.constexpr, SHIFTED: tl.constexpr, DROPS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, PADDED)
    factor = load_vector(gamma, columns, True, WIDTH)
    gamma_part = tl.zeros([PADDED], tl.float32)
    beta_part, bias_part = gamma_part, gamma_part
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = block * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
        places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
        n = tl.load(total + places, mask=inside, other=0.0).to(tl.float32)
        if CENTERED:
            n -= tl.load(means + row, mask=row < rows, other=0.0)[:, None]
        root = tl.load(roots + row, mask=row < rows, other=0.0)[:, None]
        n *= root
        dy = tl.load(y_gradient + places, mask=inside, other=0.0).to(tl.float32)
        change = dy * factor
        mean = tl.sum(change * n, 1) / WIDTH
        if CENTERED:
            change -= (tl.sum(change, 1) / WIDTH)[:, None]
        dx = root * (change - n * mean[:, None])
        if ADDS:
            dx += tl.load(total_gradient + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(x_gradient + places, dx.to(x_gradient.dtype.element_ty), mask=inside)
        if DROPS:
            dx *= draw_factors(seed, row, dropped, scale, ROWS, PADDED)
            tl.store(f_gradient + places, dx.to(f_gradient.dtype.element_ty), mask=inside)
        gamma_part += tl.sum(dy * n, 0)
        if SHIFTED:
            beta_part += tl.sum(dy, 0)
        if BIASED:
            bias_part += tl.sum(dx, 0)
    parts += tl.program_id(0) * (1 + SHIFTED + BIASED) * WIDTH + columns
    tl.store(parts, gamma_part, mask=columns < WIDTH)
    if SHIFTED:
        tl.store(parts + WIDTH, beta_part, mask=columns < WIDTH)
    if BIASED:
        tl.store(parts + (1 + SHIFTED) * WIDTH, bias_part, mask=columns < WIDTH)


def _pad(width: int) -> int:
    return max(8, triton.next_power_of_2(width))


def _programs(width: int) -> int:
    """How many programs the backward pass has: as many as run at once. Each computes its part of dγ, dβ and db."""
    per_multiprocessor = {512: 4, 1024: 3, 2048: 2}
    padded = _pad(width)
    return 132 * per_multiprocessor.get(padded, 8 if padded < 512 else 1)


def _rows(width: int) -> int:
    """How many rows a program computes together."""
    padded = _pad(width)
    if padded < 256:
        return min(16, 1024 // padded)
    return 2 if padded <= 4096 else 1


def _sizes(width: int, dropped: int) -> dict[str, int]:
    padded = _pad(width)
    # Each warp has columns of its own, so that sums over rows need no exchange between warps.
    warps = min(16, max(1, padded // 256))
    return {"DROPS": dropped > 0, "WIDTH": width, "PADDED": padded, "ROWS": _rows(width), "num_warps": warps}


def _stages(width: int) -> int:
    """How many blocks of rows the backward pass has: the one it computes, and those it loads ahead to shared memory."""
    return 3 if _pad(width) <= 8192 else 1  # with rows of up to 8,192, 98,464 bytes of the 101,376 that small GPUs have


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
    kinds = {"ADDS": True, "CENTERED": centered, "SHIFTED": beta is not None, "BIASED": bias is not None}
    vectors = (gamma if bias is None else bias, gamma, gamma if beta is None else beta)
    arguments = (x, f, *vectors, seed, total, y, means, roots, rows, dropped, _scale(dropped), epsilon)
    add_rows[(triton.cdiv(rows, _rows(width)),)](*arguments, **kinds, **_sizes(width, dropped))
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
    """dx; df, which is empty without dropout, where it equals dx; and parts of dγ, dβ, db [P, 1 to 3, D]."""
    gradients, (rows, width) = (total_gradient.contiguous(), y_gradient.contiguous()), total.shape
    kinds = {"ADDS": True, "CENTERED": centered, "SHIFTED": shifted, "BIASED": biased, "STAGES": _stages(width)}
    found = _empty_gradients(total, gamma, dropped, 1 + shifted + biased)
    arguments = (total.contiguous(), gamma, seed, means, roots, *gradients, *found, rows, dropped, _scale(dropped))
    differentiate_rows[(len(found[2]),)](*arguments, **kinds, **_sizes(width, dropped))
    return found


@differentiate_add_norm.register_fake
def _(total, gamma, seed, means, roots, total_gradient, y_gradient, dropped, centered, shifted, biased):
    return _empty_gradients(total, gamma, dropped, 1 + shifted + biased)


def _empty_gradients(total: Tensor, gamma: Tensor, dropped: int, vectors: int) -> tuple[Tensor, Tensor, Tensor]:
    width = len(gamma)  # a number where the compiler takes the width of `total` for a variable
    f_gradient = total.new_empty(total.shape if dropped else (0, width))
    parts = total.new_empty((_programs(width), vectors, width), dtype=torch.float32)
    return total.new_empty(total.shape), f_gradient, parts


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


RMS_NORM_ALONE = {"ADDS": False, "CENTERED": False, "SHIFTED": False, "BIASED": False}


@torch.library.custom_op("chumoku::rms_norm", mutates_args=())
def rms_norm_rows(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of x [N, D], and r [N]."""
    x, (rows, width) = x.contiguous(), x.shape
    found = y, roots = torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)
    # Pointers of parts that are switched off are never read: f, the bias, β, the seed, the sum and μ.
    arguments = (x, x, gamma, gamma, gamma, roots, y, y, roots, roots, rows, 0, 1.0, epsilon)
    add_rows[(triton.cdiv(rows, _rows(width)),)](*arguments, **RMS_NORM_ALONE, **_sizes(width, 0))
    return found


@rms_norm_rows.register_fake
def _(x, gamma, epsilon):
    return x.new_empty(x.shape), x.new_empty(x.shape[0], dtype=torch.float32)


@torch.library.custom_op("chumoku::rms_norm_backward", mutates_args=())
def differentiate_norm(x: Tensor, gamma: Tensor, roots: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """dx, and dγ as parts to be summed [P, D]."""
    x, gradient, (rows, width) = x.contiguous(), gradient.contiguous(), x.shape
    found = x_gradient, parts = _empty_norm_gradients(x, gamma)
    arguments = (x, gamma, roots, roots, roots, gradient, gradient, x_gradient, x_gradient, parts, rows, 0, 1.0)
    kinds = {**RMS_NORM_ALONE, "STAGES": _stages(width)}
    differentiate_rows[(len(parts),)](*arguments, **kinds, **_sizes(width, 0))
    return found


@differentiate_norm.register_fake
def _(x, gamma, roots, gradient):
    return _empty_norm_gradients(x, gamma)


def _empty_norm_gradients(x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((_programs(len(gamma)), len(gamma)), dtype=torch.float32)


def _save_norm(ctx, inputs, output) -> None:
    x, gamma, _ = inputs
    ctx.save_for_backward(x, gamma, output[1])


def _differentiate_saved_norm(ctx, gradient: Tensor, _):
    x_gradient, parts = differentiate_norm(*ctx.saved_tensors, gradient)
    return x_gradient, parts.sum(0).to(ctx.saved_tensors[1].dtype), None


rms_norm_rows.register_autograd(_differentiate_saved_norm, setup_context=_save_norm)
