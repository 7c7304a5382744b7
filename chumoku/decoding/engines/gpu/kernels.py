"""The kernels of a step on a GPU, in Triton; those of attention are in attention.py.

embed      x = E[token] · factor + P[position]; in a step, each row's length grows by one
product    out = residual + f(W norm(x) + b)                    gated: f(W norm(x) + b) ⊙ (W' norm(x) + b')
           product_codes: the same with int8 or int4 weights
dequantize w = s q + m
norm       LayerNorm or RMSNorm of each row
activate   f(x), or f(x) ⊙ x' for the two halves of each row
argmax     the token of the largest logit, −1 if the logits are not finite
move       copies rows of the cache

A step with few rows is bound by reading every weight once, so the memory must never be idle. Each program of `product`
loads its weights before it waits for the previous kernel (`wait_for_previous`): weights do not depend on it, so while
one kernel ends, the weights of the next are already being loaded.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_previous(EARLY: tl.constexpr):
    """Let the next kernel start, and wait until the previous one has written everything."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def activation(x, KIND: tl.constexpr):
    if KIND == "relu":
        y = tl.maximum(x, 0.0)
    elif KIND == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        # (1 + tanh a) / 2 = sigmoid(2 a)
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        y = x * tl.sigmoid(x)
    return y


@triton.jit
def normalize(x, gamma, beta, inside, epsilon, WIDTH: tl.constexpr, NORM: tl.constexpr):
    """The norm of a row x, of any shape, that is zero outside `inside`; the result is zero there too."""
    if NORM == "layer":
        x = tl.where(inside, x - tl.sum(x) / WIDTH, 0.0)
    x = x * tl.rsqrt(tl.sum(x * x) / WIDTH + epsilon) * gamma.to(tl.float32)
    if NORM == "layer":
        x += beta.to(tl.float32)
    return x


@triton.jit
def embed(
    tokens, positions, lengths, advance, table, places, x, factor,
    WIDTH: tl.constexpr, PLACES: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_previous(EARLY)
    token = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    inside = k < WIDTH
    if COUNT:
        position = tl.load(lengths + token)
        tl.store(positions + token, position)
        tl.store(lengths + token, position + tl.load(advance + token))
    else:
        position = tl.load(positions + token)
    value = tl.load(table + tl.load(tokens + token) * WIDTH + k, inside, 0.0).to(tl.float32) * factor
    if PLACES:
        value += tl.load(places + position * WIDTH + k, inside, 0.0).to(tl.float32)
    tl.store(x + token * WIDTH + k, value, inside)


@triton.jit
def finish(
    y, z, bias, residual, out, n,
    OUTPUTS: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Store outputs n from their sums: residual + f(y + b), or with a gate f(y + b) (z + b')."""
    there = n < OUTPUTS
    if BIAS:
        y += tl.load(bias + n, there, 0.0).to(tl.float32)
    if KIND != "none":
        y = activation(y, KIND)
    if GATED:
        if BIAS:
            z += tl.load(bias + OUTPUTS + n, there, 0.0).to(tl.float32)
        y *= z
    if RESIDUAL:
        y += tl.load(residual + n, there, 0.0).to(tl.float32)
    tl.store(out + n, y, there)


@triton.jit
def load_floats(weight, n, k, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr):
    real = (n < OUTPUTS)[:, None] & (k < INPUTS)[None, :]
    return tl.load(weight + n.to(tl.int64)[:, None] * INPUTS + k[None, :], real, 0)


@triton.jit
def product(
    x, weight, bias, gamma, beta, residual, out, epsilon,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    NORM: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program is (p, row) and computes blocks p, p + P, p + 2 P … of BLOCK_N outputs, with P programs for a row.

    The norm is computed once for all of them, and the weights of the next block are loaded while this one is summed.
    """
    row = tl.program_id(1)
    step = tl.num_programs(0) * BLOCK_N
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    inside = k < INPUTS
    up = weight + OUTPUTS * INPUTS
    first = load_floats(weight, n, k, OUTPUTS, INPUTS)
    second = load_floats(up, n, k, OUTPUTS, INPUTS) if GATED else first
    if NORM != "none":
        by, shift = tl.load(gamma + k, inside, 0.0), tl.load(beta + k, inside, 0.0)
    wait_for_previous(EARLY)
    vector = tl.load(x + row * INPUTS + k, inside, 0.0).to(tl.float32)
    if NORM != "none":
        vector = normalize(vector, by, shift, inside, epsilon, INPUTS, NORM)
    out += row * OUTPUTS
    residual += row * OUTPUTS
    for _ in range(tl.program_id(0) * BLOCK_N, OUTPUTS, step):
        next_first = load_floats(weight, n + step, k, OUTPUTS, INPUTS)
        next_second = load_floats(up, n + step, k, OUTPUTS, INPUTS) if GATED else next_first
        y = tl.sum(first.to(tl.float32) * vector[None, :], 1)
        z = tl.sum(second.to(tl.float32) * vector[None, :], 1) if GATED else y
        finish(y, z, bias, residual, out, n, OUTPUTS, KIND, GATED, BIAS, RESIDUAL)
        n += step
        first, second = next_first, next_second


@triton.jit
def dot_bytes(a, b, DP4A: tl.constexpr):
    """Σ a_i b_i over the four signed bytes of each integer."""
    if DP4A:
        total = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        total = (a << 24 >> 24) * (b << 24 >> 24)
        for left in tl.static_range(0, 24, 8):
            total += (a << left >> 24) * (b << left >> 24)
    return total


@triton.jit
def pack_bytes(numbers):
    """Four neighboring numbers as the bytes of one integer: [G, 8, 4] → [G, 8]."""
    return tl.sum((numbers & 255) << (tl.arange(0, 4) * 8)[None, None, :], 2)


@triton.jit
def round_inputs(x):
    """Inputs [G, 8, 4] as t (256 h + l) with bytes h and l, packed [G, 8], t [G], and Σ x of each group [G]."""
    top = tl.max(tl.max(tl.abs(x), 2), 1)
    p = tl.floor(x * tl.where(top > 1e-30, 32512.0 / top, 0.0)[:, None, None] + 0.5).to(tl.int32)
    high = (p + 128) >> 8
    t = top / 32512.0
    total = tl.sum(tl.sum(p, 2), 1).to(tl.float32) * t
    return pack_bytes(high), pack_bytes(p - (high << 8)), t, total


@triton.jit
def split_halves(packed, BLOCK_G: tl.constexpr):
    """[G, 8] → the first and the last 16 inputs of each group, both [G, 4]."""
    return tl.split(tl.permute(tl.reshape(packed, [BLOCK_G, 2, 4]), [0, 2, 1]))


@triton.jit
def load_codes(words, scale, low, n, g, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr):
    """q of outputs n and groups g [N, G, BITS], four or eight in an integer, with s and m [N, G]."""
    real = (n < OUTPUTS)[:, None] & (g < GROUPS)[None, :]
    at = n.to(tl.int64)[:, None] * GROUPS + g[None, :]
    q = tl.load(words + at[:, :, None] * BITS + tl.arange(0, BITS)[None, None, :], real[:, :, None], 0)
    s = tl.load(scale + at, real, 0.0)
    return q, s, tl.load(low + at, real, 0.0) if BITS == 4 else s


@triton.jit
def sum_codes(q, s, m, high, high2, low, low2, t, total, BITS: tl.constexpr, DP4A: tl.constexpr):
    """Σ s t (Σ q p) + m (Σ x) for each output, with exact inner sums over groups of 32 inputs."""
    if BITS == 8:
        inner = 256 * dot_bytes(q, high[None, :, :], DP4A) + dot_bytes(q, low[None, :, :], DP4A)
    else:  # a byte holds q of input i of a group (low bits) and of input i + 16 (high bits)
        front, back = q & 0x0F0F0F0F, (q >> 4) & 0x0F0F0F0F
        inner = 256 * (dot_bytes(front, high[None, :, :], DP4A) + dot_bytes(back, high2[None, :, :], DP4A))
        inner += dot_bytes(front, low[None, :, :], DP4A) + dot_bytes(back, low2[None, :, :], DP4A)
    y = tl.sum(inner, 2).to(tl.float32) * t[None, :] * s.to(tl.float32)
    if BITS == 4:
        y += m.to(tl.float32) * total[None, :]
    return tl.sum(y, 1)


@triton.jit
def product_codes(
    x, words, scale, low, bias, gamma, beta, residual, out, epsilon,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BITS: tl.constexpr,
    NORM: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, DP4A: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`product` with weights s q (int8) or s q + m (int4) and inputs rounded to 16 bits, as nn/quantized.py defines."""
    GROUPS: tl.constexpr = (INPUTS + 31) // 32
    HALF: tl.constexpr = OUTPUTS * GROUPS
    row = tl.program_id(1)
    step = tl.num_programs(0) * BLOCK_N
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    g = tl.arange(0, BLOCK_G)
    q, s, m = load_codes(words, scale, low, n, g, OUTPUTS, GROUPS, BITS)
    up_q, up_s, up_m = q, s, m
    if GATED:
        up_q, up_s, up_m = load_codes(words + HALF * BITS, scale + HALF, low + HALF, n, g, OUTPUTS, GROUPS, BITS)
    k = g[:, None, None] * 32 + tl.arange(0, 8)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    inside = k < INPUTS
    if NORM != "none":
        by, shift = tl.load(gamma + k, inside, 0.0), tl.load(beta + k, inside, 0.0)
    wait_for_previous(EARLY)
    vector = tl.load(x + row * INPUTS + k, inside, 0.0).to(tl.float32)
    if NORM != "none":
        vector = normalize(vector, by, shift, inside, epsilon, INPUTS, NORM)
    high, bottom, t, total = round_inputs(vector)
    high2, bottom2 = high, bottom
    if BITS == 4:
        high, high2 = split_halves(high, BLOCK_G)
        bottom, bottom2 = split_halves(bottom, BLOCK_G)
    out += row * OUTPUTS
    residual += row * OUTPUTS
    for _ in range(tl.program_id(0) * BLOCK_N, OUTPUTS, step):
        next_q, next_s, next_m = load_codes(words, scale, low, n + step, g, OUTPUTS, GROUPS, BITS)
        next_up_q, next_up_s, next_up_m = next_q, next_s, next_m
        if GATED:
            next_up_q, next_up_s, next_up_m = load_codes(
                words + HALF * BITS, scale + HALF, low + HALF, n + step, g, OUTPUTS, GROUPS, BITS
            )
        y = sum_codes(q, s, m, high, high2, bottom, bottom2, t, total, BITS, DP4A)
        z = y
        if GATED:
            z = sum_codes(up_q, up_s, up_m, high, high2, bottom, bottom2, t, total, BITS, DP4A)
        finish(y, z, bias, residual, out, n, OUTPUTS, KIND, GATED, BIAS, RESIDUAL)
        n += step
        q, s, m = next_q, next_s, next_m
        up_q, up_s, up_m = next_up_q, next_up_s, next_up_m


@triton.jit
def dequantize(codes, scale, low, out, groups, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """s q or s q + m of BLOCK groups of 32 weights."""
    g = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = (g < groups)[:, None]
    j = tl.arange(0, 4 * BITS)[None, :]  # byte of a group
    q = tl.load(codes + g[:, None] * (4 * BITS) + j, there, 0)
    s = tl.load(scale + g[:, None], there, 0.0).to(tl.float32)
    if BITS == 8:
        tl.store(out + g[:, None] * 32 + j, q.to(tl.float32) * s, there)
    else:
        m = tl.load(low + g[:, None], there, 0.0).to(tl.float32)
        tl.store(out + g[:, None] * 32 + j, (q & 15).to(tl.float32) * s + m, there)
        tl.store(out + g[:, None] * 32 + 16 + j, (q >> 4).to(tl.float32) * s + m, there)


@triton.jit
def norm(
    x, gamma, beta, out, epsilon,
    WIDTH: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    inside = k < WIDTH
    scale, shift = tl.load(gamma + k, inside, 0.0), tl.load(beta + k, inside, 0.0)
    wait_for_previous(EARLY)
    vector = tl.load(x + row * WIDTH + k, inside, 0.0).to(tl.float32)
    tl.store(out + row * WIDTH + k, normalize(vector, scale, shift, inside, epsilon, WIDTH, NORM), inside)


@triton.jit
def activate(
    x, out,
    HIDDEN: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_previous(EARLY)
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < HIDDEN
    source = x + row * HIDDEN * (2 if GATED else 1) + k
    y = activation(tl.load(source, inside, 0.0).to(tl.float32), KIND)
    if GATED:
        y *= tl.load(source + HIDDEN, inside, 0.0).to(tl.float32)
    tl.store(out + row * HIDDEN + k, y, inside)


@triton.jit
def argmax(
    logits, largest, places,
    VOCABULARY: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The largest logit of each part of a row, NaN if there is one, and its index."""
    wait_for_previous(EARLY)
    row, part = tl.program_id(0), tl.program_id(1)
    n = part * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row.to(tl.int64) * VOCABULARY + n, n < VOCABULARY, -float("inf")).to(tl.float32)
    value, place = tl.max(values, 0, return_indices=True)
    tl.store(
        largest + row * PARTS + part, tl.where(tl.sum((values != values).to(tl.int32), 0) > 0, float("nan"), value)
    )
    tl.store(places + row * PARTS + part, part * BLOCK + place)


@triton.jit
def argmax_of_parts(
    largest, places, tokens,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_previous(EARLY)
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    values = tl.load(largest + row * PARTS + part, part < PARTS, -float("inf"))
    value, place = tl.max(values, 0, return_indices=True)
    invalid = tl.sum((values != values).to(tl.int32), 0) + (tl.abs(value) == float("inf")).to(tl.int32)
    tl.store(tokens + row, tl.where(invalid > 0, -1, tl.load(places + row * PARTS + place).to(tl.int64)))


@triton.jit
def move(store, moves, count, rows, used, size, MOVES: tl.constexpr, BLOCK: tl.constexpr):
    """Copy row moves[i, 1] of one layer's keys or values to row moves[i, 0] for all i at once.

    `size` numbers per row and head, of which the first `used` are copied. A program copies BLOCK of them in all rows:
    it reads every row before it writes one.
    """
    part, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.num_programs(1)
    k, number = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, MOVES)
    there = (number < count)[:, None] & (k < used)[None, :]
    place = tl.load(moves + 2 * number, number < count, 0)
    row = tl.load(moves + 2 * number + 1, number < count, 0)
    values = tl.load(store + ((part * rows + row) * heads + head)[:, None] * size + k[None, :], there)
    tl.debug_barrier()  # all threads have read
    tl.store(store + ((part * rows + place) * heads + head)[:, None] * size + k[None, :], values, there)
