"""Cross-entropy with label smoothing on a GPU, in Triton; ε smoothing, V vocabulary, y the label.

loss       L = log Σ exp z − (1 − ε) z_y − ε / V Σ z                   one pass over the logits
gradient   ∂L/∂z_j = exp(z_j) / Σ exp z − (1 − ε) [j = y] − ε / V      another

`linear_losses` includes the product z = W x + b before it. Its gradient replaces the logits; the factor f of a token's
loss multiplies the short vectors:

    ∂/∂x = f (gᵀ W),   ∂/∂W = g (f x)ᵀ,   ∂/∂b = f g
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
from chumoku.training.loss_kernel_cuda import replace_logits

ALIGNED = 64  # outputs
LOWEST = tl.constexpr(-1e38)  # not -∞: the difference of two of those is NaN
LOG2_E = tl.constexpr(1.4426950408889634)  # GPUs compute powers of 2


@triton.jit
def add_eights(z, most, total, plain, inside, MASKED: tl.constexpr):
    """Add logits [SIZE / 8, 8] to the sums of every eight."""
    plain += tl.sum(tl.where(inside, z, 0.0) if MASKED else z, 1)
    z = tl.where(inside, z, float("-inf")) if MASKED else z
    higher = tl.maximum(most, tl.max(z, 1))
    base = higher * LOG2_E
    total = total * tl.exp2((most - higher) * LOG2_E) + tl.sum(tl.exp2(z * LOG2_E - base[:, None]), 1)
    return higher, total, plain


@triton.jit
def sum_row(logits, V, padded, SIZE: tl.constexpr):
    """log Σ exp z and Σ z of a row. Every eight logits have sums of their own, which are joined after the last."""
    places = 8 * tl.arange(0, SIZE // 8)[:, None] + tl.arange(0, 8)[None, :]
    most = tl.full([SIZE // 8], LOWEST, tl.float32)
    total, plain = tl.zeros([SIZE // 8], tl.float32), tl.zeros([SIZE // 8], tl.float32)
    full = V // SIZE * SIZE
    for start in range(0, full, SIZE):
        z = tl.load(logits + start + places).to(tl.float32)
        most, total, plain = add_eights(z, most, total, plain, True, False)
    for start in range(full, V, SIZE):
        z = tl.load(logits + start + places, mask=start + places < padded, other=0.0).to(tl.float32)
        most, total, plain = add_eights(z, most, total, plain, start + places < V, True)
    highest = tl.max(most, 0)
    log_sum = highest + tl.log(tl.sum(total * tl.exp2((most - highest) * LOG2_E), 0))
    return log_sum, tl.sum(plain, 0)


@triton.jit
def loss_of_row(logits, label, V, padded, smoothing, IGNORED: tl.constexpr, SIZE: tl.constexpr):
    """The loss of one token, 0 if its label is ignored, and log Σ exp z."""
    log_sum, plain = sum_row(logits, V, padded, SIZE)
    known = label != IGNORED
    chosen = tl.load(logits + label, mask=known, other=0.0).to(tl.float32)
    loss = log_sum - (1 - smoothing) * chosen - smoothing / V * plain
    return tl.where(known, loss, 0.0), log_sum


@triton.jit
def compute_loss(logits, labels, losses, log_sums, V, padded, smoothing, IGNORED: tl.constexpr, SIZE: tl.constexpr):
    """The loss of one token and log Σ exp z; 0 if its label is ignored. A row of logits has a padding after V."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    loss, log_sum = loss_of_row(logits + row * padded, label, V, padded, smoothing, IGNORED, SIZE)
    tl.store(losses + row, loss)
    tl.store(log_sums + row, log_sum)


@triton.jit
def differentiate_loss(
    logits, labels, log_sums, factors, gradient, V, smoothing, IGNORED: tl.constexpr, SIZE: tl.constexpr
):
    """The gradient of one token's loss, times its factor."""
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    label = tl.load(labels + row)
    factor = tl.where(label == IGNORED, 0.0, tl.load(factors + row))
    inside = columns < V
    z = tl.load(logits + row * V + columns, mask=inside, other=0.0).to(tl.float32)
    change = tl.exp(z - tl.load(log_sums + row)) - smoothing / V
    change -= tl.where(columns == label, 1 - smoothing, 0.0)
    tl.store(gradient + row * V + columns, (change * factor).to(gradient.dtype.element_ty), mask=inside)


@triton.jit
def replace_by_gradient(logits, labels, losses, V, padded, smoothing, IGNORED: tl.constexpr, SIZE: tl.constexpr):
    """The loss of one token; its logits are replaced by their gradient, and the padding after them by zeros."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    logits += row * padded
    label = tl.load(labels + row)
    if label == IGNORED:
        tl.store(losses + row, 0.0)
        for start in range(0, padded, SIZE):
            zeros = tl.zeros([SIZE], logits.dtype.element_ty)
            tl.store(logits + start + columns, zeros, mask=start + columns < padded)
    else:
        log_sum, plain = sum_row(logits, V, padded, SIZE)
        chosen = tl.load(logits + label).to(tl.float32)
        share = smoothing / V
        tl.store(losses + row, log_sum - (1 - smoothing) * chosen - share * plain)
        tl.debug_barrier()  # no thread may overwrite a logit that another has not read
        base, full = log_sum * LOG2_E, V // SIZE * SIZE
        for start in range(0, full, SIZE):
            z = tl.load(logits + start + columns).to(tl.float32)
            change = tl.exp2(z * LOG2_E - base) - share
            tl.store(logits + start + columns, change.to(logits.dtype.element_ty))
        for start in range(full, padded, SIZE):
            there = start + columns < padded
            z = tl.load(logits + start + columns, mask=there, other=0.0).to(tl.float32)
            change = tl.where(start + columns < V, tl.exp2(z * LOG2_E - base) - share, 0.0)
            tl.store(logits + start + columns, change.to(logits.dtype.element_ty), mask=there)
        tl.debug_barrier()
        own = tl.exp2(chosen * LOG2_E - base) - share - (1 - smoothing)
        tl.store(logits + label, own.to(logits.dtype.element_ty))


@torch.library.custom_op("chumoku::token_losses", mutates_args=())
def token_losses(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Each token's loss, and log Σ exp z for the gradient: logits [N, V], labels [N]."""
    logits, (rows, vocabulary) = logits.contiguous(), logits.shape
    losses, log_sums = (logits.new_empty(rows, dtype=torch.float32) for _ in range(2))
    compute_loss[(rows,)](
        logits, labels, losses, log_sums, vocabulary, vocabulary, smoothing, IGNORED=IGNORE, SIZE=4096, num_warps=16
    )
    return losses, log_sums


@token_losses.register_fake
def _(logits, labels, smoothing):
    return tuple(logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(2))


@torch.library.custom_op("chumoku::token_losses_backward", mutates_args=())
def differentiate_losses(logits: Tensor, labels: Tensor, log_sums: Tensor, factors: Tensor, smoothing: float) -> Tensor:
    logits, (rows, vocabulary) = logits.contiguous(), logits.shape
    gradient, size = torch.empty_like(logits), min(triton.next_power_of_2(vocabulary), 4096)
    differentiate_loss[(rows, triton.cdiv(vocabulary, size))](
        logits, labels, log_sums, factors.contiguous(), gradient, vocabulary, smoothing, IGNORED=IGNORE, SIZE=size
    )
    return gradient


@differentiate_losses.register_fake
def _(logits, labels, log_sums, factors, smoothing):
    return logits.new_empty(logits.shape)


def _save_for_backward(ctx, inputs, output) -> None:
    logits, labels, ctx.smoothing = inputs
    ctx.save_for_backward(logits, labels, output[1])


def _backward(ctx, factors: Tensor, _):
    return differentiate_losses(*ctx.saved_tensors, factors, ctx.smoothing), None, None


token_losses.register_autograd(_backward, setup_context=_save_for_backward)


@torch.library.custom_op("chumoku::linear_losses", mutates_args=())
def linear_losses(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Each token's loss, and the gradient of its logits [N, P]: x [N, D], weight [V, D], bias [V], labels [N].

    P is V rounded up to a multiple of ALIGNED; the product of 30,522 outputs takes twice as long as that of 30,528.
    """
    logits = F.linear(x, pad(weight), None if bias is None else pad(bias))
    rows, padded = logits.shape
    losses = logits.new_empty(rows, dtype=torch.float32)
    if not replace_logits(logits, labels, losses, len(weight), smoothing):
        sizes = {"IGNORED": IGNORE, "SIZE": 4096, "num_warps": 16}
        replace_by_gradient[(rows,)](logits, labels, losses, len(weight), padded, smoothing, **sizes)
    return losses, logits


def pad(weight: Tensor) -> Tensor:
    """The weight with rows of zeros up to a multiple of ALIGNED."""
    missing = -len(weight) % ALIGNED
    return F.pad(weight, (0, 0) * (weight.ndim - 1) + (0, missing)) if missing else weight


@linear_losses.register_fake
def _(x, weight, bias, labels, smoothing):
    rows, padded = x.shape[0], len(weight) + -len(weight) % ALIGNED
    return x.new_empty(rows, dtype=torch.float32), x.new_empty(rows, padded)


def _save_linear(ctx, inputs, output) -> None:
    x, weight, bias, _, _ = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight, output[1])


def _linear_backward(ctx, factors: Tensor, _):
    x, weight, gradient = ctx.saved_tensors
    column, vocabulary = factors[:, None], len(weight)
    x_gradient = ((gradient @ pad(weight)) * column).to(x.dtype)
    weight_gradient = (gradient.T @ (x * column).to(x.dtype))[:vocabulary]
    bias_gradient = (factors.to(x.dtype) @ gradient)[:vocabulary] if ctx.biased else None
    return x_gradient, weight_gradient, bias_gradient, None, None


linear_losses.register_autograd(_linear_backward, setup_context=_save_linear)
