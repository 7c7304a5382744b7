"""Packed sequences: several sequences one after another in a single row, without padding.

    row        a a a b b c c c c        starts = 0 3 5 9        positions = 0 1 2 0 1 0 1 2 3

Attention stays within each sequence, as with the mask M[i, j] = (query i and key j belong to the same sequence). Every
batch has the same shape then, and no product is spent on padding: the fastest way to train on a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Where the sequences of a row start among its queries and among its keys: [P + 1] each, the last is the end.

    Sequence p has the queries query_starts[p] … query_starts[p + 1] − 1. It may be empty.
    """

    query_starts: Tensor
    key_starts: Tensor
    longest: int  # no sequence has more queries or keys

    def mask(self, queries: int, keys: int) -> Tensor:
        """Return the mask [T, S], True where a query and a key belong to the same sequence."""
        return sequence_numbers(self.query_starts, queries)[:, None] == sequence_numbers(self.key_starts, keys)


def sequence_numbers(starts: Tensor, length: int) -> Tensor:
    """Return the number of the sequence that each position of a row of `length` tokens belongs to."""
    positions = torch.arange(length, device=starts.device, dtype=starts.dtype)
    return torch.searchsorted(starts, positions, right=True) - 1


def positions_from_starts(starts: Tensor, length: int) -> Tensor:
    """Return positions [1, T] that count from 0 in each sequence of a packed row."""
    return (torch.arange(length, device=starts.device) - starts[sequence_numbers(starts, length)])[None]


def has_varlen_kernel(query: Tensor) -> bool:
    """Whether the GPU's attention kernel for sequences of different lengths can compute this."""
    return query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16)


def attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, *, causal: bool, dropout: float
) -> Tensor:
    """Attention within each sequence by the GPU's kernel: [1, H, T, K] → [1, H, T, K]."""
    rows = (part[0].transpose(0, 1) for part in (query, key, value))
    starts, longest = (packing.query_starts, packing.key_starts), packing.longest
    output: Tensor = torch.ops.aten._flash_attention_forward(*rows, *starts, longest, longest, dropout, causal, False)[
        0
    ]
    return output.transpose(0, 1)[None]
