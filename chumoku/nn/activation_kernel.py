"""Activations of a feed-forward on a GPU, for training: h = f(z + b), z = x W.

    relu        f(x) = max(x, 0)           computed by the matrix product before it stores its result
    gelu        f(x) = x Φ(x)              in Triton
    gelu_tanh   f(x) = x σ(2u),  u = √(2/π) (x + 0.044715 x³)

    backward    dz = dh f′(z + b),   db = Σ dz over all rows, in the same pass; ReLU's slope is that of h

PyTorch's compiler needs another pass for ReLU and for db.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

KINDS = ("relu", "gelu", "gelu_tanh")
ROWS, COLUMNS = 16, 256  # that a program computes together
PROGRAMS = 132 * 2  # each computes its part of db


@triton.jit
def tanh_share(x):
    """σ(2u) = f(x) / x of gelu_tanh; written as 1 / (1 + e^-2u), it would take a GPU twice as many operations."""
    root = tl.rsqrt(1 + tl.exp2(x * (-2.302208198144325 - 0.1029432395800235 * x * x)))
    return root * root


@triton.jit
def activate_block(x, KIND: tl.constexpr):
    if KIND == "gelu":
        return x * 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    return x * tanh_share(x)


@triton.jit
def slope(x, KIND: tl.constexpr):
    """f′(x)"""
    if KIND == "relu":
        return tl.where(x > 0, 1.0, 0.0)
    if KIND == "gelu":
        density = 0.3989422804014327 * tl.exp2(-0.7213475204444817 * x * x)
        return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * density
    share = tanh_share(x)
    return share + (share - share * share) * (x * (1.5957691216057308 + 0.21406444881780076 * x * x))


@triton.jit
def activate_rows(
    z, bias, hidden, rows, WIDTH: tl.constexpr, KIND: tl.constexpr, BIASED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
    places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
    x = tl.load(z + places, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        x += tl.load(bias + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)[None, :]
    tl.store(hidden + places, activate_block(x, KIND).to(hidden.dtype.element_ty), mask=inside)


@triton.jit
def differentiate_rows(
    z, bias, gradient, z_gradient, parts, rows, WIDTH: tl.constexpr, KIND: tl.constexpr, BIASED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in tl.range(tl.program_id(1), tl.cdiv(rows, ROWS), tl.num_programs(1), num_stages=3):
        row = block * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
        places = row[:, None].to(tl.int64) * WIDTH + columns[None, :]
        x = tl.load(z + places, mask=inside, other=0.0).to(tl.float32)
        if BIASED:
            x += tl.load(bias + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)[None, :]
        change = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32) * slope(x, KIND)
        tl.store(z_gradient + places, change.to(z_gradient.dtype.element_ty), mask=inside)
        part += change
    tl.store(parts + tl.program_id(1) * WIDTH + columns, tl.sum(part, 0), mask=columns < WIDTH)


def _sizes(width: int, bias: Tensor | None, kind: str) -> dict[str, object]:
    return {"WIDTH": width, "KIND": kind, "BIASED": bias is not None, "ROWS": ROWS, "COLUMNS": COLUMNS}


@torch.library.custom_op("chumoku::activate", mutates_args=())
def activate(z: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """f(z + b): z [N, F], b [F]; `kind` is gelu or gelu_tanh."""
    z, (rows, width) = z.contiguous(), z.shape
    hidden, grid = torch.empty_like(z), (triton.cdiv(width, COLUMNS), triton.cdiv(rows, ROWS))
    activate_rows[grid](z, z if bias is None else bias, hidden, rows, **_sizes(width, bias, kind), num_warps=4)
    return hidden


@activate.register_fake
def _(z, bias, kind):
    return z.new_empty(z.shape)


@torch.library.custom_op("chumoku::activate_backward", mutates_args=())
def differentiate_activation(z: Tensor, bias: Tensor | None, gradient: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """dz, and db as parts to be summed [P, F]."""
    z, gradient, (rows, width) = z.contiguous(), gradient.contiguous(), z.shape
    z_gradient, parts = torch.empty_like(z), z.new_empty(_shape_of_parts(z), dtype=torch.float32)
    grid = (triton.cdiv(width, COLUMNS), len(parts))
    arguments = (z, z if bias is None else bias, gradient, z_gradient, parts, rows)
    differentiate_rows[grid](*arguments, **_sizes(width, bias, kind), num_warps=4)
    return z_gradient, parts


@differentiate_activation.register_fake
def _(z, bias, gradient, kind):
    return z.new_empty(z.shape), z.new_empty(_shape_of_parts(z), dtype=torch.float32)


def _shape_of_parts(z: Tensor) -> tuple[int, int]:
    width = z.shape[1]
    return max(1, PROGRAMS // triton.cdiv(width, COLUMNS)), width


def _save_activation(ctx, inputs, output) -> None:
    z, bias, ctx.kind = inputs
    ctx.save_for_backward(z, bias)


def _differentiate_activation(ctx, gradient: Tensor):
    z, bias = ctx.saved_tensors
    z_gradient, parts = differentiate_activation(z, bias, gradient, ctx.kind)
    return z_gradient, None if bias is None else parts.sum(0).to(bias.dtype), None


activate.register_autograd(_differentiate_activation, setup_context=_save_activation)


@torch.library.custom_op("chumoku::linear_relu", mutates_args=())
def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """max(x W + b, 0): x [N, D], weight [F, D], b [F]."""
    bias = x.new_zeros(weight.shape[0]) if bias is None else bias  # without one, ReLU would be another pass
    return torch._addmm_activation(bias, x, weight.T)


@linear_relu.register_fake
def _(x, weight, bias):
    return x.new_empty((x.shape[0], weight.shape[0]))


def _save_relu(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, output)


def _differentiate_relu(ctx, gradient: Tensor):
    x, weight, bias, hidden = ctx.saved_tensors
    if bias is None:
        z_gradient, bias_gradient = gradient * (hidden > 0), None  # the compiler's kernel is faster: 142 and 157 µs
    else:
        z_gradient, parts = differentiate_activation(hidden, None, gradient, "relu")
        bias_gradient = parts.sum(0).to(bias.dtype)
    return z_gradient @ weight, z_gradient.T @ x, bias_gradient


linear_relu.register_autograd(_differentiate_relu, setup_context=_save_relu)


def linear_activation(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """f(x W + b): x [N, D], weight [F, D], b [F]; `kind` is one of KINDS."""
    if kind == "relu":
        return linear_relu(x, weight, bias)
    return activate(x @ weight.T, bias, kind)
