"""Attention: each position looks at others and takes what it finds.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V

    query  [B, H, T, K]   what each position looks for
    key    [B, G, S, K]   what each position can be found by
    value  [B, G, S, K]   what each position gives

H query heads share G key/value heads, H / G each (G = H is the multi-head attention of 2017, G = 1 multi-query).
`attend` is the formula; `attend_fused` is its fast twin, which never forms the T × S weights. The fast one runs, and
inside `chumoku.plain()` the formula does.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn import masks
from chumoku.nn.cache import KeyValue, LayerCache
from chumoku.nn.plain import plain_formulas
from chumoku.nn.positions import Relative, Rotation, rotate
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
) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √d_k + bias) V and the softmax itself, as on paper."""
    _, weights = compute_attention_weights(query, key, mask=mask, bias=bias, causal=causal)
    return F.dropout(weights, dropout) @ repeat_kv(value, query), weights


def compute_attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """The scores Q Kᵀ / √d_k + bias, and their softmax over what each query may see [B, H, T, S]."""
    scores = query @ repeat_kv(key, query).transpose(-2, -1) / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    seen = combine_masks(query, key, mask=mask, causal=causal)
    if seen is None:
        return scores, scores.softmax(-1)
    # The lowest finite number instead of -∞: a query that may see nothing gets zeros, not 0/0.
    weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
    return scores, weights.masked_fill(~seen, 0.0)


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
    """The output of `attend` from PyTorch's fused kernels."""
    grouped = key.shape[1] != query.shape[1]
    if mask is None and bias is None:
        # The kernels' own causal rule counts from the first key, which is ours only when there is no past.
        if causal and query.shape[2] == key.shape[2]:
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, dropout_p=dropout, enable_gqa=grouped
            )
        if not causal or query.shape[2] == 1:
            return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, enable_gqa=grouped)
    seen = combine_masks(query, key, mask=mask, causal=causal)
    # The causal rule alone blinds a query only where there are more queries than keys.
    may_blind = mask is not None or (causal and query.shape[2] > key.shape[2])
    blind = ~seen.any(-1, keepdim=True) if seen is not None and may_blind else None
    if seen is not None and blind is not None:
        seen = seen | blind
    if bias is not None:
        bias = bias.to(query.dtype)
        seen = bias if seen is None else bias.masked_fill(~seen, -math.inf)
    if grouped and query.device.type != "cpu" and query.dtype == torch.float32:
        # In float32 the GPU's masked kernels want as many key heads as query heads; bf16 ones share (docs/log.md).
        key, value, grouped = repeat_kv(key, query), repeat_kv(value, query), False
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout, enable_gqa=grouped)
    return output if blind is None else output.masked_fill(blind, 0.0)


def combine_masks(query: Tensor, key: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor | None:
    """The mask with the causal rule in it: the last query stands beside the last key."""
    if not causal:
        return mask
    length, past = query.shape[2], key.shape[2] - query.shape[2]
    rule = masks.causal(length, past=past, device=query.device)
    return rule if mask is None else mask & rule


def repeat_kv(shared: Tensor, query: Tensor) -> Tensor:
    """Repeat each of G key/value heads for the H / G query heads that use it."""
    times = query.shape[1] // shared.shape[1]
    return shared if times == 1 else shared.repeat_interleave(times, dim=1)


class AttentionContext(NamedTuple):
    """What queries may see, and from where: everything about a look that is not in the vectors themselves."""

    mask: Tensor | None = None  # [T, S], or up to [B, H, T, S]; True = may look
    causal: bool = False  # no query sees a later key
    bias: Tensor | None = None  # added to the scores; finite, since hiding is the mask's task
    rotation: Rotation | None = None  # rotary positions: how far to turn queries and keys
    distances: Tensor | None = None  # relative positions: [T, S] or [B, T, S], query's place minus key's


UNMASKED = AttentionContext()


class Attention(nn.Module):
    """Multi-head attention with its four projections.

    Queries come from `x`; keys and values come from `source`: from x itself (self-attention), from another sequence
    (cross-attention), or as keys and values computed earlier. `past` holds what earlier steps left in a cache.
    """

    TAPS = ("queries", "keys", "values", "scores", "weights", "heads", "output")

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        relative: Relative | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if min(width, heads, kv_heads) < 1 or width % heads or heads % kv_heads:
            raise ShapeError(
                f"{heads} heads must divide width {width}, and {kv_heads} key/value heads must divide the heads."
            )
        self.head_width = width // heads
        self.dropout = dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=bias)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        self.relative = relative

    def forward(
        self,
        x: Tensor,
        source: Tensor | KeyValue | None = None,
        *,
        context: AttentionContext = UNMASKED,
        past: LayerCache | None = None,
    ) -> Tensor:
        if source is None and self._projects_at_once():
            query, key, value = self._project_at_once(x)
        else:
            query = self._split(self.query(x))
            key, value = source if isinstance(source, KeyValue) else self.project(x if source is None else source)
        if context.rotation is not None:
            query, key = rotate(query, context.rotation), rotate(key, context.rotation)
        if past is not None:
            key, value = past.extend(key, value)
        context = context._replace(bias=self._bias(query, context))
        heads = self._attend(query, key, value, context)
        self._show(query, key, value, context)
        heads = tap(self, "heads", heads)
        return tap(self, "output", self.output(heads.transpose(1, 2).flatten(2)))

    def project(self, source: Tensor) -> KeyValue:
        """The keys and values of a sequence: for cross-attention these are computed once and used at every step."""
        return KeyValue(self._split(self.key(source)), self._split(self.value(source)))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        mask, causal, bias = context.mask, context.causal, context.bias
        if plain_formulas():
            return attend(query, key, value, mask=mask, bias=bias, causal=causal, dropout=dropout)[0]
        return attend_fused(query, key, value, mask=mask, bias=bias, causal=causal, dropout=dropout)

    def _projects_at_once(self) -> bool:
        """Whether to use one product: in compiled training, of bare matrices without adapters or quantized weights."""
        if not torch.compiler.is_compiling() or not torch.is_grad_enabled() or plain_formulas():
            return False
        return all(isinstance(part, nn.Linear) for part in (self.query, self.key, self.value))

    def _project_at_once(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of one sequence as one product: training compiled, 6 % of a GPT-2 step."""
        parts = (self.query, self.key, self.value)
        bias = None if self.query.bias is None else torch.cat([part.bias for part in parts])
        together = F.linear(x, torch.cat([part.weight for part in parts]), bias)
        query, key, value = torch.split(together, [part.out_features for part in parts], dim=-1)
        return self._split(query), self._split(key), self._split(value)

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, H·K] → [B, H, T, K]"""
        return x.view(*x.shape[:-1], -1, self.head_width).transpose(1, 2)

    def _bias(self, query: Tensor, context: AttentionContext) -> Tensor | None:
        if self.relative is None:
            return context.bias
        if context.distances is None:
            raise ShapeError(
                "Relative positions need distances between queries and keys: give AttentionContext(distances=...)."
            )
        relative: Tensor = self.relative(query, context.distances)
        return relative if context.bias is None else relative + context.bias

    def _show(self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> None:
        tap(self, "queries", query)
        tap(self, "keys", key)
        tap(self, "values", value)
        if is_recorded(self, "scores", "weights"):
            with torch.no_grad():
                scores, weights = compute_attention_weights(
                    query, key, mask=context.mask, bias=context.bias, causal=context.causal
                )
            tap(self, "scores", scores)
            tap(self, "weights", weights)
