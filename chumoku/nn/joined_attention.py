"""Self-attention of a packed row whose queries, keys and values stay in one tensor, [T, 3, H, K].

Only compiled training on a GPU uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from chumoku.nn.gpu_kernels import has_kernels

if TYPE_CHECKING:
    from chumoku.nn.attention import Attention, AttentionContext


def attend_joined(
    attention: Attention, x: Tensor, weight: Tensor, bias: Tensor | None, context: AttentionContext
) -> Tensor | None:
    """Return the heads [1, H, T, K] of x [1, T, D], or None if the kernels cannot compute this attention.

    weight, bias: of the queries, keys and values, joined.
    """
    packing, rotation, width = context.packing, context.rotation, attention.head_width
    if packing is None or not has_kernels(x) or not _ordinary(attention):
        return None
    if width & (width - 1) or (rotation is not None and rotation.pairing != "half"):
        return None
    if rotation is not None and 2 * rotation.cos.shape[-1] != width:
        return None
    from chumoku.nn.joined_attention_kernel import attend_joined_tiles

    angles = (None, None) if rotation is None else (rotation.cos.flatten(0, -2), rotation.sin.flatten(0, -2))
    rows, heads = (packing.query_numbers, packing.key_ranges), attention.query.out_features // width
    output: Tensor = attend_joined_tiles(x.squeeze(0), weight, bias, *angles, *rows, heads, context.causal)[0]
    return output.transpose(0, 1)[None]


def _ordinary(attention: Attention) -> bool:
    """Whether every query head has a key of its own, and nothing but a rotation changes queries, keys and scores."""
    heads_are_equal = attention.key.out_features == attention.query.out_features
    scores_are_plain = attention.score_cap is None and attention.relative is None and attention.query_factor == 1.0
    return heads_are_equal and scores_are_plain and attention.query_norm is None and not attention.dropout
