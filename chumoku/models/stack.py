"""A stack: embedding and position, then L blocks, then (with pre-norm) a final norm. Used for encoders and decoders.

x₀ = dropout(E[token] (· √D) + position),   x_{l+1} = block_l(x_l),   h = norm(x_L)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.models.config import ModelConfig
from chumoku.nn import masks
from chumoku.nn.attention import UNMASKED, Attention, AttentionContext
from chumoku.nn.block import Block
from chumoku.nn.cache import Cache, KeyValue, RollingLayout
from chumoku.nn.dropout import dropout
from chumoku.nn.embeddings import Embedding
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.gpu_kernels import TRITON, has_kernels
from chumoku.nn.moe import MixtureOfExperts, RouterLosses
from chumoku.nn.norms import BatchNorm, LayerNorm, RMSNorm
from chumoku.nn.packing import Packing, make_packing, positions_from_starts
from chumoku.nn.plain import plain_formulas
from chumoku.nn.positions import (
    AlibiPositions,
    LearnedPositions,
    RelativeBias,
    RelativePositions,
    RotaryPositions,
    RotaryScaling,
    Rotation,
    SinusoidalPositions,
)
from chumoku.nn.residual import PendingSum
from chumoku.nn.tap import tap


class Memory(NamedTuple):
    """The encoder output that cross-attention attends to."""

    states: Tensor | Sequence[KeyValue]  # [B, S, D], or its keys and values for each layer
    mask: Tensor | None = None  # [B, S], False for padding
    packing: Packing | None = None  # of the encoder's row

    @property
    def batch(self) -> int:
        return self.states.shape[0] if isinstance(self.states, Tensor) else self.states[0].key.shape[0]

    def layer(self, index: int) -> Tensor | KeyValue:
        return self.states if isinstance(self.states, Tensor) else self.states[index]

    def attention_context(self, target: Packing | None) -> AttentionContext:
        """Return the context for cross-attention; `target` is the packing of the decoder's row."""
        if target is not None and self.packing is not None:
            rows = [(each.query_starts, len(each.query_numbers)) for each in (target, self.packing)]
            return AttentionContext(packing=make_packing(*rows[0], *rows[1]))
        return UNMASKED if self.mask is None else AttentionContext(mask=masks.padding(self.mask))


class Stack(nn.Module):
    """An encoder or decoder of `depth` blocks; `cross` adds cross-attention to each block."""

    TAPS = ("token_embedding", "position", "embedding", "norm")

    def __init__(self, config: ModelConfig, embedding: Embedding, *, depth: int, causal: bool, cross: bool) -> None:
        super().__init__()
        self.causal, self.context = causal, config.context
        self.dropout = config.dropout.embedding
        self.kv_heads, self.head_width = config.key_heads, config.key_width
        self.embedding = embedding
        self.position = make_position(config)
        self.rotary = make_rotary(config)
        self.local_rotary = make_local_rotary(config)
        self.relative = config.position == "relative"
        self.alibi = AlibiPositions(config.heads) if config.position == "alibi" else None
        self.relative_bias = make_relative_bias(config, causal=causal)
        self.window = config.attention_window
        # For each layer, whether it has the window and whether it has rotary positions.
        self.layer_kinds = tuple((config.is_local(layer), config.is_rotated(layer)) for layer in range(depth))
        self.segment = Embedding(config.segments, config.width) if config.segments else None
        self.embedding_norm = make_norm(config) if config.embedding_norm else None
        self.blocks = nn.ModuleList(make_block(config, cross=cross, layer=layer) for layer in range(depth))
        self.norm = None if config.placement == "post" else make_norm(config)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        packing: Packing | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
        losses: RouterLosses | None = None,
    ) -> Tensor:
        """Tokens [B, T] → vectors [B, T, D].

        mask: [B, T], False for padding; or [B, T, T], True where a token may attend to another.
        positions: [B, T]; by default 0, 1, 2 …, with a cache from its end.
        packing: the sequences of a packed row [1, T], from `pack`.
        memory: the encoder output, for stacks with cross-attention.
        losses: collects the losses of the experts' routers.
        """
        self._check(tokens, mask, positions, cache)
        length = tokens.shape[1]
        end = length if cache is None else cache.used + length
        if packing is not None:
            self._check_packed(tokens, packing, mask, positions, memory, cache)
            positions, end = positions_from_starts(packing.query_starts, packing.query_numbers), min(end, self.context)
        elif memory is not None and memory.packing is not None:
            raise ShapeError("A packed source needs a packed target: give the starts of both.")
        elif positions is None:
            positions = torch.arange(length, device=tokens.device) if cache is None else cache.positions(length)
        x = self.embed(tokens, positions, end, segments)
        contexts = {
            kind: self.attention_context(
                positions, mask=mask, packing=packing, cache=cache, dtype=x.dtype, local=kind[0], rotated=kind[1]
            )
            for kind in dict.fromkeys(self.layer_kinds)
        }
        if losses is not None:
            losses = losses.for_tokens(mask if mask is not None and mask.ndim == 2 else None)
        memory_context = UNMASKED if memory is None else memory.attention_context(packing)
        x = self._defer_sums(x)
        for layer, block in enumerate(self.blocks):
            x = block(
                x,
                context=contexts[self.layer_kinds[layer]],
                memory=None if memory is None else memory.layer(layer),
                memory_context=memory_context,
                cache=None if cache is None else cache.layer(layer, positions),
                losses=losses,
            )
        states: Tensor = x
        if self.norm is not None:
            states = tap(self, "norm", x.normalize(self.norm)[1] if isinstance(x, PendingSum) else self.norm(x))
        return states

    def project(self, states: Tensor) -> tuple[KeyValue, ...]:
        """Return the keys and values of an encoder output for the cross-attention of each block."""
        attentions = (block.cross_attention for block in self.blocks if isinstance(block, Block))
        return tuple(attention.project(states) for attention in attentions if attention is not None)

    def embed(self, tokens: Tensor, positions: Tensor, end: int, segments: Tensor | None) -> Tensor:
        x = tap(self, "token_embedding", self.embedding(tokens))
        if self.position is not None:
            x = x + tap(self, "position", self.position(positions, end, x.dtype).expand_as(x))
        if segments is not None and (self.segment is None or segments.shape != tokens.shape):
            raise ShapeError("Segments must have the shape of the tokens, and need a model whose config has segments.")
        if self.segment is not None:
            x = x + self.segment(torch.zeros_like(tokens) if segments is None else segments)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return tap(self, "embedding", dropout(x, self.dropout, self.training))

    def attention_context(
        self,
        positions: Tensor,
        *,
        mask: Tensor | None,
        packing: Packing | None = None,
        cache: Cache | None,
        dtype: torch.dtype,
        local: bool = True,
        rotated: bool = True,
    ) -> AttentionContext:
        """Return the masks and positions for attention, the same for every layer of one kind.

        local: with the attention window, if the model has one.
        rotated: with rotary positions, if the model has them.
        """
        keys = positions if cache is None else cache.key_positions(positions.shape[-1], local=local)
        ragged = cache is not None and cache.lengths is not None
        if ragged:
            allowed: Tensor | None = masks.causal_at(positions, keys)
        elif mask is None:
            allowed = None
        else:
            allowed = masks.padding(mask) if mask.ndim == 2 else mask[:, None]

        def distances() -> Tensor:
            return positions[..., :, None] - keys[..., None, :]

        rotary = self.local_rotary if local and self.local_rotary is not None else self.rotary
        rotation = rotary(positions, dtype) if rotated and rotary is not None else None
        if local and self.window is not None:
            near = masks.window(distances(), self.window)
            allowed = near if allowed is None else allowed & near
        bias = self.alibi or self.relative_bias
        return AttentionContext(
            mask=allowed,
            causal=self.causal and not ragged,
            bias=None if bias is None else bias(distances(), dtype),
            rotation=store_rotation(rotation),
            distances=distances() if self.relative else None,
            packing=packing,
        )

    def _defer_sums(self, x: Tensor) -> Any:
        """Return x as a pending sum if sums are computed together with their norms: in compiled training on a GPU."""
        if not (torch.compiler.is_compiling() and torch.is_grad_enabled() and has_kernels(x)) or plain_formulas():
            return x
        ready = all(isinstance(block, Block) and block.can_defer_sums for block in self.blocks)
        return PendingSum(x) if ready and self.norm is not None else x

    def _check(self, tokens: Tensor, mask: Tensor | None, positions: Tensor | None, cache: Cache | None) -> None:
        integers = (torch.int32, torch.int64)
        if tokens.ndim != 2 or 0 in tokens.shape or tokens.dtype not in integers:
            raise ShapeError(
                f"Tokens must be int64 or int32 of shape [batch, length], each 1 or more; these are {tokens.dtype} of "
                f"shape {list(tokens.shape)}. For one sequence, pass tokens[None]."
            )
        batch, length = tokens.shape
        if positions is not None and (positions.shape != tokens.shape or positions.dtype not in integers):
            raise ShapeError(
                f"Positions must be integers of the tokens' shape {list(tokens.shape)}; these are {positions.dtype} of "
                f"shape {list(positions.shape)}."
            )
        shapes = ((batch, length), (batch, length, length))
        if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) not in shapes):
            raise ShapeError(
                f"A mask must be bool of shape [{batch}, {length}], False for padding, or "
                f"[{batch}, {length}, {length}], True where a token may attend to another; this one is {mask.dtype} of "
                f"shape {list(mask.shape)}."
            )
        if cache is not None:
            if mask is not None or positions is not None:
                raise ShapeError("With a cache, pass lengths instead of a mask or positions; padding is on the right.")
            cache.check(batch, length, layers=len(self.blocks), kv_heads=self.kv_heads, head_width=self.head_width)

    def _check_packed(
        self,
        tokens: Tensor,
        packing: Packing,
        mask: Tensor | None,
        positions: Tensor | None,
        memory: Memory | None,
        cache: Cache | None,
    ) -> None:
        if self.relative or self.alibi or self.relative_bias or self.window is not None:
            raise ShapeError("Packed rows work with sinusoidal, learned, rotary or no positions, and without a window.")
        if mask is not None or positions is not None or cache is not None:
            raise ShapeError("A packed row has starts instead of a mask and positions, and no cache.")
        starts = packing.query_starts
        if memory is not None and (memory.packing is None or memory.packing.query_starts.shape != starts.shape):
            raise ShapeError("A packed target needs a packed source of as many sequences.")


def pack(tokens: Tensor, starts: Tensor) -> Packing:
    """Return the packing of a row [1, T] whose sequences begin at `starts` [P + 1]; the last is the end of the row."""
    if tokens.shape[0] != 1 or starts.ndim != 1 or starts.dtype != torch.int32 or len(starts) < 2:
        raise ShapeError(
            f"A packed row is [1, T] with starts [P + 1] in int32; these are {list(tokens.shape)} and "
            f"{list(starts.shape)} in {starts.dtype}."
        )
    return make_packing(starts, tokens.shape[1], starts, tokens.shape[1])


def store_rotation(rotation: Rotation | None) -> Rotation | None:
    """Return the rotation; in a compiled step on a GPU, stored, so that no layer computes its sines again."""
    if rotation is None or rotation.cos.device.type != "cuda" or not (TRITON and torch.compiler.is_compiling()):
        return rotation
    from chumoku.nn.rotary_kernel import compute_once

    return rotation._replace(cos=compute_once(rotation.cos), sin=compute_once(rotation.sin))


def rolling_layout(config: ModelConfig, capacity: int) -> RollingLayout | None:
    """The layout of the decoder's layers that keep only their last positions in a cache of this capacity."""
    size = config.rolling_size(capacity)
    local = tuple(config.is_local(layer) for layer in range(config.decoder_depth))
    if config.attention_window is None or size is None or not any(local):
        return None
    return RollingLayout(config.attention_window, size, local)


def make_norm(config: ModelConfig) -> nn.Module:
    if config.norm == "rms":
        return make_rms_norm(config, config.width)
    if config.norm == "batch":
        return BatchNorm(config.width, epsilon=config.norm_epsilon)
    return LayerNorm(config.width, epsilon=config.norm_epsilon, bias=config.norm_bias)


def make_rms_norm(config: ModelConfig, width: int) -> RMSNorm:
    return RMSNorm(width, epsilon=config.norm_epsilon, unit_offset=config.norm_unit_offset)


def make_position(config: ModelConfig) -> SinusoidalPositions | LearnedPositions | None:
    match config.position:
        case "sinusoidal":
            variant = config.sinusoidal
            return SinusoidalPositions(
                config.width, pairing=config.pairing, endpoint=variant.endpoint, start=variant.start
            )
        case "learned":
            return LearnedPositions(config.context, config.width)
        case _:
            return None


def make_relative_bias(config: ModelConfig, *, causal: bool) -> RelativeBias | None:
    if config.position != "relative_bias":
        return None
    distance = config.relative_max_distance
    return RelativeBias(config.relative_buckets, config.heads, max_distance=distance, causal=causal)


def make_rotary(config: ModelConfig) -> RotaryPositions | None:
    if config.position != "rotary":
        return None
    rotary, scaling = config.rotary, None
    if rotary.scaling != "none":
        scaling = RotaryScaling(
            rotary.scaling,
            rotary.factor,
            low=rotary.low,
            high=rotary.high,
            original=rotary.original,
            attention_factor=rotary.attention_factor,
            divisors=config.rotary_divisors,
        )
    return RotaryPositions(config.rotated_width, base=rotary.base, pairing=config.pairing, scaling=scaling)


def make_local_rotary(config: ModelConfig) -> RotaryPositions | None:
    """The rotary positions of layers with a window, if they have their own base."""
    base = config.rotary.local_base
    return None if base is None else RotaryPositions(config.rotated_width, base=base, pairing=config.pairing)


def make_attention(config: ModelConfig, *, relative: bool) -> Attention:
    def norm(heads: int) -> RMSNorm | None:
        if config.query_key_norm == "none":
            return None
        return make_rms_norm(config, config.key_width * (heads if config.query_key_norm == "all" else 1))

    return Attention(
        config.width,
        config.heads,
        kv_heads=config.key_heads,
        head_width=config.key_width,
        bias=config.biased_attention != "none",
        output_bias=config.biased_attention == "all",
        dropout=config.dropout.attention,
        relative=RelativePositions(config.relative_clip, config.key_width) if relative else None,
        query_norm=norm(config.heads),
        key_norm=norm(config.key_heads),
        scale=config.attention_scale,
        score_cap=config.score_cap,
    )


def make_feedforward(config: ModelConfig) -> FeedForward | MixtureOfExperts:
    if not config.experts:
        return FeedForward(config.width, config.hidden, kind=config.feedforward, bias=config.bias)
    return MixtureOfExperts(
        config.width,
        config.hidden,
        experts=config.experts,
        per_token=config.experts_per_token,
        normalize=config.normalize_experts,
        shared=config.shared_expert_width,
        kind=config.feedforward,
        bias=config.bias,
    )


def make_block(config: ModelConfig, *, cross: bool, layer: int = 0) -> Block:
    return Block(
        make_attention(config, relative=config.position == "relative"),
        make_feedforward(config),
        norm=lambda: make_norm(config),
        placement=config.placement,
        parallel=config.parallel,
        shared_norm=config.shared_norm,
        normalize_input=config.first_norm or layer > 0,
        cross_attention=make_attention(config, relative=False) if cross else None,
        dropout=config.dropout.sublayer,
    )
