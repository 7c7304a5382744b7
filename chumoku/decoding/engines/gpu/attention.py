"""Attention of new tokens, each over the cache of its own row, in Triton.

    out = softmax(q [k₀ … k_{p−1} | k_p]ᵀ / √d_k) [v₀ … v_{p−1} | v_p]          p: position of the new token

With a window w, the past begins at p − w + 1; with a cap c, scores become c tanh(score / c). BIAS says what is added to
the score of key s, at the distance d = p − s:

    alibi      −m_h d                          m: biases [H]
    table      b_h(d)                          b: biases [H, C]
    vectors    q r_d / √d_k, d up to CLIP      r: biases [2 CLIP + 1, K]

Queries and the new key are rotated here, and the new key and value are written to the cache here. Positions are read on
the device, so one CUDA graph works for rows of all lengths, and only the used part of a row is read.

For several new tokens of one row, `write_cache` writes all of them first; then each is handled like a single new token.

A program is (token, key head, part): a long past is split into parts of whole blocks, because one program alone cannot
use the memory bandwidth. Each part stores the logarithm l of its softmax sum and its output o; the last one joins them:

    out = Σ exp(l_i) o_i / Σ exp(l_i)

`attend_source` is cross-attention, whose keys and values were computed once for each source.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import triton
import triton.language as tl

from chumoku.decoding.engines.gpu.kernels import wait_for_previous


@triton.jit
def rotate(source, k, inside, cos, sin, position, ROTATED: tl.constexpr, PAIRING: tl.constexpr):
    """Vectors at `source` (elements k), with the first ROTATED elements rotated by the angles of their position."""
    x = tl.load(source + k, inside, 0.0).to(tl.float32)
    if PAIRING != "none":
        if PAIRING == "half":
            angle, lower = k % (ROTATED // 2), k < ROTATED // 2
            partner = tl.where(lower, k + ROTATED // 2, k - ROTATED // 2)
        else:
            angle, lower = k // 2, k % 2 == 0
            partner = k ^ 1
        turned = inside & (k < ROTATED)
        other = tl.load(source + partner, turned, 0.0).to(tl.float32)
        at = position * (ROTATED // 2) + angle
        a, b = tl.load(cos + at, turned, 1.0), tl.load(sin + at, turned, 0.0)
        x = x * a + tl.where(lower, -other, other) * b
    return x


@triton.jit
def write_cache(
    projected, cos, sin, keys, values, rows, positions, capacity,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr, PAIRING: tl.constexpr,
    BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write the rotated keys and the values of new tokens to the cache; a program is (token, key head)."""
    wait_for_previous(EARLY)
    token, group = tl.program_id(0), tl.program_id(1)
    k = tl.arange(0, BLOCK_K)
    inside = k < WIDTH
    position = tl.load(positions + token)
    new = projected + (token * (HEADS + 2 * KV_HEADS) + HEADS + group) * WIDTH
    at = ((tl.load(rows + token) * KV_HEADS + group) * capacity + position) * WIDTH + k
    tl.store(keys + at, rotate(new, k, inside, cos, sin, position, ROTATED, PAIRING), inside)
    tl.store(values + at, tl.load(new + KV_HEADS * WIDTH + k, inside, 0.0), inside)


@triton.jit
def split_past(position, WINDOW: tl.constexpr, PARTS: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr):
    """The first key of a past and its block, the blocks in each part, and the number of parts."""
    begin = tl.maximum(position - WINDOW + 1, 0) if WINDOW else position * 0
    first = begin // BLOCK
    blocks = tl.cdiv(position, BLOCK) - first
    each = tl.maximum(tl.cdiv(blocks, PARTS), ALONE)
    return begin, first, each, tl.maximum(tl.cdiv(blocks, each), 1)


@triton.jit
def soft_cap(scores, CAP: tl.constexpr):
    """c tanh(s / c), with tanh x = 2 sigmoid(2 x) − 1."""
    if CAP > 0.0:
        scores = CAP * (2.0 * tl.sigmoid(scores * (2.0 / CAP)) - 1.0)
    return scores


@triton.jit
def score_bias(biases, head, distance, capacity, BIAS: tl.constexpr):
    """What a head adds to the scores of keys at these distances; keys behind the query are not seen."""
    if BIAS == "alibi":
        bias = -tl.load(biases + head) * distance
    else:
        bias = tl.load(biases + head * capacity + tl.minimum(tl.maximum(distance, 0), capacity - 1))
    return bias


@triton.jit
def distance_vectors(biases, distance, k, WIDTH: tl.constexpr, CLIP: tl.constexpr):
    """r_d for each distance [S, K]."""
    near = tl.minimum(tl.maximum(distance, -CLIP), CLIP) + CLIP
    return tl.load(biases + near[:, None] * WIDTH + k, k < WIDTH, 0.0)


@triton.jit
def own_score(
    query, new, keys, values, cos, sin, biases, head, position, capacity, scale, k, store,
    KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr, PAIRING: tl.constexpr,
    BIAS: tl.constexpr, CLIP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """The new token's score for its own key, and its value; both are written to the cache if `store`."""
    key = rotate(new, k, k < WIDTH, cos, sin, position, ROTATED, PAIRING).to(keys.dtype.element_ty)
    value = tl.load(new + KV_HEADS * WIDTH + k, k < WIDTH, 0.0)
    tl.store(keys + position * WIDTH + k, key, (k < WIDTH) & store)
    tl.store(values + position * WIDTH + k, value, (k < WIDTH) & store)
    key = key.to(tl.float32)
    if BIAS == "vectors":
        key += tl.load(biases + CLIP * WIDTH + k, k < WIDTH, 0.0).to(tl.float32)
    score = tl.sum(query.to(tl.float32) * key, 1) * scale
    if BIAS == "table":
        score += tl.load(biases + head * capacity)
    return soft_cap(score, CAP), value.to(tl.float32)


@triton.jit
def attend_block(
    query, keys, values, seen, most, total, found, scale, biases, head, distance, k, capacity,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Update the largest score, the sum of weights and the output with a block of keys and values, where `seen`."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    if BIAS == "vectors":
        vectors = distance_vectors(biases, distance, k, WIDTH, CLIP).to(query.dtype)
        scores = tl.dot(query, tl.trans(vectors), scores, input_precision="ieee")
    scores *= scale
    if BIAS == "alibi" or BIAS == "table":
        scores += score_bias(biases, head, distance[None, :], capacity, BIAS)
    scores = tl.where(seen[None, :], soft_cap(scores, CAP), -float("inf"))
    larger = tl.maximum(most, tl.max(scores, 1))
    weights = tl.exp(scores - larger[:, None])
    fading = tl.exp(most - larger)
    found = found * fading[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return larger, total * fading + tl.sum(weights, 1), found


@triton.jit
def join_parts(
    out, outputs, logs, parts,
    WIDTH: tl.constexpr, SHARED: tl.constexpr, PARTS: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Σ exp(l_i) o_i / Σ exp(l_i) over the parts of one row and key head."""
    part, head, k = tl.arange(0, PARTS), tl.arange(0, HEADS), tl.arange(0, BLOCK_K)
    place = part[:, None] * BLOCK_H + head[None, :]
    there = (part < parts)[:, None]
    # Written by other programs, so bypass this processor's cache.
    log = tl.load(logs + place, there, -float("inf"), cache_modifier=".cg")
    output = tl.load(outputs + place[:, :, None] * BLOCK_K + k, there[:, :, None], 0.0, cache_modifier=".cg")
    share = tl.exp(log - tl.max(log, 0)[None, :])
    joined = tl.sum(share[:, :, None] * output, 0) / tl.sum(share, 0)[:, None]
    real = (head < SHARED)[:, None] & (k < WIDTH)[None, :]
    tl.store(out + head[:, None] * WIDTH + k[None, :], joined, real)


@triton.jit
def store_result(
    found, log, out, outputs, logs, arrived, place, part, parts, head, k,
    WIDTH: tl.constexpr, SHARED: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Store the result for the next kernel: directly, or joined when all parts have arrived."""
    out += place * SHARED * WIDTH
    if parts == 1:
        tl.store(out + head * WIDTH + k, found, (head < SHARED) & (k < WIDTH))
    else:
        outputs += place * PARTS * BLOCK_H * BLOCK_K
        logs += place * PARTS * BLOCK_H
        tl.store(outputs + (part * BLOCK_H + head) * BLOCK_K + k, found)
        tl.store(logs + part * BLOCK_H + tl.arange(0, BLOCK_H), log)
        # All of this part must be written before it is counted.
        tl.debug_barrier()
        if tl.atomic_add(arrived + place, 1, sem="acq_rel") == parts - 1:
            join_parts(out, outputs, logs, parts, WIDTH, SHARED, PARTS, BLOCK_S, BLOCK_H, BLOCK_K)
            tl.store(arrived + place, 0)


@triton.jit
def attend(
    projected, cos, sin, keys, values, rows, positions, out, outputs, logs, arrived, biases, scale, capacity,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr, PAIRING: tl.constexpr,
    WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr, CAP: tl.constexpr,
    PARTS: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    token, group, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHARED: tl.constexpr = HEADS // KV_HEADS
    position = tl.load(positions + token)
    begin, first, each, parts = split_past(position, WINDOW, PARTS, ALONE, BLOCK)
    if part >= parts:
        return
    start = (tl.load(rows + token) * KV_HEADS + group) * capacity * WIDTH
    keys += start
    values += start
    head, k = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_K)[None, :]
    s = (first + part * each) * BLOCK + tl.arange(0, BLOCK)
    end = tl.minimum((first + (part + 1) * each) * BLOCK, position)
    at = s.to(tl.int64)[:, None] * WIDTH + k
    # The past does not depend on the previous kernel, so load its first block before waiting.
    seen = ((s >= begin) & (s < end))[:, None] & (k < WIDTH)
    first_keys, first_values = tl.load(keys + at, seen, 0.0), tl.load(values + at, seen, 0.0)
    wait_for_previous(EARLY)
    inside = (head < SHARED) & (k < WIDTH)
    new = projected + token * (HEADS + 2 * KV_HEADS) * WIDTH
    query = rotate(new + (group * SHARED + head) * WIDTH, k, inside, cos, sin, position, ROTATED, PAIRING)
    query = query.to(keys.dtype.element_ty)
    last = part == parts - 1
    query_head = tl.minimum(group * SHARED + head, HEADS - 1)  # rows beyond the heads are not used
    own, value = own_score(
        query, new + (HEADS + group) * WIDTH, keys, values, cos, sin, biases, tl.max(query_head, 1), position, capacity,
        scale, k, last & (position < capacity), KV_HEADS, WIDTH, ROTATED, PAIRING, BIAS, CLIP, CAP,
    )  # fmt: skip
    most = tl.where(last, own, -float("inf"))
    total = tl.where(last, tl.zeros_like(own) + 1.0, 0.0)
    found = tl.where(last, value + tl.zeros([BLOCK_H, BLOCK_K], tl.float32), 0.0)
    shown = (s >= begin) & (s < end)
    most, total, found = attend_block(
        query, first_keys, first_values, shown, most, total, found, scale, biases, query_head, position - s, k,
        capacity, WIDTH, BIAS, CLIP, CAP,
    )  # fmt: skip
    for _ in range(first + part * each + 1, tl.cdiv(end, BLOCK)):
        s += BLOCK
        at += BLOCK * WIDTH
        seen = (s < end)[:, None] & (k < WIDTH)
        block_keys, block_values = tl.load(keys + at, seen, 0.0), tl.load(values + at, seen, 0.0)
        most, total, found = attend_block(
            query, block_keys, block_values, s < end, most, total, found, scale, biases, query_head, position - s, k,
            capacity, WIDTH, BIAS, CLIP, CAP,
        )  # fmt: skip
    store_result(
        found / total[:, None], most + tl.log(total), out, outputs, logs, arrived,
        token * KV_HEADS + group, part, parts, head, k, WIDTH, SHARED, PARTS, BLOCK_S, BLOCK_H, BLOCK_K,
    )  # fmt: skip


@triton.jit
def attend_lanes(
    query, keys, values, first_keys, first_values, s, begin, end, least, k, scale, biases, head, position, capacity,
    BIAS: tl.constexpr, CLIP: tl.constexpr, CAP: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Like `attend_block`, for keys s, s + BLOCK … from `begin` and before `end`.

    Each of BLOCK lanes has its own softmax.
    """
    # Finite, for lanes without keys.
    most = tl.zeros([BLOCK], tl.float32) + least
    total = tl.zeros([BLOCK], tl.float32)
    found = tl.zeros([BLOCK, BLOCK_K], tl.float32)
    at = s.to(tl.int64)[:, None] * WIDTH + k
    block_keys, block_values = first_keys, first_values
    for _ in range(tl.min(s, 0), end, BLOCK):
        key_vectors = block_keys.to(tl.float32)
        if BIAS == "vectors":
            key_vectors += distance_vectors(biases, position - s, k, WIDTH, CLIP).to(tl.float32)
        scores = tl.sum(key_vectors * query, 1) * scale
        if BIAS == "alibi" or BIAS == "table":
            scores += score_bias(biases, head, position - s, capacity, BIAS)
        scores = tl.where((s >= begin) & (s < end), soft_cap(scores, CAP), -float("inf"))
        larger = tl.maximum(most, scores)
        weights, fading = tl.exp(scores - larger), tl.exp(most - larger)
        found = found * fading[:, None] + weights[:, None] * block_values.to(tl.float32)
        total = total * fading + weights
        most = larger
        s += BLOCK
        at += BLOCK * WIDTH
        seen = (s < end)[:, None] & (k < WIDTH)
        block_keys, block_values = tl.load(keys + at, seen, 0.0), tl.load(values + at, seen, 0.0)
    return most, total, found


@triton.jit
def attend_alone(
    projected, cos, sin, keys, values, rows, positions, out, outputs, logs, arrived, biases, scale, capacity,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr, PAIRING: tl.constexpr,
    WINDOW: tl.constexpr, BIAS: tl.constexpr, CLIP: tl.constexpr, CAP: tl.constexpr,
    PARTS: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The same for few tokens: a program is (token, query head, part), and its lanes synchronize only once."""
    token, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHARED: tl.constexpr = HEADS // KV_HEADS
    position = tl.load(positions + token)
    begin, first, each, parts = split_past(position, WINDOW, PARTS, ALONE, BLOCK)
    if part >= parts:
        return
    group = head // SHARED
    start = (tl.load(rows + token) * KV_HEADS + group) * capacity * WIDTH
    keys += start
    values += start
    k = tl.arange(0, BLOCK_K)[None, :]
    s = (first + part * each) * BLOCK + tl.arange(0, BLOCK)
    end = tl.minimum((first + (part + 1) * each) * BLOCK, position)
    at = s.to(tl.int64)[:, None] * WIDTH + k
    seen = ((s >= begin) & (s < end))[:, None] & (k < WIDTH)
    first_keys, first_values = tl.load(keys + at, seen, 0.0), tl.load(values + at, seen, 0.0)
    wait_for_previous(EARLY)
    new = projected + token * (HEADS + 2 * KV_HEADS) * WIDTH
    query = rotate(new + head * WIDTH, k, k < WIDTH, cos, sin, position, ROTATED, PAIRING)
    query = query.to(keys.dtype.element_ty).to(tl.float32)
    last = part == parts - 1
    own, value = own_score(
        query, new + (HEADS + group) * WIDTH, keys, values, cos, sin, biases, head, position, capacity, scale, k,
        last & (head % SHARED == 0) & (position < capacity), KV_HEADS, WIDTH, ROTATED, PAIRING, BIAS, CLIP, CAP,
    )  # fmt: skip
    own = tl.where(last, tl.max(own, 0), -1e30)
    most, total, found = attend_lanes(
        query, keys, values, first_keys, first_values, s, begin, end, own, k, scale, biases, head, position, capacity,
        BIAS, CLIP, CAP, WIDTH, BLOCK, BLOCK_K,
    )  # fmt: skip
    top = tl.max(most, 0)
    share = tl.exp(most - top)
    mine = tl.where(last, tl.exp(own - top), 0.0)
    total = tl.sum(total * share, 0) + mine
    found = (tl.sum(found * share[:, None], 0)[None, :] + mine * value) / total
    store_result(
        found, tl.zeros([1], tl.float32) + top + tl.log(total), out, outputs, logs, arrived,
        token * HEADS + head, part, parts, tl.zeros([1, 1], tl.int32), k, WIDTH, 1, PARTS, 1, 1, BLOCK_K,
    )  # fmt: skip


@triton.jit
def attend_source(
    queries, keys, values, rows, lengths, out, scale, capacity,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, CAP: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attention of new tokens over the sources of their rows; a program is (token, query head)."""
    token, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + token)
    end = tl.load(lengths + row)
    start = (row * KV_HEADS + head // (HEADS // KV_HEADS)) * capacity * WIDTH
    keys += start
    values += start
    s, k = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)[None, :]
    seen = (s < end)[:, None] & (k < WIDTH)
    first_keys = tl.load(keys + s[:, None] * WIDTH + k, seen, 0.0)
    first_values = tl.load(values + s[:, None] * WIDTH + k, seen, 0.0)
    wait_for_previous(EARLY)
    query = tl.load(queries + (token * HEADS + head) * WIDTH + k, k < WIDTH, 0.0).to(tl.float32)
    most, total, found = attend_lanes(
        query, keys, values, first_keys, first_values, s, 0, end, -1e30, k, scale, keys, head, end, capacity,
        "none", 0, CAP, WIDTH, BLOCK, BLOCK_K,
    )  # fmt: skip
    share = tl.exp(most - tl.max(most, 0))
    # A row that is not in use has no source; its output must be finite, because it is written to the cache.
    total = tl.maximum(tl.sum(total * share, 0), 1e-30)
    found = tl.sum(found * share[:, None], 0)[None, :] / total
    tl.store(out + (token * HEADS + head) * WIDTH + k, found, k < WIDTH)
