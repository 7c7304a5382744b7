"""A stack: embedding and position, then L blocks, then (pre-norm) a last norm. Encoders and decoders are both this.

x₀ = dropout(E[token] (· √D) + position),   x_{l+1} = block_l(x_l),   h = norm(x_L)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.models.config import ModelConfig
from chumoku.nn import masks
from chumoku.nn.attention import UNMASKED, Attention, AttentionContext
from chumoku.nn.block import Block
from chumoku.nn.cache import Cache, KeyValue
from chumoku.nn.embeddings import Embedding
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.moe import MixtureOfExperts, RouterLosses
from chumoku.nn.norms import BatchNorm, LayerNorm, RMSNorm
from chumoku.nn.positions import Learned, Relative, Rotary, Scaling, Sinusoidal
from chumoku.nn.tap import tap


class Memory(NamedTuple):
    """What a decoder looks at: an encoder's output [B, S, D], or its keys and values a layer; and what is real."""

    states: Tensor | Sequence[KeyValue]
    mask: Tensor | None = None

    @property
    def batch(self) -> int:
        return self.states.shape[0] if isinstance(self.states, Tensor) else self.states[0].key.shape[0]

    def layer(self, index: int) -> Tensor | KeyValue:
        return self.states if isinstance(self.states, Tensor) else self.states[index]

    @property
    def attention_context(self) -> AttentionContext:
        return UNMASKED if self.mask is None else AttentionContext(mask=masks.padding(self.mask))


class Stack(nn.Module):
    TAPS = ("embedding", "norm")

    def __init__(self, config: ModelConfig, embedding: Embedding, *, depth: int, causal: bool, cross: bool) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = config.dropout.embedding
        self.kv_heads, self.head_width = config.key_heads, config.head_width
        self.embedding = embedding
        self.position = make_position(config)
        self.rotary = make_rotary(config)
        self.relative = config.position == "relative"
        self.segment = Embedding(config.segments, config.width) if config.segments else None
        self.embedding_norm = make_norm(config) if config.embedding_norm else None
        self.blocks = nn.ModuleList(make_block(config, cross=cross) for _ in range(depth))
        self.norm = make_norm(config) if config.placement == "pre" else None

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
        losses: RouterLosses | None = None,
    ) -> Tensor:
        """Tokens [B, T] → vectors [B, T, D].

        `mask` is [B, T], True where a token is real, or [B, T, T], True where one may look at another;
        `positions` is [B, T] where they do not simply count up.
        """
        self._check(tokens, mask, positions, cache)
        length = tokens.shape[1]
        end = length if cache is None else cache.used + length
        if positions is None:
            positions = torch.arange(length, device=tokens.device) if cache is None else cache.positions(length)
        x = self.embed(tokens, positions, end, segments)
        context = self.attention_context(positions, end, mask=mask, cache=cache, dtype=x.dtype)
        if losses is not None:
            losses = losses.for_tokens(mask if mask is not None and mask.ndim == 2 else None)
        memory_context = UNMASKED if memory is None else memory.attention_context
        for layer, block in enumerate(self.blocks):
            x = block(
                x,
                context=context,
                memory=None if memory is None else memory.layer(layer),
                memory_context=memory_context,
                past=None if cache is None else cache.past(layer, positions),
                losses=losses,
            )
        return x if self.norm is None else tap(self, "norm", self.norm(x))

    def project(self, states: Tensor) -> tuple[KeyValue, ...]:
        """The keys and values that each block's cross-attention makes of an encoder's output."""
        crosses = (block.cross_attention for block in self.blocks if isinstance(block, Block))
        return tuple(cross.project(states) for cross in crosses if cross is not None)

    def embed(self, tokens: Tensor, positions: Tensor, end: int, segments: Tensor | None) -> Tensor:
        x = self.embedding(tokens)
        if self.position is not None:
            x = x + self.position(positions, end, x.dtype)
        if segments is not None and (self.segment is None or segments.shape != tokens.shape):
            raise ShapeError("Segments are numbers of the tokens' shape, for a model whose config has segments.")
        if self.segment is not None:
            x = x + self.segment(torch.zeros_like(tokens) if segments is None else segments)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return tap(self, "embedding", F.dropout(x, self.dropout, self.training))

    def attention_context(
        self, positions: Tensor, end: int, *, mask: Tensor | None, cache: Cache | None, dtype: torch.dtype
    ) -> AttentionContext:
        """What each token may see and from where; the same for every block."""
        ragged = cache is not None and cache.lengths is not None
        if ragged:
            allowed: Tensor | None = masks.causal_at(positions, end)
        elif mask is None:
            allowed = None
        else:
            allowed = masks.padding(mask) if mask.ndim == 2 else mask[:, None]
        distances = None
        if self.relative:
            keys = positions if cache is None else torch.arange(end, device=positions.device)
            distances = positions[..., :, None] - keys[..., None, :]
        return AttentionContext(
            mask=allowed,
            causal=self.causal and not ragged,
            rotation=None if self.rotary is None else self.rotary(positions, dtype),
            distances=distances,
        )

    def _check(self, tokens: Tensor, mask: Tensor | None, positions: Tensor | None, cache: Cache | None) -> None:
        whole = (torch.int32, torch.int64)
        if tokens.ndim != 2 or 0 in tokens.shape or tokens.dtype not in whole:
            raise ShapeError(
                f"Tokens are int64 (or int32) of shape [batch, length], each 1 or more; these are {tokens.dtype} of "
                f"shape {list(tokens.shape)}. One sequence is a batch of one: tokens[None]."
            )
        batch, length = tokens.shape
        if positions is not None and (positions.shape != tokens.shape or positions.dtype not in whole):
            raise ShapeError(
                f"Positions are whole numbers of the tokens' shape {list(tokens.shape)}; these are {positions.dtype} "
                f"of shape {list(positions.shape)}."
            )
        shapes = ((batch, length), (batch, length, length))
        if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) not in shapes):
            raise ShapeError(
                f"A mask is bool of shape [{batch}, {length}] (which tokens are real) or [{batch}, {length}, {length}] "
                f"(who may look at whom); this one is {mask.dtype} of shape {list(mask.shape)}."
            )
        if cache is not None:
            if mask is not None or positions is not None:
                raise ShapeError(
                    "With a cache, rows are filled up on the right and their positions follow from the past: "
                    "give lengths instead of a mask or positions."
                )
            cache.check(batch, length, layers=len(self.blocks), kv_heads=self.kv_heads, head_width=self.head_width)


def make_norm(config: ModelConfig) -> nn.Module:
    kinds = {"layer": LayerNorm, "rms": RMSNorm, "batch": BatchNorm}
    return kinds[config.norm](config.width, epsilon=config.norm_epsilon)


def make_position(config: ModelConfig) -> Sinusoidal | Learned | None:
    match config.position:
        case "sinusoidal":
            return Sinusoidal(config.width, pairing=config.pairing)
        case "learned":
            return Learned(config.context, config.width)
        case _:
            return None


def make_rotary(config: ModelConfig) -> Rotary | None:
    if config.position != "rotary":
        return None
    chosen = config.rotary
    scaling = None
    if chosen.scaling != "none":
        scaling = Scaling(chosen.scaling, chosen.factor, low=chosen.low, high=chosen.high, original=chosen.original)
    return Rotary(config.head_width, base=chosen.base, pairing=config.pairing, scaling=scaling)


def make_attention(config: ModelConfig, *, relative: bool) -> Attention:
    return Attention(
        config.width,
        config.heads,
        kv_heads=config.key_heads,
        bias=config.bias,
        dropout=config.dropout.attention,
        relative=Relative(config.relative_clip, config.head_width) if relative else None,
    )


def make_feedforward(config: ModelConfig) -> FeedForward | MixtureOfExperts:
    if not config.experts:
        return FeedForward(config.width, config.hidden, kind=config.feedforward, bias=config.bias)
    return MixtureOfExperts(
        config.width,
        config.hidden,
        experts=config.experts,
        per_token=config.experts_per_token,
        kind=config.feedforward,
        bias=config.bias,
    )


def make_block(config: ModelConfig, *, cross: bool) -> Block:
    return Block(
        make_attention(config, relative=config.position == "relative"),
        make_feedforward(config),
        norm=lambda: make_norm(config),
        placement=config.placement,
        cross_attention=make_attention(config, relative=False) if cross else None,
        dropout=config.dropout.sublayer,
    )
