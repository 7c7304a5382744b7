"""Mixture of experts for few rows, in Triton: each token reads only the weights of the experts that it chose.

route       g = softmax(z), the k largest with their experts, scaled to sum to 1 if NORMALIZE        z = W_router x
up          h_i = f(W_i x + b_i)                                     gated: f(W_i x + b_i) ⊙ (W'_i x + b'_i)
down        Σ_i g_i (V_i h_i + c_i)                                  over the chosen experts i

Which weights are read depends on the router, so unlike those of `product` they cannot be loaded before it is done.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import triton
import triton.language as tl

from chumoku.decoding.engines.gpu.kernels import activation, load_floats, wait_for_previous


@triton.jit
def route(
    logits, shares, totals, chosen,
    EXPERTS: tl.constexpr, PER_TOKEN: tl.constexpr, NORMALIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The experts that a token chooses, their shares, and the number to divide these by."""
    wait_for_previous(EARLY)
    token, e = tl.program_id(0), tl.arange(0, BLOCK)
    z = tl.load(logits + token * EXPERTS + e, e < EXPERTS, -float("inf")).to(tl.float32)
    weight = tl.exp(z - tl.max(z, 0))
    weight /= tl.sum(weight, 0)
    left, whole = tl.where(e < EXPERTS, weight, -1.0), 0.0
    at = token * PER_TOKEN
    for number in tl.static_range(PER_TOKEN):
        share, expert = tl.max(left, 0, return_indices=True)
        tl.store(chosen + at + number, expert)
        tl.store(shares + at + number, share)
        left = tl.where(e == expert, -1.0, left)
        whole += share
    tl.store(totals + token, whole if NORMALIZE else 1.0)


@triton.jit
def up(
    x, weight, second, bias, second_bias, chosen, out,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PER_TOKEN: tl.constexpr,
    KIND: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program is (block of outputs, token and choice)."""
    wait_for_previous(EARLY)
    pair = tl.program_id(1)
    n, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    expert = tl.load(chosen + pair).to(tl.int64)
    vector = tl.load(x + (pair // PER_TOKEN) * INPUTS + k, k < INPUTS, 0.0).to(tl.float32)[None, :]
    y = tl.sum(load_floats(weight + expert * OUTPUTS * INPUTS, n, k, OUTPUTS, INPUTS).to(tl.float32) * vector, 1)
    if BIAS:
        y += tl.load(bias + expert * OUTPUTS + n, n < OUTPUTS, 0.0).to(tl.float32)
    y = activation(y, KIND)
    if GATED:
        z = tl.sum(load_floats(second + expert * OUTPUTS * INPUTS, n, k, OUTPUTS, INPUTS).to(tl.float32) * vector, 1)
        if BIAS:
            z += tl.load(second_bias + expert * OUTPUTS + n, n < OUTPUTS, 0.0).to(tl.float32)
        y *= z
    tl.store(out + pair * OUTPUTS + n, y, n < OUTPUTS)


@triton.jit
def down(
    hidden, weight, bias, shares, totals, chosen, out,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PER_TOKEN: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program is (block of outputs, token)."""
    wait_for_previous(EARLY)
    token = tl.program_id(1)
    n, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_N], tl.float32)
    for number in range(PER_TOKEN):
        pair = token * PER_TOKEN + number
        expert = tl.load(chosen + pair).to(tl.int64)
        vector = tl.load(hidden + pair * INPUTS + k, k < INPUTS, 0.0).to(tl.float32)[None, :]
        y = tl.sum(load_floats(weight + expert * OUTPUTS * INPUTS, n, k, OUTPUTS, INPUTS).to(tl.float32) * vector, 1)
        if BIAS:
            y += tl.load(bias + expert * OUTPUTS + n, n < OUTPUTS, 0.0).to(tl.float32)
        total += tl.load(shares + pair) * y
    tl.store(out + token * OUTPUTS + n, total / tl.load(totals + token), n < OUTPUTS)
