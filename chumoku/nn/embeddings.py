"""Embeddings: tokens in, logits out.

x = E[token]               the row of the table, the same as one-hot(token) · E
logits = h Eᵀ  or  h W     tied: the embedding table is the output matrix; untied: a separate matrix
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import LengthError
from chumoku.nn.ensemble import in_ensemble


class Embedding(nn.Module):
    """Token ids [B, T] → vectors [B, T, D]. `scale` multiplies by √D, so that positions added later do not dominate."""

    def __init__(self, vocabulary: int, width: int, *, scale: bool = False) -> None:
        super().__init__()
        self.factor = math.sqrt(width) if scale else 1.0
        self.table = nn.Parameter(torch.empty(vocabulary, width))

    def forward(self, tokens: Tensor) -> Tensor:
        check_range(tokens, len(self.table), "token")
        x = F.embedding(tokens, self.table)
        return x if self.factor == 1.0 else x * self.factor

    def extra_repr(self) -> str:
        vocabulary, width = self.table.shape
        return f"vocabulary={vocabulary}, width={width}, factor={self.factor:.4g}"


class Logits(nn.Module):
    """Vectors [..., D] → logits [..., V]. If tied, it has no matrix and uses the embedding table given to `forward`."""

    def __init__(self, vocabulary: int, width: int, *, tied: bool, bias: bool = False) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.empty(vocabulary)) if bias else None

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return F.linear(x, table if self.weight is None else self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = "" if self.weight is None else f"vocabulary={self.weight.shape[0]}, width={self.weight.shape[1]}, "
        return f"{sizes}tied={self.weight is None}, bias={self.bias is not None}"


def check_range(index: Tensor, size: int, what: str) -> None:
    """Raise if an index is outside a table. Skipped on a GPU, where the check would wait for the device."""
    if index.device.type != "cpu" or torch.compiler.is_compiling() or in_ensemble():
        return
    low, high = map(int, index.aminmax())
    check_bounds(low, high, size, what)


def check_bounds(low: int, high: int, size: int, what: str) -> None:
    """Raise if the lowest or the highest index is outside a table."""
    if low < 0 or high >= size:
        raise LengthError(
            f"There is no {what} {low if low < 0 else high}: this table has {size}, numbered 0 to {size - 1}."
        )
