"""Queries, keys and values of self-attention as one product on a GPU, for training.

    forward     [Q K V] = x W + b                               Q, K and V are parts of one tensor
    backward    dz = [dQ dK dV],   db = Σ dz over all rows      in one Triton kernel
                dx = dz Wᵀ,   dW = xᵀ dz

PyTorch's compiler joins the three gradients, and reads the result again for db.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types, and torch.autograd.Function is not typed.
from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 32, 128  # that a program copies together
PROGRAMS = 132 * 4  # each computes its part of db


@triton.jit
def copy_and_sum_rows(
    source, joined, sums, batch_stride, head_stride, token_stride, element_stride, tokens, rows, first,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, TOTAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy [B, H, T, K] to the columns of [B · T, TOTAL] that begin at `first`, and add its rows up."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    element = columns // HEAD * head_stride + columns % HEAD * element_stride
    part = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(tl.program_id(1), tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = block * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
        place = (row // tokens).to(tl.int64) * batch_stride + (row % tokens).to(tl.int64) * token_stride
        x = tl.load(source + place[:, None] + element[None, :], mask=inside, other=0.0)
        tl.store(joined + row[:, None].to(tl.int64) * TOTAL + (first + columns)[None, :], x, mask=inside)
        part += x.to(tl.float32)
    tl.store(sums + tl.program_id(1) * TOTAL + first + columns, tl.sum(part, 0), mask=columns < WIDTH)


@torch.library.custom_op("chumoku::join_gradients", mutates_args=())
def join_gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """[Q K V] in rows [B · T, (H + 2 G) K], and their sum as parts to be summed [P, (H + 2 G) K].

    Q is [B, H, T, K], K and V are [B, G, T, K], with any strides.
    """
    (joined, sums), first = _empty_joined(query, key, value), 0
    (rows, total), tokens = joined.shape, query.shape[2]
    for source in (query, key, value):
        width = source.shape[1] * source.shape[3]
        sizes = {"HEAD": source.shape[3], "WIDTH": width, "TOTAL": total, "ROWS": ROWS, "COLUMNS": COLUMNS}
        grid = (triton.cdiv(width, COLUMNS), len(sums))
        copy_and_sum_rows[grid](source, joined, sums, *source.stride(), tokens, rows, first, **sizes, num_warps=4)
        first += width
    return joined, sums


@join_gradients.register_fake
def _(query, key, value):
    return _empty_joined(query, key, value)


def _empty_joined(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    batch, _, tokens, head = query.shape
    total = (query.shape[1] + key.shape[1] + value.shape[1]) * head
    parts = max(1, PROGRAMS // triton.cdiv(query.shape[1] * head, COLUMNS))
    return query.new_empty((batch * tokens, total)), query.new_empty((parts, total), dtype=torch.float32)


class _ProjectHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, head_width: int, kv_width: int):
        ctx.save_for_backward(x, weight)
        joined = F.linear(x, weight, bias)
        parts = torch.split(joined, [len(bias) - 2 * kv_width, kv_width, kv_width], dim=-1)
        return tuple(part.unflatten(-1, (-1, head_width)).transpose(1, 2) for part in parts)

    @staticmethod
    def backward(ctx, query: Tensor, key: Tensor, value: Tensor):
        x, weight = ctx.saved_tensors
        joined, sums = join_gradients(query, key, value)
        return (joined @ weight).view(x.shape), joined.T @ x.flatten(0, 1), sums.sum(0).to(weight.dtype), None, None


def project_heads(
    x: Tensor, weight: Tensor, bias: Tensor, *, head_width: int, kv_width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Q [B, H, T, K], K and V [B, G, T, K] of x [B, T, D]: weight [(H + 2 G) K, D]; kv_width is G K."""
    return _ProjectHeads.apply(x, weight, bias, head_width, kv_width)
