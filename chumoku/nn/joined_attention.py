"""Self-attention of a packed row whose queries, keys and values stay in one tensor, [1, T, 3 · H · K].

The kernels of rotary_kernel.py and packed_kernels.py read that tensor and write its gradient as a whole, so nothing is
split, copied or joined again between the matrix products. Only compiled training on a GPU uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from chumoku.nn.gpu_kernels import has_kernels

if TYPE_CHECKING:
    from chumoku.nn.attention import Attention, AttentionContext


def attend_joined(attention: Attention, joined: Tensor, context: AttentionContext) -> Tensor | None:
    """Return the heads [1, H, T, K], or None if the kernels cannot compute this attention."""
    packing, rotation, width = context.packing, context.rotation, attention.head_width
    if packing is None or not has_kernels(joined) or not _ordinary(attention):
        return None
    if width & (width - 1) or (rotation is not None and rotation.pairing != "half"):
        return None
    from chumoku.nn.packed_kernels import attend_joined_tiles
    from chumoku.nn.rotary_kernel import rotate_joined

    row = joined.view(joined.shape[1], 3, -1, width)
    if rotation is not None:
        if 2 * rotation.cos.shape[-1] != width:
            return None
        row = rotate_joined(row, rotation.cos.flatten(0, -2), rotation.sin.flatten(0, -2), False)
    output: Tensor = attend_joined_tiles(row, packing.query_numbers, packing.key_ranges, context.causal)[0]
    return output.transpose(0, 1)[None]


def _ordinary(attention: Attention) -> bool:
    """Whether every query head has a key of its own, and nothing but a rotation changes queries, keys and scores."""
    heads_are_equal = attention.key.out_features == attention.query.out_features
    scores_are_plain = attention.score_cap is None and attention.relative is None and attention.query_factor == 1.0
    return heads_are_equal and scores_are_plain and attention.query_norm is None and not attention.dropout
