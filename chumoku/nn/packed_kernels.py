"""Attention within packed sequences on a GPU, in Triton: forward and backward.

    forward     O = softmax(Q Kᵀ / √d) V for a tile's queries, over the keys of its sequences
    backward    P = exp(S − L),  D = Σ P ⊙ dO Vᵀ = Σ dO ⊙ O,  dS = P ⊙ (dO Vᵀ − D)
                dQ = dS K / √d for a tile's queries,  dV = Pᵀ dO,  dK = dSᵀ Q / √d for its keys

Kernels made for long texts need a tile of their own for every sentence. Here most tiles are several whole sentences
(`packed_tiles.py`), so one program computes all three gradients, and reads each of its numbers once.

For queries and keys that were rotated, the gradient is rotated back before it is stored:
(a, b) → (a cos + b sin, b cos − a sin) for the elements i and i + K/2 of a head.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from chumoku.nn.packed_tiles import TILE

LOG2_E = math.log2(math.e)
# Registers of a thread: four programs of the forward pass run on a multiprocessor, and three of the backward pass.
FORWARD_REGISTERS, BACKWARD_REGISTERS = 128, 168


@triton.jit
def load_rows(start, row_stride, head_stride, rows, inside, head, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows of one head of a tensor [N, H, K], zero outside."""
    columns = tl.arange(0, PADDED)
    places = rows[:, None] * row_stride + head * head_stride + columns[None, :]
    return tl.load(start + places, mask=inside[:, None] & (columns < WIDTH)[None, :], other=0.0)


@triton.jit
def store_rows(start, row_stride, head_stride, tile, rows, inside, head, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Write rows of one head of a tensor [N, H, K]."""
    columns = tl.arange(0, PADDED)
    places = rows[:, None] * row_stride + head * head_stride + columns[None, :]
    tl.store(start + places, tile.to(start.dtype.element_ty), mask=inside[:, None] & (columns < WIDTH)[None, :])


@triton.jit
def store_rotated(
    start, row_stride, head_stride, tile, rows, inside, head, cos, sin,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROTATED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write rows of one head, rotated back if they were rotated."""
    if ROTATED:
        HALF: tl.constexpr = WIDTH // 2
        a, b = tl.split(tl.permute(tl.reshape(tile, [TILE, 2, HALF]), [0, 2, 1]))
        places = rows[:, None] * HALF + tl.arange(0, HALF)[None, :]
        c = tl.load(cos + places, mask=inside[:, None], other=0.0).to(tl.float32)
        s = tl.load(sin + places, mask=inside[:, None], other=0.0).to(tl.float32)
        store_rows(start, row_stride, head_stride, a * c + b * s, rows, inside, head, HALF, HALF)
        store_rows(start + HALF, row_stride, head_stride, b * c - a * s, rows, inside, head, HALF, HALF)
    else:
        store_rows(start, row_stride, head_stride, tile, rows, inside, head, WIDTH, PADDED)


@triton.jit
def load_keys(
    key, value, key_numbers, keys, known, head, key_row, key_head, value_row, value_head,
    WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """K, V and the sequences of these keys."""
    k = load_rows(key, key_row, key_head, keys, known, head, WIDTH, PADDED)
    v = load_rows(value, value_row, value_head, keys, known, head, WIDTH, PADDED)
    return k, v, tl.load(key_numbers + keys, mask=known, other=-2)


@triton.jit
def score(q, k, sequence, key_sequence, rows, keys, scale, CAUSAL: tl.constexpr):
    """S of these queries and keys, in base 2, and −∞ where a query may not attend to a key."""
    allowed = sequence[:, None] == key_sequence[None, :]
    if CAUSAL:
        allowed = allowed & (rows[:, None] >= keys[None, :])
    return tl.where(allowed, tl.dot(q, tl.trans(k)) * scale, float("-inf"))


@triton.jit
def store_attended(
    output, log_sums, sums, most, total, heads, rows, inside, head, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    """Write O and L; a query without keys gets zeros."""
    empty = total == 0.0
    sums = sums / tl.where(empty, 1.0, total)[:, None]
    store_rows(output, heads * WIDTH, WIDTH, sums, rows, inside, head, WIDTH, PADDED)
    logs = tl.where(empty, float("inf"), most + tl.log2(tl.where(empty, 1.0, total)))
    tl.store(log_sums + rows * heads + head, logs, mask=inside)


@triton.jit
def attend_tiles_of_row(
    query, key, value, output, log_sums, query_numbers, key_numbers, tiles, heads, scale,
    query_row, query_head, key_row, key_head, value_row, value_head,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The output of tiles and one head, and the base-2 logarithm of each row's sum."""
    head = tl.program_id(0)
    for number in range(1 + tl.program_id(1), 1 + tl.load(tiles), tl.num_programs(1)):
        ranges = tiles + 8 * number
        first, last, start, end = tl.load(ranges), tl.load(ranges + 1), tl.load(ranges + 4), tl.load(ranges + 5)
        rows = first + tl.arange(0, TILE)
        inside = rows < last
        q = load_rows(query, query_row, query_head, rows, inside, head, WIDTH, PADDED)
        sequence = tl.load(query_numbers + rows, mask=inside, other=-1)
        keys = start + tl.arange(0, TILE)
        k, v, key_sequence = load_keys(
            key, value, key_numbers, keys, keys < end, head, key_row, key_head, value_row, value_head, WIDTH, PADDED
        )
        scores = score(q, k, sequence, key_sequence, rows, keys, scale, CAUSAL)
        most = tl.max(scores, 1)
        weights = tl.exp2(scores - tl.where(most == float("-inf"), 0.0, most)[:, None])
        total = tl.sum(weights, 1)
        sums = tl.dot(weights.to(v.dtype), v)
        for place in range(start + TILE, end, TILE):  # only for a part of a long sequence
            keys = place + tl.arange(0, TILE)
            k, v, key_sequence = load_keys(
                key, value, key_numbers, keys, keys < end, head, key_row, key_head, value_row, value_head, WIDTH, PADDED
            )
            scores = score(q, k, sequence, key_sequence, rows, keys, scale, CAUSAL)
            higher = tl.maximum(most, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weights, shrink = tl.exp2(scores - base[:, None]), tl.exp2(most - base)
            total = total * shrink + tl.sum(weights, 1)
            sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
            most = higher
        store_attended(output, log_sums, sums, most, total, heads, rows, inside, head, WIDTH, PADDED)


@triton.jit
def load_queries(
    query, gradient, log_sums, query_numbers, heads, rows, inside, head,
    query_row, query_head, gradient_row, gradient_head, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Q, dO, L and the sequences of these queries."""
    q = load_rows(query, query_row, query_head, rows, inside, head, WIDTH, PADDED)
    g = load_rows(gradient, gradient_row, gradient_head, rows, inside, head, WIDTH, PADDED)
    logs = tl.load(log_sums + rows * heads + head, mask=inside, other=float("inf"))
    return q, g, logs, tl.load(query_numbers + rows, mask=inside, other=-1)


@triton.jit
def load_dots(output, g, heads, rows, inside, head, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """D of these queries."""
    o = load_rows(output, heads * WIDTH, WIDTH, rows, inside, head, WIDTH, PADDED)
    return tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)


@triton.jit
def weigh(q, g, logs, sequence, rows, k, v, key_sequence, keys, scale, CAUSAL: tl.constexpr):
    """P and V dOᵀ of these queries and keys, transposed: keys × queries."""
    allowed = key_sequence[:, None] == sequence[None, :]
    if CAUSAL:
        allowed = allowed & (keys[:, None] <= rows[None, :])
    weights = tl.where(allowed, tl.exp2(tl.dot(k, tl.trans(q)) * scale - logs[None, :]), 0.0)
    return weights, tl.dot(v, tl.trans(g))


@triton.jit
def differentiate_tiles_of_row(
    query, key, value, cos, sin, output, gradient, log_sums, query_gradient, key_gradient, value_gradient,
    query_numbers, key_numbers, tiles, heads, scale, factor,
    query_row, query_head, key_row, key_head, value_row, value_head, gradient_row, gradient_head,
    dq_row, dq_head, dk_row, dk_head, dv_row, dv_head,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, ROTATED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """dQ, dK and dV of tiles and one head."""
    head = tl.program_id(0)
    for number in range(1 + tl.program_id(1), 1 + tl.load(tiles), tl.num_programs(1)):
        ranges = tiles + 8 * number
        first, last, key_first, key_last = (
            tl.load(ranges), tl.load(ranges + 1), tl.load(ranges + 2), tl.load(ranges + 3)
        )  # fmt: skip
        start, end, query_start, query_end = (
            tl.load(ranges + 4), tl.load(ranges + 5), tl.load(ranges + 6), tl.load(ranges + 7)
        )  # fmt: skip
        rows, keys = first + tl.arange(0, TILE), key_first + tl.arange(0, TILE)
        inside, known = rows < last, keys < key_last
        if (end - start <= TILE) & (query_end - query_start <= TILE):  # whole sequences
            q, g, logs, sequence = load_queries(
                query, gradient, log_sums, query_numbers, heads, rows, inside, head,
                query_row, query_head, gradient_row, gradient_head, WIDTH, PADDED,
            )  # fmt: skip
            k, v, key_sequence = load_keys(
                key, value, key_numbers, keys, known, head, key_row, key_head, value_row, value_head, WIDTH, PADDED
            )
            weights, gained = weigh(q, g, logs, sequence, rows, k, v, key_sequence, keys, scale, CAUSAL)
            dots = tl.sum(weights * gained, 0)  # all keys of the queries are here, so this is D
            change = (weights * (gained - dots[None, :])).to(q.dtype)
            dv = tl.dot(weights.to(g.dtype), g)
            store_rows(value_gradient, dv_row, dv_head, dv, keys, known, head, WIDTH, PADDED)
            dk = tl.dot(change, q) * factor
            store_rotated(key_gradient, dk_row, dk_head, dk, keys, known, head, cos, sin, WIDTH, PADDED, ROTATED, TILE)
            dq = tl.dot(tl.trans(change), k) * factor
            store_rotated(
                query_gradient, dq_row, dq_head, dq, rows, inside, head, cos, sin, WIDTH, PADDED, ROTATED, TILE
            )
        else:
            q, g, logs, sequence = load_queries(
                query, gradient, log_sums, query_numbers, heads, rows, inside, head,
                query_row, query_head, gradient_row, gradient_head, WIDTH, PADDED,
            )  # fmt: skip
            dots = load_dots(output, g, heads, rows, inside, head, WIDTH, PADDED)
            dq = tl.zeros([TILE, PADDED], tl.float32)
            for place in range(start, end, TILE):
                others = place + tl.arange(0, TILE)
                k, v, key_sequence = load_keys(
                    key, value, key_numbers, others, others < end, head, key_row, key_head, value_row, value_head,
                    WIDTH, PADDED,
                )  # fmt: skip
                weights, gained = weigh(q, g, logs, sequence, rows, k, v, key_sequence, others, scale, CAUSAL)
                dq += tl.dot(tl.trans((weights * (gained - dots[None, :])).to(q.dtype)), k)
            dq *= factor
            store_rotated(
                query_gradient, dq_row, dq_head, dq, rows, inside, head, cos, sin, WIDTH, PADDED, ROTATED, TILE
            )
            k, v, key_sequence = load_keys(
                key, value, key_numbers, keys, known, head, key_row, key_head, value_row, value_head, WIDTH, PADDED
            )
            dk, dv = tl.zeros([TILE, PADDED], tl.float32), tl.zeros([TILE, PADDED], tl.float32)
            for place in range(query_start, query_end, TILE):
                others = place + tl.arange(0, TILE)
                q, g, logs, sequence = load_queries(
                    query, gradient, log_sums, query_numbers, heads, others, others < query_end, head,
                    query_row, query_head, gradient_row, gradient_head, WIDTH, PADDED,
                )  # fmt: skip
                dots = load_dots(output, g, heads, others, others < query_end, head, WIDTH, PADDED)
                weights, gained = weigh(q, g, logs, sequence, others, k, v, key_sequence, keys, scale, CAUSAL)
                dv += tl.dot(weights.to(g.dtype), g)
                dk += tl.dot((weights * (gained - dots[None, :])).to(q.dtype), q)
            dk *= factor
            store_rows(value_gradient, dv_row, dv_head, dv, keys, known, head, WIDTH, PADDED)
            store_rotated(key_gradient, dk_row, dk_head, dk, keys, known, head, cos, sin, WIDTH, PADDED, ROTATED, TILE)


def _prepare(*tensors: Tensor) -> tuple[list[Tensor], list[int]]:
    """The tensors, copied only if the numbers of a head are not neighbors, and their strides of rows and heads."""
    tensors = [each if each.stride(-1) == 1 else each.contiguous() for each in tensors]
    return tensors, [stride for each in tensors for stride in each.stride()[:2]]


def _programs(tokens: int) -> int:
    """As many as tiles that are two thirds full; if there are more tiles, some programs compute several."""
    return triton.cdiv(3 * tokens, 2 * TILE)


def _launch(kernel, shape: tuple[int, int, int], tokens: int, *arguments, **options) -> None:
    """Start the programs of each head."""
    _, heads, width = shape
    sizes = {"WIDTH": width, "PADDED": max(16, triton.next_power_of_2(width)), "TILE": TILE}
    kernel[(heads, _programs(tokens))](*arguments, **sizes, **options, num_warps=4, num_stages=1)


def attend_rows(query, key, value, numbers, tiles, causal: bool) -> tuple[Tensor, Tensor]:
    """The output [T, H, K] and log-sums [T, H]; `numbers` are those of the sequences of queries and of keys."""
    queries, heads, width = query.shape
    inputs, strides = _prepare(query, key, value)
    output = query.new_empty((queries, heads, width))
    log_sums = query.new_empty((queries, heads), dtype=torch.float32)
    arguments = (*inputs, output, log_sums, *numbers, tiles, heads, LOG2_E / math.sqrt(width), *strides)
    _launch(
        attend_tiles_of_row, query.shape, max(queries, len(key)), *arguments, CAUSAL=causal, maxnreg=FORWARD_REGISTERS
    )
    return output, log_sums


def differentiate_rows(
    gradients, gradient, output, log_sums, query, key, value, numbers, tiles, causal: bool, angles=None
) -> None:
    """Write dQ, dK and dV into `gradients`; dQ and dK before the rotation by these angles, cos and sin [T, K/2]."""
    inputs, strides = _prepare(query, key, value, gradient, *gradients)
    factor, (cos, sin) = 1 / math.sqrt(query.shape[-1]), angles or inputs[:2]
    found = (*inputs[:3], cos, sin, output, inputs[3], log_sums, *gradients, *numbers, tiles)
    arguments = (*found, query.shape[1], LOG2_E * factor, factor, *strides)
    options = {"CAUSAL": causal, "ROTATED": angles is not None, "maxnreg": BACKWARD_REGISTERS}
    _launch(differentiate_tiles_of_row, query.shape, max(len(query), len(key)), *arguments, **options)


@torch.library.custom_op("chumoku::attend_packed", mutates_args=())
def attend_tiles(
    query: Tensor, key: Tensor, value: Tensor, query_numbers: Tensor, key_numbers: Tensor, tiles: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """The output [T, H, K] and log-sums [T, H] of packed queries [T, H, K], keys and values [S, H, K]."""
    return attend_rows(query, key, value, (query_numbers, key_numbers), tiles, causal)


@attend_tiles.register_fake
def _(query, key, value, *packing):
    return query.new_empty(query.shape), query.new_empty(query.shape[:2], dtype=torch.float32)


@torch.library.custom_op("chumoku::attend_packed_backward", mutates_args=())
def differentiate_tiles(
    gradient: Tensor,
    output: Tensor,
    log_sums: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_numbers: Tensor,
    key_numbers: Tensor,
    tiles: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV."""
    gradients = tuple(each.new_empty(each.shape) for each in (query, key, value))
    numbers = query_numbers, key_numbers
    differentiate_rows(gradients, gradient, output, log_sums, query, key, value, numbers, tiles, causal)
    return gradients


@differentiate_tiles.register_fake
def _(gradient, output, log_sums, query, key, value, *packing):
    return tuple(each.new_empty(each.shape) for each in (query, key, value))


def _save_for_backward(ctx, inputs, output) -> None:
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, gradient: Tensor, _):
    gradients = differentiate_tiles(gradient, *ctx.saved_tensors, ctx.causal)
    return (*gradients, None, None, None, None)


attend_tiles.register_autograd(_backward, setup_context=_save_for_backward)
