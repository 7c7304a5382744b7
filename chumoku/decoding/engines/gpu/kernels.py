"""The kernels of a step on a GPU, in Triton; those of attention are in attention.py.

embed      x = E[token] · factor + P[position]; in a step, each row's length grows by one
product    out = residual + f(W norm(x) + b)                    gated: f(W norm(x) + b) ⊙ (W' norm(x) + b')
           the same with int4 weights, without the norm
norm       LayerNorm or RMSNorm of each row
activate   f(x), or f(x) ⊙ x' for the two halves of each row
argmax     the token of the largest logit
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
    """The norm of a row x that is zero outside `inside`; the result is zero there too."""
    if NORM == "layer":
        x = tl.where(inside, x - tl.sum(x, 0) / WIDTH, 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / WIDTH + epsilon) * gamma.to(tl.float32)
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
def product(
    x, weight, scale, bias, gamma, beta, residual, out, epsilon,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, SCALED: tl.constexpr,
    NORM: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """BLOCK_N outputs of every row; whole rows of the weight are loaded at once, each only once."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    there, inside = n < OUTPUTS, k < INPUTS
    GROUPS: tl.constexpr = (INPUTS + 31) // 32
    STRIDE: tl.constexpr = GROUPS * 32 if SCALED else INPUTS
    at = n.to(tl.int64)[:, None] * STRIDE + k[None, :]
    real = there[:, None] & inside[None, :]
    first = tl.load(weight + at, real, 0)
    if GATED:
        second = tl.load(weight + OUTPUTS * STRIDE + at, real, 0)
    if SCALED:  # one scale for 32 weights
        group = scale + n.to(tl.int64)[:, None] * GROUPS + k[None, :] // 32
        first = first.to(tl.float32) * tl.load(group, real, 0.0).to(tl.float32)
        if GATED:
            second = second.to(tl.float32) * tl.load(group + OUTPUTS * GROUPS, real, 0.0).to(tl.float32)
    if NORM != "none":
        by, shift = tl.load(gamma + k, inside, 0.0), tl.load(beta + k, inside, 0.0)
    wait_for_previous(EARLY)
    for row in tl.static_range(ROWS):
        vector = tl.load(x + row * INPUTS + k, inside, 0.0).to(tl.float32)
        if NORM != "none":
            vector = normalize(vector, by, shift, inside, epsilon, INPUTS, NORM)
        y = tl.sum(first.to(tl.float32) * vector[None, :], 1)
        if BIAS:
            y += tl.load(bias + n, there, 0.0).to(tl.float32)
        if KIND != "none":
            y = activation(y, KIND)
        if GATED:
            z = tl.sum(second.to(tl.float32) * vector[None, :], 1)
            if BIAS:
                z += tl.load(bias + OUTPUTS + n, there, 0.0).to(tl.float32)
            y *= z
        if RESIDUAL:
            y += tl.load(residual + row * OUTPUTS + n, there, 0.0).to(tl.float32)
        tl.store(out + row * OUTPUTS + n, y, there)


@triton.jit
def product_int4(
    x, weight, scale, low, bias, residual, out,
    GROUPS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
    KIND: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The same for weights s q + m: Σ s (Σ q x) + m (Σ x), with inner sums over groups of 32 inputs."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    g, j = tl.arange(0, BLOCK_G), tl.arange(0, 16)
    there, inside = n < OUTPUTS, g < GROUPS
    real = there[:, None] & inside[None, :]
    at = n.to(tl.int64)[:, None] * GROUPS + g[None, :]
    # A byte holds q of input i of a group (low bits) and of input i + 16 (high bits).
    first = tl.load(weight + at[:, :, None] * 16 + j[None, None, :], real[:, :, None], 0)
    s, m = tl.load(scale + at, real, 0.0).to(tl.float32), tl.load(low + at, real, 0.0).to(tl.float32)
    if GATED:
        at += OUTPUTS * GROUPS
        second = tl.load(weight + at[:, :, None] * 16 + j[None, None, :], real[:, :, None], 0)
        t, u = tl.load(scale + at, real, 0.0).to(tl.float32), tl.load(low + at, real, 0.0).to(tl.float32)
    wait_for_previous(EARLY)
    for row in tl.static_range(ROWS):
        places = x + row * GROUPS * 32 + g[:, None] * 32 + j[None, :]
        front = tl.load(places, inside[:, None], 0.0).to(tl.float32)
        back = tl.load(places + 16, inside[:, None], 0.0).to(tl.float32)
        whole = tl.sum(front + back, 1)[None, :]
        y = tl.sum(s * halves(first, front, back) + m * whole, 1)
        if BIAS:
            y += tl.load(bias + n, there, 0.0).to(tl.float32)
        if KIND != "none":
            y = activation(y, KIND)
        if GATED:
            z = tl.sum(t * halves(second, front, back) + u * whole, 1)
            if BIAS:
                z += tl.load(bias + OUTPUTS + n, there, 0.0).to(tl.float32)
            y *= z
        if RESIDUAL:
            y += tl.load(residual + row * OUTPUTS + n, there, 0.0).to(tl.float32)
        tl.store(out + row * OUTPUTS + n, y, there)


@triton.jit
def halves(both, front, back):
    """Σ q x over each group [N, G], from bytes [N, G, 16] and inputs [G, 16]."""
    low, high = (both & 15).to(tl.float32), (both >> 4).to(tl.float32)
    return tl.sum(low * front[None, :, :] + high * back[None, :, :], 2)


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
    """The largest logit of each part of a row, and its index."""
    wait_for_previous(EARLY)
    row, part = tl.program_id(0), tl.program_id(1)
    n = part * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row.to(tl.int64) * VOCABULARY + n, n < VOCABULARY, -float("inf")).to(tl.float32)
    value, place = tl.max(values, 0, return_indices=True)
    tl.store(largest + row * PARTS + part, value)
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
    place = tl.argmax(values, 0)
    tl.store(tokens + row, tl.load(places + row * PARTS + place).to(tl.int64))


@triton.jit
def move(store, moves, rows, used, size, BLOCK: tl.constexpr):
    """Copy row moves[1] of one layer's keys or values to row moves[0]; `size` numbers per row and head."""
    part, head, number = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    place, row = tl.load(moves + 2 * number), tl.load(moves + 2 * number + 1)
    target = store + ((part * rows + place) * heads + head) * size
    source = store + ((part * rows + row) * heads + head) * size
    for start in range(0, used, BLOCK):
        k = start + tl.arange(0, BLOCK)
        tl.store(target + k, tl.load(source + k, k < used), k < used)
