"""Attention of one new token a row over the row's own past, in Triton.

    out = softmax(q [k₀ … k_{p−1} | k_p]ᵀ / √d_k) [v₀ … v_{p−1} | v_p]          p: where the new token stands

Queries and the new key are turned here, and the new key and value go into the cache here. Positions are read on the
device, so one captured graph serves rows of all lengths, and of a row only its own past is read.

A program is (row, key head, part): a long past is cut into parts of whole blocks, for one program alone could not ask
for memory fast enough. Each part leaves its softmax's logarithm l and its output o; the last to arrive joins them:

    out = Σ exp(l_i) o_i / Σ exp(l_i)
"""

# mypy: ignore-errors
# Triton's language has Python's grammar and types of its own.
from __future__ import annotations

import triton
import triton.language as tl

from chumoku.decoding.gpu.kernels import follow


@triton.jit
def turned(source, k, inside, cos, sin, position, WIDTH: tl.constexpr, PAIRING: tl.constexpr):
    """Vectors at `source`, numbered k, turned by the angles of their position: each number with its partner."""
    x = tl.load(source + k, inside, 0.0).to(tl.float32)
    if PAIRING != "none":
        if PAIRING == "half":
            angle, lower = k % (WIDTH // 2), k < WIDTH // 2
            partner = (k + WIDTH // 2) % WIDTH
        else:
            angle, lower = k // 2, k % 2 == 0
            partner = k ^ 1
        other = tl.load(source + partner, inside, 0.0).to(tl.float32)
        at = position * (WIDTH // 2) + angle
        a, b = tl.load(cos + at, inside, 0.0), tl.load(sin + at, inside, 0.0)
        x = x * a + tl.where(lower, -other, other) * b
    return x


@triton.jit
def itself(
    query, new, keys, values, cos, sin, position, scale, capacity, k, last,
    KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PAIRING: tl.constexpr,
):  # fmt: skip
    """What the new token finds in itself: largest score, sum of weights, output. The last part keeps its key, value."""
    inside = k < WIDTH
    key = turned(new, k, inside, cos, sin, position, WIDTH, PAIRING).to(keys.dtype.element_ty)
    value = tl.load(new + KV_HEADS * WIDTH + k, inside, 0.0)
    kept = inside & last & (position < capacity)
    tl.store(keys + position * WIDTH + k, key, kept)
    tl.store(values + position * WIDTH + k, value, kept)
    score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
    most = tl.where(last, score, -float("inf"))
    total = tl.where(last, tl.zeros_like(score) + 1.0, 0.0)
    return most, total, tl.where(last, value.to(tl.float32) + tl.zeros(query.shape, tl.float32), 0.0)


@triton.jit
def look_at(query, keys, values, seen, most, total, found, scale):
    """The same after it has also seen a block of keys and values, those where `seen`."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    scores = tl.where(seen[None, :], scores, -float("inf"))
    larger = tl.maximum(most, tl.max(scores, 1))
    weights = tl.exp(scores - larger[:, None])
    fading = tl.exp(most - larger)
    found = found * fading[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return larger, total * fading + tl.sum(weights, 1), found


@triton.jit
def join(
    out, outputs, logs, parts,
    WIDTH: tl.constexpr, SHARED: tl.constexpr, PARTS: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Σ exp(l_i) o_i / Σ exp(l_i) over the parts of one row and key head."""
    part, head, k = tl.arange(0, PARTS), tl.arange(0, HEADS), tl.arange(0, BLOCK_K)
    place = part[:, None] * BLOCK_H + head[None, :]
    there = (part < parts)[:, None]
    # Other programs wrote these: not from this processor's own cache.
    log = tl.load(logs + place, there, -float("inf"), cache_modifier=".cg")
    output = tl.load(outputs + place[:, :, None] * BLOCK_K + k, there[:, :, None], 0.0, cache_modifier=".cg")
    share = tl.exp(log - tl.max(log, 0)[None, :])
    joined = tl.sum(share[:, :, None] * output, 0) / tl.sum(share, 0)[:, None]
    real = (head < SHARED)[:, None] & (k < WIDTH)[None, :]
    tl.store(out + head[:, None] * WIDTH + k[None, :], joined, real)


@triton.jit
def leave(
    found, log, out, outputs, logs, arrived, place, part, parts, head, k,
    WIDTH: tl.constexpr, SHARED: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """What was found, where the next kernel reads it: at once, or when all parts are there."""
    out += place * SHARED * WIDTH
    if parts == 1:
        tl.store(out + head * WIDTH + k, found, (head < SHARED) & (k < WIDTH))
    else:
        outputs += place * PARTS * BLOCK_H * BLOCK_K
        logs += place * PARTS * BLOCK_H
        tl.store(outputs + (part * BLOCK_H + head) * BLOCK_K + k, found)
        tl.store(logs + part * BLOCK_H + tl.arange(0, BLOCK_H), log)
        # Everything of this part is written before it is counted.
        tl.debug_barrier()
        if tl.atomic_add(arrived + place, 1, sem="acq_rel") == parts - 1:
            join(out, outputs, logs, parts, WIDTH, SHARED, PARTS, BLOCK_S, BLOCK_H, BLOCK_K)
            tl.store(arrived + place, 0)


@triton.jit
def attend(
    projected, cos, sin, keys, values, positions, out, outputs, logs, arrived, scale, capacity,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PAIRING: tl.constexpr,
    PARTS: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row, group, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHARED: tl.constexpr = HEADS // KV_HEADS
    position = tl.load(positions + row)
    blocks = tl.cdiv(position, BLOCK)
    each = tl.maximum(tl.cdiv(blocks, PARTS), ALONE)
    parts = tl.maximum(tl.cdiv(blocks, each), 1)
    if part >= parts:
        return
    place = row * KV_HEADS + group
    keys += place.to(tl.int64) * capacity * WIDTH
    values += place.to(tl.int64) * capacity * WIDTH
    head, k = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_K)[None, :]
    s, end = part * each * BLOCK + tl.arange(0, BLOCK), tl.minimum((part + 1) * each * BLOCK, position)
    at = s.to(tl.int64)[:, None] * WIDTH + k
    # The past is there already: its first block is asked for before the new token's query is.
    seen = (s < end)[:, None] & (k < WIDTH)
    first_keys, first_values = tl.load(keys + at, seen, 0.0), tl.load(values + at, seen, 0.0)
    follow(EARLY)
    inside = (head < SHARED) & (k < WIDTH)
    new = projected + row * (HEADS + 2 * KV_HEADS) * WIDTH
    query = turned(new + (group * SHARED + head) * WIDTH, k, inside, cos, sin, position, WIDTH, PAIRING)
    query = query.to(keys.dtype.element_ty)
    most, total, found = itself(
        query, new + (HEADS + group) * WIDTH, keys, values, cos, sin, position, scale, capacity, k, part == parts - 1,
        KV_HEADS, WIDTH, PAIRING,
    )  # fmt: skip
    most, total, found = look_at(query, first_keys, first_values, s < end, most, total, found, scale)
    for _ in range(part * each + 1, tl.cdiv(end, BLOCK)):
        s += BLOCK
        at += BLOCK * WIDTH
        seen = (s < end)[:, None] & (k < WIDTH)
        block_keys, block_values = tl.load(keys + at, seen, 0.0), tl.load(values + at, seen, 0.0)
        most, total, found = look_at(query, block_keys, block_values, s < end, most, total, found, scale)
    leave(
        found / total[:, None], most + tl.log(total), out, outputs, logs, arrived, place, part, parts, head, k,
        WIDTH, SHARED, PARTS, BLOCK_S, BLOCK_H, BLOCK_K,
    )  # fmt: skip


@triton.jit
def attend_alone(
    projected, cos, sin, keys, values, positions, out, outputs, logs, arrived, scale, capacity,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PAIRING: tl.constexpr,
    PARTS: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The same for few rows: a program is (row, query head, part).

    Each of the BLOCK lanes keeps a softmax of its own over every BLOCK-th key, so that nothing has to wait for the
    others before the end.
    """
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHARED: tl.constexpr = HEADS // KV_HEADS
    position = tl.load(positions + row)
    blocks = tl.cdiv(position, BLOCK)
    each = tl.maximum(tl.cdiv(blocks, PARTS), ALONE)
    parts = tl.maximum(tl.cdiv(blocks, each), 1)
    if part >= parts:
        return
    group = head // SHARED
    start = (row * KV_HEADS + group).to(tl.int64) * capacity * WIDTH
    keys += start
    values += start
    k = tl.arange(0, BLOCK_K)[None, :]
    s, end = part * each * BLOCK + tl.arange(0, BLOCK), tl.minimum((part + 1) * each * BLOCK, position)
    at = s.to(tl.int64)[:, None] * WIDTH + k
    seen = (s < end)[:, None] & (k < WIDTH)
    block_keys, block_values = tl.load(keys + at, seen, 0.0), tl.load(values + at, seen, 0.0)
    follow(EARLY)
    new = projected + row * (HEADS + 2 * KV_HEADS) * WIDTH
    query = turned(new + head * WIDTH, k, k < WIDTH, cos, sin, position, WIDTH, PAIRING)
    query = query.to(keys.dtype.element_ty).to(tl.float32)
    key = turned(new + (HEADS + group) * WIDTH, k, k < WIDTH, cos, sin, position, WIDTH, PAIRING)
    key = key.to(keys.dtype.element_ty)
    value = tl.load(new + (HEADS + KV_HEADS + group) * WIDTH + k, k < WIDTH, 0.0)
    last = part == parts - 1
    kept = (k < WIDTH) & last & (head % SHARED == 0) & (position < capacity)
    tl.store(keys + position * WIDTH + k, key, kept)
    tl.store(values + position * WIDTH + k, value, kept)
    own = tl.sum(query * key.to(tl.float32)) * scale
    # Finite, for a lane that sees nothing; and what is no part's own must not count in it.
    most = tl.zeros([BLOCK], tl.float32) + tl.where(last, own, -1e30)
    total = tl.zeros([BLOCK], tl.float32)
    found = tl.zeros([BLOCK, BLOCK_K], tl.float32)
    for _ in range(part * each, tl.cdiv(end, BLOCK)):
        scores = tl.where(s < end, tl.sum(block_keys.to(tl.float32) * query, 1) * scale, -float("inf"))
        larger = tl.maximum(most, scores)
        weights, fading = tl.exp(scores - larger), tl.exp(most - larger)
        found = found * fading[:, None] + weights[:, None] * block_values.to(tl.float32)
        total = total * fading + weights
        most = larger
        s += BLOCK
        at += BLOCK * WIDTH
        seen = (s < end)[:, None] & (k < WIDTH)
        block_keys, block_values = tl.load(keys + at, seen, 0.0), tl.load(values + at, seen, 0.0)
    top = tl.max(most, 0)
    share = tl.exp(most - top)
    itself = tl.where(last, tl.exp(own - top), 0.0)
    total = tl.sum(total * share, 0) + itself
    found = (tl.sum(found * share[:, None], 0)[None, :] + itself * value.to(tl.float32)) / total
    leave(
        found, tl.zeros([1], tl.float32) + top + tl.log(total), out, outputs, logs, arrived,
        row * HEADS + head, part, parts, tl.zeros([1, 1], tl.int32), k, WIDTH, 1, PARTS, 1, 1, BLOCK_K,
    )  # fmt: skip
