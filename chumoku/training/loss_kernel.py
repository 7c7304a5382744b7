"""Cross-entropy with label smoothing on a GPU, in Triton; ε smoothing, V vocabulary, y the label.

loss       L = log Σ exp z − (1 − ε) z_y − ε / V Σ z                   one pass over the logits
gradient   ∂L/∂z_j = exp(z_j) / Σ exp z − (1 − ε) [j = y] − ε / V      another
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from chumoku.data.batches import IGNORE


@triton.jit
def compute_loss(logits, labels, losses, log_sums, V, smoothing, IGNORED: tl.constexpr, SIZE: tl.constexpr):
    """The loss of one token and log Σ exp z; 0 if its label is ignored."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    columns = tl.arange(0, SIZE)
    most, total, plain = float("-inf"), 0.0, 0.0
    for start in range(0, V, SIZE):
        inside = start + columns < V
        z = tl.load(logits + row * V + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(z, 0))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(z - higher), 0)
        plain += tl.sum(tl.where(inside, z, 0.0), 0)
        most = higher
    log_sum = most + tl.log(total)
    known = label != IGNORED
    chosen = tl.load(logits + row * V + label, mask=known, other=0.0).to(tl.float32)
    loss = log_sum - (1 - smoothing) * chosen - smoothing / V * plain
    tl.store(losses + row, tl.where(known, loss, 0.0))
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


@torch.library.custom_op("chumoku::token_losses", mutates_args=())
def token_losses(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Each token's loss, and log Σ exp z for the gradient: logits [N, V], labels [N]."""
    logits, (rows, vocabulary) = logits.contiguous(), logits.shape
    losses, log_sums = (logits.new_empty(rows, dtype=torch.float32) for _ in range(2))
    size = min(triton.next_power_of_2(vocabulary), 16384)
    compute_loss[(rows,)](
        logits, labels, losses, log_sums, vocabulary, smoothing, IGNORED=IGNORE, SIZE=size, num_warps=16
    )
    return losses, log_sums


@token_losses.register_fake
def _(logits, labels, smoothing):
    return tuple(logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))


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
