"""Attention within packed sequences on a GPU, in Triton: forward and backward.

    forward     for each tile of queries:  O = softmax(Q Kᵀ / √d) V over the keys of its sequences
    backward    P = exp(S − L),  D = Σ dO ⊙ O,  dS = P ⊙ (dO Vᵀ − D)
                for each tile of queries:  dQ = dS K / √d          for each tile of keys:  dV = Pᵀ dO,  dK = dSᵀ Q / √d

A tile reaches over several short sequences and reads only their keys, so that a row of sentences costs a few tiles of
64 × 64 each. Kernels made for long texts need a tile of their own for every sentence.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from chumoku.nn.packing import TILE

LOG2_E = math.log2(math.e)


@triton.jit
def load_tile(start, row_stride, head_stride, rows, inside, head, columns, WIDTH: tl.constexpr):
    """Rows of one head of a tensor [N, H, K], zero outside."""
    places = rows[:, None] * row_stride + head * head_stride + columns[None, :]
    return tl.load(start + places, mask=inside[:, None] & (columns < WIDTH)[None, :], other=0.0)


@triton.jit
def store_tile(start, row_stride, head_stride, tile, rows, inside, head, columns, WIDTH: tl.constexpr):
    """Write rows of one head of a tensor [N, H, K]."""
    places = rows[:, None] * row_stride + head * head_stride + columns[None, :]
    tl.store(start + places, tile, mask=inside[:, None] & (columns < WIDTH)[None, :])


@triton.jit
def load_keys(
    key, key_row, key_head, value, value_row, value_head, key_numbers, number, rows, start, last, head, columns,
    WIDTH: tl.constexpr, CAUSAL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The keys and values from `start` on, and whether each query may attend to each of these keys."""
    keys = start + tl.arange(0, SIZE)
    known = keys < last
    k = load_tile(key, key_row, key_head, keys, known, head, columns, WIDTH)
    v = load_tile(value, value_row, value_head, keys, known, head, columns, WIDTH)
    allowed = number[:, None] == tl.load(key_numbers + keys, mask=known, other=-2)[None, :]
    if CAUSAL:
        allowed = allowed & (rows[:, None] >= keys[None, :])
    return k, v, allowed


@triton.jit
def attend_queries(
    query, key, value, output, log_sums, query_numbers, key_numbers, ranges, queries, heads, scale,
    query_row, query_head, key_row, key_head, value_row, value_head,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The output of one tile of queries and one head, and the base-2 logarithm of each row's sum."""
    tile, head, columns = tl.program_id(0), tl.program_id(1), tl.arange(0, PADDED)
    rows = tile * SIZE + tl.arange(0, SIZE)
    inside = rows < queries
    q = load_tile(query, query_row, query_head, rows, inside, head, columns, WIDTH)
    number = tl.load(query_numbers + rows, mask=inside, other=-1)
    most, total = tl.full([SIZE], float("-inf"), tl.float32), tl.zeros([SIZE], tl.float32)
    sums = tl.zeros([SIZE, PADDED], tl.float32)
    first, last = tl.load(ranges + 2 * tile), tl.load(ranges + 2 * tile + 1)
    for start in range(first, last, SIZE):
        k, v, allowed = load_keys(
            key, key_row, key_head, value, value_row, value_head, key_numbers, number, rows, start, last, head, columns,
            WIDTH, CAUSAL, SIZE,
        )  # fmt: skip
        scores = tl.where(allowed, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(most - base)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        most = higher
    empty = total == 0.0
    sums = sums / tl.where(empty, 1.0, total)[:, None]
    store_tile(output, heads * WIDTH, WIDTH, sums.to(q.dtype), rows, inside, head, columns, WIDTH)
    logs = tl.where(empty, float("inf"), most + tl.log2(tl.where(empty, 1.0, total)))
    tl.store(log_sums + rows * heads + head, logs, mask=inside)


@triton.jit
def differentiate_queries(
    query, key, value, output, gradient, log_sums, dots, query_gradient, query_numbers, key_numbers, ranges, queries,
    heads, scale, factor,
    query_row, query_head, key_row, key_head, value_row, value_head, gradient_row, gradient_head,
    result_row, result_head,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries, and D, which the gradients of keys need too."""
    tile, head, columns = tl.program_id(0), tl.program_id(1), tl.arange(0, PADDED)
    rows = tile * SIZE + tl.arange(0, SIZE)
    inside = rows < queries
    q = load_tile(query, query_row, query_head, rows, inside, head, columns, WIDTH)
    g = load_tile(gradient, gradient_row, gradient_head, rows, inside, head, columns, WIDTH)
    o = load_tile(output, heads * WIDTH, WIDTH, rows, inside, head, columns, WIDTH)
    dot = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    tl.store(dots + rows * heads + head, dot, mask=inside)
    logs = tl.load(log_sums + rows * heads + head, mask=inside, other=float("inf"))
    number = tl.load(query_numbers + rows, mask=inside, other=-1)
    sums = tl.zeros([SIZE, PADDED], tl.float32)
    first, last = tl.load(ranges + 2 * tile), tl.load(ranges + 2 * tile + 1)
    for start in range(first, last, SIZE):
        k, v, allowed = load_keys(
            key, key_row, key_head, value, value_row, value_head, key_numbers, number, rows, start, last, head, columns,
            WIDTH, CAUSAL, SIZE,
        )  # fmt: skip
        weights = tl.where(allowed, tl.exp2(tl.dot(q, tl.trans(k)) * scale - logs[:, None]), 0.0)
        change = weights * (tl.dot(g, tl.trans(v)) - dot[:, None])
        sums += tl.dot(change.to(k.dtype), k)
    store_tile(query_gradient, result_row, result_head, (sums * factor).to(q.dtype), rows, inside, head, columns, WIDTH)


@triton.jit
def differentiate_keys(
    query, key, value, gradient, log_sums, dots, key_gradient, value_gradient, query_numbers, key_numbers, ranges, keys,
    heads, scale, factor,
    query_row, query_head, key_row, key_head, value_row, value_head, gradient_row, gradient_head,
    key_gradient_row, key_gradient_head, value_gradient_row, value_gradient_head,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys; all matrices here are transposed: keys × queries."""
    tile, head, columns = tl.program_id(0), tl.program_id(1), tl.arange(0, PADDED)
    rows = tile * SIZE + tl.arange(0, SIZE)
    inside = rows < keys
    k = load_tile(key, key_row, key_head, rows, inside, head, columns, WIDTH)
    v = load_tile(value, value_row, value_head, rows, inside, head, columns, WIDTH)
    number = tl.load(key_numbers + rows, mask=inside, other=-1)
    key_sums, value_sums = tl.zeros([SIZE, PADDED], tl.float32), tl.zeros([SIZE, PADDED], tl.float32)
    first, last = tl.load(ranges + 2 * tile), tl.load(ranges + 2 * tile + 1)
    for start in range(first, last, SIZE):
        queries = start + tl.arange(0, SIZE)
        known = queries < last
        q = load_tile(query, query_row, query_head, queries, known, head, columns, WIDTH)
        g = load_tile(gradient, gradient_row, gradient_head, queries, known, head, columns, WIDTH)
        logs = tl.load(log_sums + queries * heads + head, mask=known, other=float("inf"))
        dot = tl.load(dots + queries * heads + head, mask=known, other=0.0)
        allowed = number[:, None] == tl.load(query_numbers + queries, mask=known, other=-2)[None, :]
        if CAUSAL:
            allowed = allowed & (rows[:, None] <= queries[None, :])
        weights = tl.where(allowed, tl.exp2(tl.dot(k, tl.trans(q)) * scale - logs[None, :]), 0.0)
        value_sums += tl.dot(weights.to(g.dtype), g)
        change = weights * (tl.dot(v, tl.trans(g)) - dot[None, :])
        key_sums += tl.dot(change.to(q.dtype), q)
    store_tile(
        key_gradient,
        key_gradient_row,
        key_gradient_head,
        (key_sums * factor).to(k.dtype),
        rows,
        inside,
        head,
        columns,
        WIDTH,
    )
    store_tile(
        value_gradient,
        value_gradient_row,
        value_gradient_head,
        value_sums.to(k.dtype),
        rows,
        inside,
        head,
        columns,
        WIDTH,
    )


def _with_strides(*tensors: Tensor) -> tuple[list[Tensor], list[int]]:
    """The tensors, copied only if the numbers of a head are not neighbors, and their strides of rows and heads."""
    tensors = [each if each.stride(-1) == 1 else each.contiguous() for each in tensors]
    return tensors, [stride for each in tensors for stride in each.stride()[:2]]


def _launch(kernel, length: int, heads: int, width: int, causal: bool, *arguments) -> None:
    sizes = {"WIDTH": width, "PADDED": max(16, triton.next_power_of_2(width)), "SIZE": TILE}
    kernel[(triton.cdiv(length, TILE), heads)](*arguments, **sizes, CAUSAL=causal, num_warps=4, num_stages=2)


def attend_rows(query, key, value, query_numbers, key_numbers, key_ranges, causal: bool) -> tuple[Tensor, Tensor]:
    """The output [T, H, K] and log-sums [T, H]."""
    queries, heads, width = query.shape
    inputs, strides = _with_strides(query, key, value)
    output = query.new_empty((queries, heads, width))
    log_sums = query.new_empty((queries, heads), dtype=torch.float32)
    numbers = (query_numbers, key_numbers, key_ranges)
    arguments = (*inputs, output, log_sums, *numbers, queries, heads, LOG2_E / math.sqrt(width), *strides)
    _launch(attend_queries, queries, heads, width, causal, *arguments)
    return output, log_sums


def differentiate_rows(gradients, gradient, output, log_sums, query, key, value, packing, causal: bool) -> None:
    """Write dQ, dK and dV into `gradients`."""
    (queries, heads, width), keys = query.shape, len(key)
    query_numbers, key_numbers, key_ranges, query_ranges = packing
    (query, key, value, gradient), strides = _with_strides(query, key, value, gradient)
    query_gradient, key_gradient, value_gradient = gradients
    dots, numbers = torch.empty_like(log_sums), (query_numbers, key_numbers)
    factor = 1 / math.sqrt(width)
    scales = (heads, LOG2_E * factor, factor, *strides)
    found = (query, key, value, output, gradient, log_sums, dots, query_gradient)
    rows, results = (*numbers, key_ranges, queries), query_gradient.stride()[:2]
    _launch(differentiate_queries, queries, heads, width, causal, *found, *rows, *scales, *results)
    found = (query, key, value, gradient, log_sums, dots, key_gradient, value_gradient)
    rows, results = (*numbers, query_ranges, keys), (*key_gradient.stride()[:2], *value_gradient.stride()[:2])
    _launch(differentiate_keys, keys, heads, width, causal, *found, *rows, *scales, *results)


@torch.library.custom_op("chumoku::attend_packed", mutates_args=())
def attend_tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_numbers: Tensor,
    key_numbers: Tensor,
    key_ranges: Tensor,
    query_ranges: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """The output [T, H, K] and log-sums [T, H] of packed queries [T, H, K], keys and values [S, H, K]."""
    return attend_rows(query, key, value, query_numbers, key_numbers, key_ranges, causal)


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
    key_ranges: Tensor,
    query_ranges: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV."""
    gradients = tuple(each.new_empty(each.shape) for each in (query, key, value))
    packing = (query_numbers, key_numbers, key_ranges, query_ranges)
    differentiate_rows(gradients, gradient, output, log_sums, query, key, value, packing, causal)
    return gradients


@differentiate_tiles.register_fake
def _(gradient, output, log_sums, query, key, value, *packing):
    return tuple(each.new_empty(each.shape) for each in (query, key, value))


def _save_for_backward(ctx, inputs, output) -> None:
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, gradient: Tensor, _):
    gradients = differentiate_tiles(gradient, *ctx.saved_tensors, ctx.causal)
    return (*gradients, None, None, None, None, None)


attend_tiles.register_autograd(_backward, setup_context=_save_for_backward)
