"""`linear_losses` with 8-bit floats in the products of its gradient, which newer NVIDIA GPUs multiply twice as fast.

    logits     z = W x                       in 16 bits, as without this, so the losses are the same
    gradient   g = ∂L/∂z                     in e5m2 (2 bits of mantissa, 5 of exponent), times 2¹⁵, since |g| ≤ 1
    products   ∂/∂x = f (gᵀ W),  ∂/∂W = g (f x)ᵀ      W and f x in e4m3 (3 bits of mantissa), the largest is 448

f is the factor of a token's loss. g is rounded up or down at random, so that its errors cancel in sums over tokens;
numbers that are rounded to the nearest have the same error in all tokens. All terms of a sum are rounded, also that of
the label: an exact one would not cancel the others. The GPU multiplies rows with rows, and the two products of g sum
over its columns and over its rows, so g is stored a second time, transposed.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from chumoku.data.batches import IGNORE
from chumoku.training.loss_kernel import ALIGNED, compute_loss, pad

LARGEST = torch.finfo(torch.float8_e4m3fn).max
GRADIENT_SCALE = 2.0**15
BLOCK = (8, 128)  # times four rows, and columns
MULTIPLE = 16  # of every size in a product of 8-bit floats


@triton.jit
def round_to_e5m2(x):
    """x in e5m2, as a byte, which is the upper half of a float16: one of its two neighbors, and x in the mean.

    The last bits of the float32 x choose between the two; they are as good as random.
    """
    bits = x.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return (bits + (x.to(tl.int32, bitcast=True) & 0xFF)) >> 8


@triton.jit
def differentiate_and_transpose(
    logits, labels, log_sums, gradient, transposed, N, V, padded, smoothing, scale,
    IGNORED: tl.constexpr, FOURS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of logits, times `scale`, stored as it is and transposed; zero in the padding.

    Four rows are one integer, so that not bytes but integers change places; N is a multiple of 4.
    """
    four = tl.program_id(0).to(tl.int64) * FOURS + tl.arange(0, FOURS)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    there = (four < N // 4)[:, None] & (column < padded)[None, :]
    together = tl.zeros([FOURS, COLUMNS], tl.int32)
    for part in tl.static_range(4):
        row = four * 4 + part
        label = tl.load(labels + row, row < N, IGNORED)
        log_sum = tl.load(log_sums + row, row < N, 0.0)
        at = row[:, None] * padded + column[None, :]
        z = tl.load(logits + at, there, 0.0).to(tl.float32)
        change = tl.exp(z - log_sum[:, None]) - smoothing / V
        change -= tl.where(column[None, :] == label[:, None], 1 - smoothing, 0.0)
        change = tl.where((label != IGNORED)[:, None] & (column < V)[None, :], change * scale, 0.0)
        byte = round_to_e5m2(change)
        tl.store(gradient + at, byte.to(tl.uint8), there)
        together |= byte << (8 * part)
    tl.store(transposed + column[:, None] * (N // 4) + four[None, :], tl.trans(together), tl.trans(there))


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """The elements in e4m3, and the scale to multiply them by."""
    scale = x.abs().amax().float().clamp(min=1e-12) / LARGEST
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


@torch.library.custom_op("chumoku::multiply_fp8", mutates_args=())
def multiply_fp8(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """a bᵀ in bf16: a [M, K], b [N, K]."""
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    return torch._scaled_mm(a.contiguous(), b.contiguous().T, **scales, out_dtype=torch.bfloat16)


@multiply_fp8.register_fake
def _(a, b, scale_a, scale_b):
    return a.new_empty(len(a), len(b), dtype=torch.bfloat16)


@torch.library.custom_op("chumoku::linear_losses_fp8", mutates_args=())
def losses_and_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Each token's loss; the gradient of its logits [N, P]; and transposed."""
    logits = F.linear(x, pad(weight), None if bias is None else pad(bias))
    rows, padded = logits.shape
    losses, log_sums = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
    sizes = {"IGNORED": IGNORE, "SIZE": 4096, "num_warps": 4}
    compute_loss[(rows,)](logits, labels, losses, log_sums, len(weight), padded, smoothing, **sizes)
    gradient = torch.empty(rows, padded, dtype=torch.float8_e5m2, device=x.device)
    transposed = torch.empty(padded, rows, dtype=torch.float8_e5m2, device=x.device)
    fours, columns = BLOCK
    differentiate_and_transpose[(triton.cdiv(rows, 4 * fours), triton.cdiv(padded, columns))](
        logits, labels, log_sums, gradient.view(torch.uint8), transposed.view(torch.int32), rows, len(weight), padded,
        smoothing, GRADIENT_SCALE, IGNORED=IGNORE, FOURS=fours, COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return losses, gradient, transposed


@losses_and_gradients.register_fake
def _(x, weight, bias, labels, smoothing):
    rows, padded = x.shape[0], len(weight) + -len(weight) % ALIGNED
    gradient = x.new_empty(rows, padded, dtype=torch.float8_e5m2)
    transposed = x.new_empty(padded, rows, dtype=torch.float8_e5m2)
    return x.new_empty(rows, dtype=torch.float32), gradient, transposed


def _save(ctx, inputs, output) -> None:
    x, weight, bias, _, _ = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight, *output[1:])


def _backward(ctx, factors: Tensor, *_):
    x, weight, gradient, transposed = ctx.saved_tensors
    column, unit = factors[:, None], torch.full((), 1 / GRADIENT_SCALE, device=x.device)
    weight8, weight_scale = to_fp8(pad(weight))
    x_gradient = multiply_fp8(gradient, weight8.T, unit, weight_scale)
    x8, x_scale = to_fp8(x * column)
    weight_gradient = multiply_fp8(transposed, x8.T, unit, x_scale)[: len(weight)]
    bias_gradient = None
    if ctx.biased:
        bias_gradient = (transposed.to(x.dtype) @ factors.to(x.dtype) * unit)[: len(weight)].to(x.dtype)
    return (x_gradient * column).to(x.dtype), weight_gradient, bias_gradient, None, None


losses_and_gradients.register_autograd(_backward, setup_context=_save)


def linear_losses_fp8(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """Each token's loss: x [N, D], weight [V, D], bias [V], labels [N]; D is a multiple of MULTIPLE."""
    missing = -x.shape[0] % MULTIPLE
    if missing:
        x, labels = F.pad(x, (0, 0, 0, missing)), F.pad(labels, (0, missing), value=IGNORE)
    return losses_and_gradients(x, weight, bias, labels, smoothing)[0]
