"""Embeddings: tokens in, logits out.

x = E[token]               the row of the table, the same as one-hot(token) · E
logits = h Eᵀ  or  h W     tied: the table read the other way; untied: a matrix of its own
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import LengthError


class Embedding(nn.Module):
    """The token table [V, D]. `scale` multiplies by √D, so that positions added later do not drown the words."""

    def __init__(self, vocabulary: int, width: int, *, scale: bool = False) -> None:
        super().__init__()
        self.factor = math.sqrt(width) if scale else 1.0
        self.table = nn.Parameter(torch.empty(vocabulary, width))

    def forward(self, tokens: Tensor) -> Tensor:
        check_range(tokens, len(self.table), "token")
        x = F.embedding(tokens, self.table)
        return x if self.factor == 1.0 else x * self.factor


class Logits(nn.Module):
    """Vectors → one number per token of the vocabulary. Tied, it owns no matrix and is handed the table."""

    def __init__(self, vocabulary: int, width: int, *, tied: bool, bias: bool = False) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.empty(vocabulary)) if bias else None

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return F.linear(x, table if self.weight is None else self.weight, self.bias)


def check_range(index: Tensor, size: int, what: str) -> None:
    """Refuse indices outside a table. On a CPU alone: elsewhere asking would make the device wait."""
    if index.device.type != "cpu" or torch.compiler.is_compiling():
        return
    low, high = index.aminmax()
    if low < 0 or high >= size:
        wrong = int(low) if low < 0 else int(high)
        raise LengthError(f"There is no {what} {wrong}: this table has {size}, numbered 0 to {size - 1}.")
