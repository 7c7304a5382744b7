"""Attention whose projections are joined, so that few tensors are between two products.

    self-attention     [Q K V] in one tensor, for a packed row [T, 3, H, K]
    cross-attention    [K V] of the source in one tensor [S, 2, H, K]; packed rows only

Only compiled training on a GPU uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from chumoku.nn.cache import KeyValue
from chumoku.nn.gpu_kernels import has_kernels
from chumoku.nn.packing import Packing

if TYPE_CHECKING:
    from chumoku.nn.attention import Attention, AttentionContext


def project_joined(attention: Attention, x: Tensor, context: AttentionContext) -> tuple[Tensor, ...]:
    """Return Q [B, H, T, K], K and V [B, G, T, K] of x [B, T, D], by one product."""
    weight, bias = attention.join_projections(attention.query, attention.key, attention.value)
    changed = attention.query_norm is not None or attention.query_factor != 1.0 or context.rotation is not None
    # Where something changes the heads, the compiler changes their gradients back and joins them in one pass.
    if bias is None or changed or not has_kernels(x):
        return attention.split_joined(F.linear(x, weight, bias))
    from chumoku.nn.joined_projection_kernel import project_heads

    widths = {"head_width": attention.head_width, "kv_width": attention.key.out_features}
    heads: tuple[Tensor, ...] = project_heads(x, weight, bias, **widths)
    return heads


def attend_joined(
    attention: Attention, x: Tensor, source: Tensor | KeyValue | None, context: AttentionContext
) -> Tensor | None:
    """Return the heads [1, H, T, K] of x [1, T, D], which attends to the source or to itself, or None if the kernels
    cannot compute this attention.
    """
    if context.packing is None or not has_kernels(x) or not _ordinary(attention):
        return None
    if source is None:
        return _attend_to_itself(attention, x, context.packing, context)
    if isinstance(source, KeyValue) or context.rotation is not None:
        return None
    return _attend_to_source(attention, x, source, context.packing)


def _attend_to_itself(attention: Attention, x: Tensor, packing: Packing, context: AttentionContext) -> Tensor | None:
    rotation, width = context.rotation, attention.head_width
    if width & (width - 1) or (rotation is not None and rotation.pairing != "half"):
        return None
    if rotation is not None and 2 * rotation.cos.shape[-1] != width:
        return None
    from chumoku.nn.joined_attention_kernel import attend_joined_tiles

    angles = (None, None) if rotation is None else (rotation.cos.flatten(0, -2), rotation.sin.flatten(0, -2))
    weight, bias = attention.join_projections(attention.query, attention.key, attention.value)
    rows, heads = (packing.query_numbers, packing.tiles), attention.query.out_features // width
    output: Tensor = attend_joined_tiles(x.squeeze(0), weight, bias, *angles, *rows, heads, context.causal)[0]
    return output.transpose(0, 1)[None]


def _attend_to_source(attention: Attention, x: Tensor, source: Tensor, packing: Packing) -> Tensor:
    from chumoku.nn.joined_attention_kernel import attend_source_tiles

    width = attention.head_width
    query = attention.query(x).view(x.shape[1], -1, width)
    joined = F.linear(source, *attention.join_projections(attention.key, attention.value)).view(
        source.shape[1], 2, -1, width
    )
    output: Tensor = attend_source_tiles(query, joined, *packing[2:])[0]
    return output.transpose(0, 1)[None]


def _ordinary(attention: Attention) -> bool:
    """Whether every query head has a key of its own, and nothing but a rotation changes queries, keys and scores."""
    heads_are_equal = attention.key.out_features == attention.query.out_features
    scores_are_plain = attention.score_cap is None and attention.relative is None and attention.query_factor == 1.0
    return heads_are_equal and scores_are_plain and attention.query_norm is None and not attention.dropout
