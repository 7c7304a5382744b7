"""The three models, made of the same stack.

encoder           every token sees every token          masked-token logits, a vector for the whole
decoder           every token sees itself and earlier    next-token logits
encoder-decoder   a decoder that also looks at an encoder's output
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.models.config import ModelConfig
from chumoku.models.heads import MaskedHead, make_logits, pool
from chumoku.models.stack import Memory, Stack
from chumoku.nn.cache import Cache
from chumoku.nn.embeddings import Embedding
from chumoku.nn.moe import RouterLosses
from chumoku.nn.tap import tap


class Output(NamedTuple):
    """What a model returns; what does not apply is None."""

    logits: Tensor | None  # [B, T, V]
    hidden: Tensor  # [B, T, D], after the last norm
    vector: Tensor | None = None  # [B, D], encoders
    cache: Cache | None = None  # the cache after this step, when one was given
    losses: RouterLosses | None = None  # of the experts' routers, in training


class Model(nn.Module):
    """What the three have in common: their config, and where they live."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def _losses(self) -> RouterLosses | None:
        return RouterLosses() if self.training and self.config.experts else None

    def _new_cache(self, batch: int, capacity: int) -> Cache:
        return Cache.empty(
            self.config.decoder_depth,
            batch,
            capacity,
            kv_heads=self.config.key_heads,
            head_width=self.config.head_width,
            dtype=self.dtype,
            device=self.device,
        )


class EncoderModel(Model):
    TAPS: tuple[str, ...] = ("logits", "vector")

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        embedding = Embedding(config.vocabulary, config.width, scale=config.scale_embedding)
        self.encoder = Stack(config, embedding, depth=config.encoder_depth, causal=False, cross=False)
        self.head = MaskedHead(config) if config.head_kind == "masked" else None
        if self.head is None:
            self.TAPS = ("vector",)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Output:
        losses = self._losses()
        hidden = self.encoder(tokens, mask=mask, positions=positions, segments=segments, losses=losses)
        logits = None
        if self.head is not None:
            logits = tap(self, "logits", self.head(hidden, self.encoder.embedding.table))
        real = mask if mask is not None and mask.ndim == 2 else None
        vector = pool(hidden, real, kind=self.config.pooling, normalize=self.config.normalize)
        return Output(logits, hidden, vector=tap(self, "vector", vector), losses=losses)


class DecoderModel(Model):
    TAPS = ("logits",)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        embedding = Embedding(config.vocabulary, config.width, scale=config.scale_embedding)
        self.decoder = Stack(config, embedding, depth=config.decoder_depth, causal=True, cross=False)
        self.head = make_logits(config)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        lengths: Tensor | None = None,
    ) -> Output:
        """With a cache, `tokens` are the next ones; `lengths` [B] says how many of them are real in each row."""
        check_lengths(cache, tokens, lengths)
        losses = self._losses()
        hidden = self.decoder(tokens, mask=mask, positions=positions, cache=cache, losses=losses)
        logits = tap(self, "logits", self.head(hidden, self.decoder.embedding.table))
        return Output(logits, hidden, cache=advanced(cache, tokens, lengths), losses=losses)

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for `batch` sequences of up to `capacity` tokens."""
        return self._new_cache(batch, capacity)


class EncoderDecoderModel(Model):
    TAPS = ("logits",)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        embedding = Embedding(config.vocabulary, config.width, scale=config.scale_embedding)
        source = embedding
        if not config.share_embeddings:
            source = Embedding(config.source_tokens, config.width, scale=config.scale_embedding)
        self.encoder = Stack(config, source, depth=config.encoder_depth, causal=False, cross=False)
        self.decoder = Stack(config, embedding, depth=config.decoder_depth, causal=True, cross=True)
        self.head = make_logits(config)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Output:
        """The whole target at once, as in training: logits[:, t] follow target[:, :t + 1]."""
        losses = self._losses()
        memory = self.encode(source, mask=source_mask, losses=losses)
        return self.decode(target, memory, mask=target_mask, losses=losses)

    def encode(self, source: Tensor, *, mask: Tensor | None = None, losses: RouterLosses | None = None) -> Memory:
        """What the decoder will look at; `mask` [B, S] is True where a source token is real."""
        if mask is not None and mask.ndim != 2:
            raise ShapeError(
                f"A source mask is [batch, length], True where a token is real; this is {list(mask.shape)}."
            )
        return Memory(self.encoder(source, mask=mask, losses=losses), mask)

    def decode(
        self,
        target: Tensor,
        memory: Memory | None = None,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        lengths: Tensor | None = None,
        losses: RouterLosses | None = None,
    ) -> Output:
        """Target tokens after a memory, or after a cache that holds it (see `new_cache`)."""
        check_lengths(cache, target, lengths)
        if memory is None:
            if cache is None or cache.memory is None:
                raise ShapeError("A decoder needs something to look at: give a memory, or a cache made from one.")
            memory = Memory(cache.memory, cache.memory_mask)
        if memory.batch != target.shape[0]:
            raise ShapeError(f"{memory.batch} sources and {target.shape[0]} targets do not make pairs.")
        hidden = self.decoder(target, mask=mask, memory=memory, cache=cache, losses=losses)
        logits = tap(self, "logits", self.head(hidden, self.decoder.embedding.table))
        return Output(logits, hidden, cache=advanced(cache, target, lengths), losses=losses)

    def new_cache(self, memory: Memory, capacity: int) -> Cache:
        """An empty cache that holds the memory's keys and values for every layer, computed here and only here."""
        if not isinstance(memory.states, Tensor):
            raise ShapeError("A cache is made from what `encode` returned.")
        states = memory.states
        cache = self._new_cache(states.shape[0], capacity)
        return cache.with_memory(self.decoder.project(states), memory.mask)


def advanced(cache: Cache | None, tokens: Tensor, lengths: Tensor | None) -> Cache | None:
    return None if cache is None else cache.advance(tokens.shape[1], lengths)


def check_lengths(cache: Cache | None, tokens: Tensor, lengths: Tensor | None) -> None:
    if lengths is None:
        return
    if cache is None:
        raise ShapeError("Lengths go with a cache; without one, say which tokens are real with a mask.")
    cache.check_lengths(lengths, tokens.shape[1])
