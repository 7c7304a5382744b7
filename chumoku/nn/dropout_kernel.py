"""The random mask of dropout on a GPU, in Triton: 16 random bits for each number.

One call of Philox gives 128 bits, so eight numbers; number n of each eighth of the mask uses the same call.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

STEPS = 1 << 16  # probabilities are multiples of 1 / STEPS


@triton.jit
def fill_mask(mask, seed, count, eighth, dropped, SIZE: tl.constexpr):
    places = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    words = tl.randint4x(tl.load(seed), places)
    for index in tl.static_range(8):
        bits = (words[index // 2] >> (16 * (index % 2))) & 0xFFFF
        numbers = index * eighth + places
        tl.store(mask + numbers, (bits >= dropped).to(tl.uint8), mask=(places < eighth) & (numbers < count))


@torch.library.custom_op("chumoku::draw_mask", mutates_args=())
def draw_mask(seed: Tensor, count: int, dropped: int) -> Tensor:
    """`count` bytes: 0 with probability dropped / STEPS, else 1."""
    mask, eighth = seed.new_empty(count, dtype=torch.uint8), triton.cdiv(count, 8)
    fill_mask[(triton.cdiv(eighth, 512),)](mask, seed, count, eighth, dropped, SIZE=512)
    return mask


@draw_mask.register_fake
def _(seed, count, dropped):
    return seed.new_empty(count, dtype=torch.uint8)
