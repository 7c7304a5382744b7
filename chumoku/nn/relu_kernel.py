"""A feed-forward with ReLU on a GPU with the bulk tensor copies of Hopper or later, for training.

    forward     h = max(x U + a, 0),   y = h W + b       ReLU is computed by the product before it stores its result
    backward    dz = (dy Wᵀ) ⊙ [h > 0],   da = Σ dz over all rows      in one Triton kernel
                dx = dz Uᵀ,   dU = xᵀ dz,   dW = hᵀ dy,   db = Σ dy over all rows

PyTorch stores dy Wᵀ, and reads it again for its product with [h > 0].
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import importlib.util

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, DEPTH = 128, 128, 64  # of a block
PARTS = 4  # of a block's columns, which are stored one after another
PROGRAMS = 2  # of a multiprocessor: one computes while the other stores
OPTIONS = {"num_warps": 8, "num_stages": 3}
MULTIPLE = 8  # of sizes: rows of a tensor that is copied in blocks begin at multiples of 16 bytes
# Whether the GPU copies blocks of tensors by itself, and Triton can tell it to. Compiled code cannot ask.
BULK_COPIES = (
    importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
    and torch.cuda.is_available()
    and torch.cuda.get_device_capability() >= (9, 0)
)


@triton.jit
def halve(block):
    """The left and the right half of the columns."""
    ROWS: tl.constexpr = block.shape[0]
    HALF: tl.constexpr = block.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(block, [ROWS, 2, HALF]), [0, 2, 1]))


@triton.jit
def store_positive(hidden, result, sums, block, row, column, width, BIASED: tl.constexpr, PARTS: tl.constexpr):
    """Write the elements of a block whose hidden ones are positive, and the sums of its columns."""
    if PARTS > 1:
        left, right = halve(block)
        HALF: tl.constexpr = left.shape[1]
        store_positive(hidden, result, sums, left, row, column, width, BIASED, PARTS // 2)
        store_positive(hidden, result, sums, right, row, column + HALF, width, BIASED, PARTS // 2)
    else:
        block = tl.where(hidden.load([row, column]) > 0, block, 0.0)
        result.store([row, column], block.to(result.dtype))
        if BIASED:
            columns = column + tl.arange(0, block.shape[1])
            tl.store(sums + columns, tl.sum(block, 0), mask=columns < width)


@triton.jit
def multiply_positive(
    gradient, weight, hidden, result, sums, rows, width, depth,
    BIASED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Blocks of (dy Wᵀ) ⊙ [h > 0], and the sums of their columns [blocks of rows, F]."""
    across = tl.cdiv(width, COLUMNS)
    for number in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS) * across, tl.num_programs(0), flatten=True):
        row, column = (number // across) * ROWS, (number % across) * COLUMNS
        block = tl.zeros([ROWS, COLUMNS], tl.float32)
        for place in range(0, depth, DEPTH):
            block = tl.dot(gradient.load([row, place]), weight.load([place, column]), block)
        store_positive(hidden, result, sums + number // across * width, block, row, column, width, BIASED, PARTS)


@torch.library.custom_op("chumoku::multiply_positive", mutates_args=())
def multiply_where_positive(gradient: Tensor, weight: Tensor, hidden: Tensor, biased: bool) -> tuple[Tensor, Tensor]:
    """dz = (dy Wᵀ) ⊙ [h > 0], and da as parts to be summed [P, F]: dy [N, D], weight [D, F], h [N, F]."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    (rows, width), depth = hidden.shape, len(weight)
    result = torch.empty_like(hidden)
    parts = _empty_parts(hidden, biased=biased)
    blocks = [ROWS, COLUMNS // PARTS]
    descriptors = [
        TensorDescriptor.from_tensor(tensor.contiguous(), shape)
        for tensor, shape in (
            (gradient, [ROWS, DEPTH]),
            (weight, [DEPTH, COLUMNS]),
            (hidden, blocks),
            (result, blocks),
        )
    ]
    sizes = {"BIASED": biased, "ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": DEPTH, "PARTS": PARTS}
    programs = min(_programs(hidden.device), triton.cdiv(rows, ROWS) * triton.cdiv(width, COLUMNS))
    multiply_positive[(programs,)](*descriptors, parts, rows, width, depth, **sizes, **OPTIONS)
    return result, parts


@multiply_where_positive.register_fake
def _(gradient, weight, hidden, biased):
    return hidden.new_empty(hidden.shape), _empty_parts(hidden, biased=biased)


def _empty_parts(hidden: Tensor, *, biased: bool) -> Tensor:
    rows, width = hidden.shape
    return hidden.new_empty((-(-rows // ROWS) if biased else 0, width), dtype=torch.float32)


def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return PROGRAMS
    return PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count


@torch.library.custom_op("chumoku::relu_feedforward", mutates_args=())
def relu_feedforward(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """y [N, D] and h [N, F] of x [N, D]: up [F, D], down [D, F]."""
    bias = x.new_zeros(len(up)) if up_bias is None else up_bias  # without one, ReLU would be another pass
    hidden = torch._addmm_activation(bias, x, up.T)
    return F.linear(hidden, down, down_bias), hidden


@relu_feedforward.register_fake
def _(x, up, up_bias, down, down_bias):
    return x.new_empty((x.shape[0], down.shape[0])), x.new_empty((x.shape[0], up.shape[0]))


def _save_for_backward(ctx, inputs, output) -> None:
    x, up, up_bias, down, down_bias = inputs
    ctx.biased = up_bias is not None, down_bias is not None
    ctx.save_for_backward(x, up, down, output[1])


def _backward(ctx, gradient: Tensor, _):
    x, up, down, hidden = ctx.saved_tensors
    z_gradient, parts = multiply_where_positive(gradient, down, hidden, ctx.biased[0])
    up_bias_gradient = parts.sum(0).to(up.dtype) if ctx.biased[0] else None
    down_bias_gradient = gradient.sum(0) if ctx.biased[1] else None
    return z_gradient @ up, z_gradient.T @ x, up_bias_gradient, gradient.T @ hidden, down_bias_gradient


relu_feedforward.register_autograd(_backward, setup_context=_save_for_backward)
