"""Packed sequences: several sequences one after another in a single row, without padding.

    row        a a a b b c c c c        starts = 0 3 5 9        positions = 0 1 2 0 1 0 1 2 3

Attention stays within each sequence, as with the mask M[i, j] = (query i and key j belong to the same sequence). Every
batch has the same shape then, for which a GPU's step is compiled once, and no product is spent on padding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.nn.gpu_kernels import TRITON


class Packing(NamedTuple):
    """The sequences of a row of queries and a row of keys, from `make_packing`. A sequence may be empty."""

    query_starts: Tensor  # [P + 1], int32: sequence p has the queries query_starts[p] … query_starts[p + 1] − 1
    key_starts: Tensor  # [P + 1], int32
    query_numbers: Tensor  # [T], int32: the sequence of each query
    key_numbers: Tensor  # [S], int32
    tiles: Tensor | None  # [N, 8], int32: what the GPU's kernels compute together (`packed_tiles.py`)

    def mask(self) -> Tensor:
        """Return the mask [T, S], True where a query and a key belong to the same sequence."""
        return self.query_numbers[:, None] == self.key_numbers


def make_packing(query_starts: Tensor, queries: int, key_starts: Tensor, keys: int) -> Packing:
    """Return the packing of rows of `queries` and `keys` tokens, whose sequences begin at the starts."""
    numbers = sequence_numbers(query_starts, queries), sequence_numbers(key_starts, keys)
    tiles = None
    if TRITON and query_starts.device.type == "cuda":
        from chumoku.nn.packed_tiles import cut_tiles

        tiles = cut_tiles(query_starts, queries, key_starts, keys)
    return Packing(query_starts, key_starts, *numbers, tiles)


def sequence_numbers(starts: Tensor, length: int) -> Tensor:
    """Return the number of the sequence that each token of a row of `length` tokens belongs to."""
    places = torch.arange(length, device=starts.device, dtype=starts.dtype)
    return torch.searchsorted(starts, places, right=True, out_int32=True) - 1


def positions_from_starts(starts: Tensor, numbers: Tensor) -> Tensor:
    """Return positions [1, T] that count from 0 in each sequence of a packed row."""
    return (torch.arange(len(numbers), device=starts.device) - starts[numbers])[None]
