"""Masks: who may look at whom. Bool, and True = may look, everywhere.

    causal     M[i, j] = (j ≤ i)            no position sees a later one
    padding    M[b, j] = (j is a real token)
    both       causal & padding
    a past     M[i, j] = (j ≤ past + i)     T new queries behind `past` earlier keys

Every mask broadcasts against scores [B, H, T, S], so masks combine with `&` and `|`:

    >>> print(format_mask(causal(3)))
    1 0 0
    1 1 0
    1 1 1
"""

from __future__ import annotations

import torch
from torch import Tensor

from chumoku.errors import ShapeError


def causal(length: int, *, past: int = 0, device: torch.device | None = None) -> Tensor:
    """[T, past + T]: query i stands at position past + i and sees the keys up to its own."""
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)


def causal_at(positions: Tensor, keys: int) -> Tensor:
    """[B, 1, T, S] for rows that stand at different places: `positions` [B, T] says where each query is."""
    return (torch.arange(keys, device=positions.device) <= positions[..., None])[:, None]


def padding(real: Tensor) -> Tensor:
    """[B, 1, 1, S] from `real` [B, S]: True where a token is real, False where it fills up the row."""
    return real[:, None, None, :]


def real_tokens(lengths: Tensor, length: int) -> Tensor:
    """[B, S]: the first `lengths[b]` tokens of row b are real."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]


def same_document(documents: Tensor) -> Tensor:
    """[B, T, T] from `documents` [B, T], the number of the document each token belongs to."""
    return documents[:, :, None] == documents[:, None, :]


def format_mask(mask: Tensor) -> str:
    """A mask as rows of 0 and 1: a row per query, a column per key."""
    while mask.ndim > 2 and mask.shape[0] == 1:
        mask = mask[0]
    if mask.ndim > 2:
        raise ShapeError(
            f"A picture shows one mask, and this tensor of shape {list(mask.shape)} holds several. "
            "Choose one first, as in format_mask(mask[0, 0])."
        )
    return "\n".join(" ".join("01"[seen] for seen in row) for row in mask.view(-1, mask.shape[-1]).tolist())
