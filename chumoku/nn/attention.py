"""Attention: each position takes a weighted average of the values of other positions.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V

    query  [B, H, T, K]
    key    [B, G, S, K]
    value  [B, G, S, K]

H / G query heads share one key/value head (G = H: multi-head attention as in 2017; G = 1: multi-query attention).
`attend` is the formula. `attend_fused` gives the same output with PyTorch's fused kernels, which do not store the T × S
weights. Models use `attend_fused`; inside `chumoku.plain()` they use `attend`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn import masks
from chumoku.nn.cache import KeyValue, LayerCache, RollingLayer
from chumoku.nn.dropout import dropout as drop
from chumoku.nn.ensemble import in_ensemble
from chumoku.nn.gpu_kernels import has_kernels
from chumoku.nn.joined_attention import attend_joined, project_joined
from chumoku.nn.modules import apply_linear
from chumoku.nn.norms import RMSNorm
from chumoku.nn.packing import Packing
from chumoku.nn.plain import plain_formulas
from chumoku.nn.positions import RelativePositions, Rotation, rotate
from chumoku.nn.soft_cap import soft_cap
from chumoku.nn.tap import is_recorded, tap


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output softmax(Q Kᵀ / √d_k + bias) V [B, H, T, K] and the weights [B, H, T, S].

    mask: bool, broadcastable to [B, H, T, S]; True where a query may attend to a key.
    bias: added to the scores.
    causal: hide later keys from each query; the last query has the position of the last key.
    dropout: probability of dropping a weight. The returned weights are those before dropout.
    cap: limits the scores by soft-capping.
    """
    _, weights = compute_attention_weights(query, key, mask=mask, bias=bias, causal=causal, cap=cap)
    return drop(weights, dropout, training=True) @ repeat_kv(value, query), weights


def compute_attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the scores Q Kᵀ / √d_k + bias and their softmax over the allowed keys, both [B, H, T, S]."""
    scores = query @ repeat_kv(key, query).transpose(-2, -1) / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    scores = soft_cap(scores, cap)
    allowed = combine_masks(query, key, mask=mask, causal=causal)
    weights = mask_scores(scores, allowed).softmax(-1)
    return scores, weights if allowed is None else weights.masked_fill(~allowed, 0.0)


def mask_scores(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Return the scores with the lowest finite number for hidden keys; with -∞, a query without keys would get NaN."""
    return scores if allowed is None else scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)


def attend_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Return the output of `attend`, computed by PyTorch's fused kernels."""
    grouped = key.shape[1] != query.shape[1]
    if mask is None and bias is None:
        # The kernels' is_causal aligns the first query with the first key, which is right only without a cache.
        if causal and query.shape[2] == key.shape[2]:
            return _attend_unmasked(query, key, value, True, dropout, grouped)
        if not causal or query.shape[2] == 1:
            return _attend_unmasked(query, key, value, False, dropout, grouped)
        if _reads_cache_on_gpu(query, key):
            # A part of a prompt after its past: the flash kernel aligns the last query with the last key.
            from torch.nn.attention.bias import causal_lower_right  # imports the compiler

            bias = causal_lower_right(query.shape[2], key.shape[2])
            return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=grouped)
    allowed = combine_masks(query, key, mask=mask, causal=causal)
    # Without a mask, a query has no allowed key only when there are more queries than keys.
    may_be_empty = mask is not None or (causal and query.shape[2] > key.shape[2])
    no_keys = ~allowed.any(-1, keepdim=True) if allowed is not None and may_be_empty else None
    if allowed is not None and no_keys is not None:
        allowed = allowed | no_keys
    if bias is not None:
        bias = bias.to(query.dtype)
        allowed = bias if allowed is None else bias.masked_fill(~allowed, -math.inf)
    if grouped and query.device.type != "cpu" and query.dtype == torch.float32:
        # The GPU's masked float32 kernels need as many key heads as query heads; the bf16 ones do not (docs/log.md).
        key, value, grouped = repeat_kv(key, query), repeat_kv(value, query), False
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout, enable_gqa=grouped)
    return output if no_keys is None else output.masked_fill(no_keys, 0.0)


def _reads_cache_on_gpu(query: Tensor, key: Tensor) -> bool:
    """Whether these are 16-bit queries after a past, without gradients, so that a mask [T, S] can be left out."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not query.is_cuda:
        return False
    return query.dtype != torch.float32 and query.dtype != torch.float64 and query.shape[2] < key.shape[2]


def _attend_unmasked(query: Tensor, key: Tensor, value: Tensor, causal: bool, dropout: float, grouped: bool) -> Tensor:
    if torch.compiler.is_compiling() and not dropout:
        from chumoku.nn.cudnn_attention import attend_fixed_shape, suits_cudnn  # imports the compiler

        if suits_cudnn(query):
            return attend_fixed_shape(query, key, value, causal, grouped)  # type: ignore[no-any-return]
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal, dropout_p=dropout, enable_gqa=grouped)


def attend_packed(query: Tensor, key: Tensor, value: Tensor, packing: Packing, *, causal: bool = False) -> Tensor:
    """Return `attend` within each sequence of a packed row, [1, H, T, K], without a mask [T, S]."""
    key, value = repeat_kv(key, query), repeat_kv(value, query)
    output: Tensor
    if not has_kernels(query):
        if not torch.compiler.is_compiling():
            return _attend_one_by_one(query, key, value, packing, causal)
        # The compiler would compile it again for every batch, because the lengths differ.
        from chumoku.nn.uncompiled import call_uncompiled

        output = call_uncompiled(_attend_one_by_one, query, key, value, packing, causal)
        return output
    from chumoku.nn.packed_kernels import attend_tiles

    rows = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))  # [0] would copy the gradient
    output = attend_tiles(*rows, *packing[2:], causal)[0]
    return output.transpose(0, 1)[None]


def _attend_one_by_one(query: Tensor, key: Tensor, value: Tensor, packing: Packing, causal: bool) -> Tensor:
    parts = [
        torch.split(part, starts.diff().tolist(), dim=2)
        for part, starts in ((query, packing.query_starts), (key, packing.key_starts), (value, packing.key_starts))
    ]
    return torch.cat([attend_fused(*each, causal=causal) for each in zip(*parts, strict=True)], dim=2)


def combine_masks(query: Tensor, key: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor | None:
    """Return the mask combined with the causal mask; the last query has the position of the last key."""
    if not causal:
        return mask
    length, past = query.shape[2], key.shape[2] - query.shape[2]
    causal_mask = masks.causal(length, past=past, device=query.device)
    return causal_mask if mask is None else mask & causal_mask


def repeat_kv(kv: Tensor, query: Tensor) -> Tensor:
    """Repeat each of the G heads of keys or values H / G times, so that every query head has its own."""
    times = query.shape[1] // kv.shape[1]
    return kv if times == 1 else kv.repeat_interleave(times, dim=1)


class AttentionContext(NamedTuple):
    """Masks and position information that attention needs besides the vectors."""

    mask: Tensor | None = None  # [T, S], or up to [B, H, T, S]; True where a query may attend to a key
    causal: bool = False  # hide later keys from each query
    bias: Tensor | None = None  # added to the scores; finite (use `mask` to hide keys)
    rotation: Rotation | None = None  # rotary positions: cos and sin to rotate queries and keys with
    distances: Tensor | None = None  # relative positions: query position minus key position, [T, S] or [B, T, S]
    packing: Packing | None = None  # the sequences of a packed row, instead of a mask and a bias

    def dense_mask(self) -> Tensor | None:
        """The mask, also for a packed row."""
        return self.mask if self.packing is None else self.packing.mask()


UNMASKED = AttentionContext()


class Attention(nn.Module):
    """Multi-head attention with query, key, value and output projections: [B, T, D] → [B, T, D].

    kv_heads: number of key/value heads, a divisor of `heads`; by default `heads`.
    head_width: width of each head; by default width / heads.
    output_bias: whether the output projection has a bias; by default as the others, `bias`.
    relative: the relative position bias to add to the scores, if any.
    query_norm, key_norm: RMS norms over each head's width, or over all heads together.
    scale: multiplies q·k in the scores; by default 1 / √head_width.
    score_cap: limits the scores by soft-capping, for which there is no fused kernel.
    """

    TAPS = ("queries", "keys", "values", "scores", "masked_scores", "weights", "heads", "output")

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        dropout: float = 0.0,
        relative: RelativePositions | None = None,
        query_norm: RMSNorm | None = None,
        key_norm: RMSNorm | None = None,
        scale: float | None = None,
        score_cap: float | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if min(width, heads, kv_heads) < 1 or (head_width is None and width % heads) or heads % kv_heads:
            raise ShapeError(
                f"The width ({width}) must be a multiple of the heads ({heads}), and the heads a multiple of the "
                f"key/value heads ({kv_heads})."
            )
        self.head_width = width // heads if head_width is None else head_width
        self.dropout, self.score_cap = dropout, score_cap
        # The formula divides scores by √K; queries multiplied by this give any other scale.
        self.query_factor = 1.0 if scale is None else scale * math.sqrt(self.head_width)
        self.query = nn.Linear(width, heads * self.head_width, bias=bias)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=bias)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=bias)
        self.output = nn.Linear(heads * self.head_width, width, bias=bias if output_bias is None else output_bias)
        self.query_norm, self.key_norm = query_norm, key_norm
        self.relative = relative

    def forward(
        self,
        x: Tensor,
        source: Tensor | KeyValue | None = None,
        *,
        context: AttentionContext = UNMASKED,
        cache: LayerCache | RollingLayer | None = None,
        add_bias: bool = True,
    ) -> Tensor:
        """Attend from `x` to `source`.

        source: None for self-attention; for cross-attention a sequence [B, S, D], or the result of `project`.
        cache: this layer's part of a cache; the new keys and values are appended to it.
        add_bias: False leaves out the bias of the output product.
        """
        fused = self._can_fuse_projections()
        attended = attend_joined(self, x, source, context) if fused and cache is None else None
        if attended is not None:
            return self._join_heads(attended, add_bias)
        if source is None and fused:
            query, key, value = project_joined(self, x, context)
        else:
            query = self._split(self.query(x), self.query_norm)
            key, value = source if isinstance(source, KeyValue) else self.project(x if source is None else source)
        if self.query_factor != 1.0:
            query = query * self.query_factor
        if context.rotation is not None:
            query, key = rotate(query, context.rotation), rotate(key, context.rotation)
        if cache is not None:
            key, value = cache.append(key, value)
        context = context._replace(bias=self._bias(query, context))
        heads = self._attend(query, key, value, context)
        self._record(query, key, value, context)
        return self._join_heads(heads, add_bias)

    def _join_heads(self, heads: Tensor, add_bias: bool) -> Tensor:
        joined = tap(self, "heads", heads).transpose(1, 2).flatten(2)
        return tap(self, "output", apply_linear(self.output, joined, add_bias=add_bias))

    def project(self, source: Tensor) -> KeyValue:
        """Return the keys and values of a sequence. Cross-attention computes them once for all steps."""
        return KeyValue(self._split(self.key(source), self.key_norm), self._split(self.value(source)))

    def extra_repr(self) -> str:
        heads, kv_heads = (part.out_features // self.head_width for part in (self.query, self.key))
        return f"heads={heads}, kv_heads={kv_heads}, head_width={self.head_width}, dropout={self.dropout}"

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        causal, bias = context.causal, context.bias
        if plain_formulas() or self.score_cap is not None or (dropout and in_ensemble()):
            mask, cap = context.dense_mask(), self.score_cap
            return attend(query, key, value, mask=mask, bias=bias, causal=causal, dropout=dropout, cap=cap)[0]
        if context.packing is not None:
            if dropout:
                raise ShapeError("Packed rows have no dropout of attention weights: set dropout.attention to 0.")
            return attend_packed(query, key, value, context.packing, causal=causal)
        mask = context.mask
        return attend_fused(query, key, value, mask=mask, bias=bias, causal=causal, dropout=dropout)

    def _can_fuse_projections(self) -> bool:
        """Return True in compiled training without adapters and quantized weights."""
        if not torch.compiler.is_compiling() or not torch.is_grad_enabled() or plain_formulas():
            return False
        return all(isinstance(part, nn.Linear) for part in (self.query, self.key, self.value))

    def join_projections(self, *parts: nn.Linear) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias for one product of these projections: 6 % less time in a step of GPT-2."""
        bias = None if self.query.bias is None else torch.cat([part.bias for part in parts])
        return torch.cat([part.weight for part in parts]), bias

    def split_joined(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of one product, [B, T, (H + 2 G) K]."""
        widths = [part.out_features for part in (self.query, self.key, self.value)]
        query, key, value = torch.split(joined, widths, dim=-1)
        return self._split(query, self.query_norm), self._split(key, self.key_norm), self._split(value)

    def _split(self, x: Tensor, norm: RMSNorm | None = None) -> Tensor:
        """[B, T, H·K] → [B, H, T, K], normalized over as many elements as the norm has: K or H·K."""
        if norm is not None:
            x = norm(x.view(*x.shape[:-1], -1, len(norm.gamma))).flatten(-2)
        return x.view(*x.shape[:-1], -1, self.head_width).transpose(1, 2)

    def _bias(self, query: Tensor, context: AttentionContext) -> Tensor | None:
        if self.relative is None:
            return context.bias
        if context.distances is None:
            raise ShapeError("Relative positions need the distances between queries and keys: set context.distances.")
        relative: Tensor = self.relative(query, context.distances)
        return relative if context.bias is None else relative + context.bias

    def _record(self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> None:
        tap(self, "queries", query)
        tap(self, "keys", key)
        tap(self, "values", value)
        if is_recorded(self, "scores", "masked_scores", "weights"):
            with torch.no_grad():
                mask = context.dense_mask()
                scores, weights = compute_attention_weights(
                    query, key, mask=mask, bias=context.bias, causal=context.causal, cap=self.score_cap
                )
                allowed = combine_masks(query, key, mask=mask, causal=context.causal)
            tap(self, "scores", scores)
            tap(self, "masked_scores", mask_scores(scores, allowed))
            tap(self, "weights", weights)
