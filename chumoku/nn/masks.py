"""Attention masks: bool tensors, True where query i may attend to key j.

    causal       M[i, j] = (j ≤ i)            hides later positions
    padding      M[b, j] = (token j of row b is not padding)
    both         causal & padding
    window       M[i, j] = (|i − j| < N)      hides keys that are N or more positions away
    with cache   M[i, j] = (j ≤ past + i)     T new queries after `past` cached keys

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
    """Return the causal mask [T, past + T]; query i is at position past + i."""
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)


def causal_at(positions: Tensor, keys: Tensor) -> Tensor:
    """Return the causal mask [B, 1, T, S] for queries at `positions` [B, T] and keys at `keys`, [S] or [B, S].

    Key positions below 0 are hidden.
    """
    keys = keys[..., None, :]
    return ((keys <= positions[..., None]) & (keys >= 0))[:, None]


def window(distances: Tensor, size: int) -> Tensor:
    """Return a mask [T, S] or [B, 1, T, S], True where the distance, [T, S] or [B, T, S], is below `size`."""
    near = distances.abs() < size
    return near if near.ndim == 2 else near[:, None]


def padding(real: Tensor) -> Tensor:
    """Return `real` [B, S], which is False for padding tokens, as a mask [B, 1, 1, S]."""
    return real[:, None, None, :]


def real_tokens(lengths: Tensor, length: int) -> Tensor:
    """Return a bool tensor [B, S], True for the first `lengths[b]` tokens of row b."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]


def same_document(documents: Tensor) -> Tensor:
    """Return a mask [B, T, T], True where two tokens have the same document number in `documents` [B, T]."""
    return documents[:, :, None] == documents[:, None, :]


def format_mask(mask: Tensor) -> str:
    """Return a mask as lines of 0 and 1: one line per query, one column per key."""
    while mask.ndim > 2 and mask.shape[0] == 1:
        mask = mask[0]
    if mask.ndim > 2:
        raise ShapeError(
            f"This tensor of shape {list(mask.shape)} holds several masks. Select one, as in format_mask(mask[0, 0])."
        )
    return "\n".join(" ".join("01"[allowed] for allowed in row) for row in mask.view(-1, mask.shape[-1]).tolist())
