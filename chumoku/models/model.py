"""The three kinds of models, built from the same stack.

encoder           every token attends to all tokens           masked-token logits, one vector per text
decoder           every token attends to itself and earlier   next-token logits
both              with head = "classes" or "tags"             logits of the classes of a text, or of the tags of tokens
encoder-decoder   a decoder that also attends to the output of an encoder
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.models.config import ModelConfig
from chumoku.models.heads import LabelHead, MaskedHead, make_logits, pool
from chumoku.models.stack import Memory, Stack, pack, rolling_layout
from chumoku.nn.cache import Cache
from chumoku.nn.embeddings import Embedding, Logits
from chumoku.nn.moe import RouterLosses
from chumoku.nn.soft_cap import soft_cap
from chumoku.nn.tap import tap


class Output(NamedTuple):
    """The result of a forward pass; fields that a model does not have are None."""

    logits: Tensor | None  # [B, T, V]; of classes [B, C], of tags [B, T, C]
    hidden: Tensor  # [B, T, D], after the last norm
    vector: Tensor | None = None  # [B, D], encoders
    cache: Cache | None = None  # the cache after this step, if one was given
    losses: RouterLosses | None = None  # with experts, in training


class Model(nn.Module):
    """Base class of the three models."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def compute_logits(self, head: nn.Module, hidden: Tensor, table: Tensor) -> Tensor:
        """Return the logits of the head, scaled and soft-capped; `table` is the embedding."""
        return self.scale_and_cap(head(hidden, table))

    def run_head(self, head: nn.Module, hidden: Tensor, table: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits of tokens, classes or tags; `mask` [B, T] is False for padding."""
        if isinstance(head, LabelHead):
            logits: Tensor = head(hidden, mask if mask is not None and mask.ndim == 2 else None)
        else:
            logits = self.compute_logits(head, hidden, table)
        return tap(self, "logits", logits)

    def output_product(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Return x, W and b if the logits are W x + b and nothing else; None for labels, scaled and capped logits."""
        stack: Any = self.encoder if self.config.kind == "encoder" else self.decoder
        head: Any = self.head
        if self.config.scale_logits or self.config.logit_cap is not None:
            return None
        if type(head) is MaskedHead:
            hidden, head = head.before_logits(hidden), head.logits
        if type(head) is not Logits:
            return None
        return hidden, stack.embedding.table if head.weight is None else head.weight, head.bias

    def scale_and_cap(self, logits: Tensor) -> Tensor:
        """Return logits / √D and soft-capped, each if the config says so."""
        if self.config.scale_logits:
            logits = logits / math.sqrt(self.config.width)
        return soft_cap(logits, self.config.logit_cap)

    def _new_losses(self) -> RouterLosses | None:
        return RouterLosses() if self.training and self.config.experts else None

    def _new_cache(self, batch: int, capacity: int) -> Cache:
        return Cache.empty(
            self.config.decoder_depth,
            batch,
            capacity,
            kv_heads=self.config.key_heads,
            head_width=self.config.key_width,
            layout=rolling_layout(self.config, capacity),
            dtype=self.dtype,
            device=self.device,
        )


class EncoderModel(Model):
    """An encoder such as BERT: one vector per text, and logits of masked tokens, classes or tags."""

    TAPS: tuple[str, ...] = ("logits", "vector")

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        embedding = Embedding(config.vocabulary, config.width, scale=config.scale_embedding)
        self.encoder = Stack(config, embedding, depth=config.encoder_depth, causal=False, cross=False)
        self.head: MaskedHead | LabelHead | None = None
        if config.labels is not None:
            self.head = LabelHead(config)
        elif config.head_kind == "masked":
            self.head = MaskedHead(config)
        else:
            self.TAPS = ("vector",)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Output:
        """Encode tokens [B, T].

        mask: [B, T], False for padding; or [B, T, T], True where a token may attend to another.
        positions: [B, T]; by default 0, 1, 2 …
        segments: [B, T], token types; by default 0.
        """
        losses = self._new_losses()
        hidden = self.encoder(tokens, mask=mask, positions=positions, segments=segments, losses=losses)
        logits = None
        if self.head is not None:
            logits = self.run_head(self.head, hidden, self.encoder.embedding.table, mask)
        real = mask if mask is not None and mask.ndim == 2 else None
        vector = pool(hidden, real, kind=self.config.pooling, normalize=self.config.normalize)
        return Output(logits, hidden, vector=tap(self, "vector", vector), losses=losses)


class DecoderModel(Model):
    """A decoder such as GPT-2 or Llama: logits of the next token, or of classes or tags."""

    TAPS = ("logits",)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        embedding = Embedding(config.vocabulary, config.width, scale=config.scale_embedding)
        self.decoder = Stack(config, embedding, depth=config.decoder_depth, causal=True, cross=False)
        self.head: Any = make_logits(config) if config.labels is None else LabelHead(config)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        lengths: Tensor | None = None,
    ) -> Output:
        """Return logits for tokens [B, T]; logits[:, t] predict the token after tokens[:, t].

        mask, positions: as in EncoderModel; not allowed with a cache.
        cache: from `new_cache` or an earlier step; `tokens` are then the tokens that follow it.
        lengths: [B], with a cache: how many tokens of each row are not padding.
        """
        check_lengths(cache, tokens, lengths)
        if cache is not None and self.config.labels is not None:
            raise ShapeError("A model with classes or tags reads a text at once; call it without a cache.")
        losses = self._new_losses()
        expecting = None if cache is None else cache.expect(lengths)
        hidden = self.decoder(tokens, mask=mask, positions=positions, cache=expecting, losses=losses)
        logits = self.run_head(self.head, hidden, self.decoder.embedding.table, mask)
        return Output(logits, hidden, cache=advance_cache(cache, tokens, lengths), losses=losses)

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """Return an empty cache for `batch` sequences of up to `capacity` tokens."""
        return self._new_cache(batch, capacity)


class EncoderDecoderModel(Model):
    """An encoder-decoder such as the Transformer of 2017: target logits for a source text."""

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
        source_starts: Tensor | None = None,
        target_starts: Tensor | None = None,
    ) -> Output:
        """Encode the source and decode the whole target at once; logits[:, t] predict the token after target[:, t].

        The masks are [B, S] and [B, T], False for padding. For packed rows, [1, S] and [1, T], the starts are [P + 1]:
        where each sequence starts, and the end of the last (`chumoku.nn.packing`).
        """
        losses = self._new_losses()
        memory = self.encode(source, mask=source_mask, starts=source_starts, losses=losses)
        return self.decode(target, memory, mask=target_mask, starts=target_starts, losses=losses)

    def encode(
        self,
        source: Tensor,
        *,
        mask: Tensor | None = None,
        starts: Tensor | None = None,
        losses: RouterLosses | None = None,
    ) -> Memory:
        """Return the encoder output for source tokens [B, S]; `mask` [B, S] is False for padding."""
        if mask is not None and mask.ndim != 2:
            raise ShapeError(f"A source mask must be [batch, length], False for padding; this is {list(mask.shape)}.")
        packing = None if starts is None else pack(source, starts)
        return Memory(self.encoder(source, mask=mask, packing=packing, losses=losses), mask, packing)

    def decode(
        self,
        target: Tensor,
        memory: Memory | None = None,
        *,
        mask: Tensor | None = None,
        starts: Tensor | None = None,
        cache: Cache | None = None,
        lengths: Tensor | None = None,
        losses: RouterLosses | None = None,
    ) -> Output:
        """Decode target tokens, given the result of `encode` or a cache made from it with `new_cache`."""
        check_lengths(cache, target, lengths)
        if memory is None:
            if cache is None or cache.memory is None:
                raise ShapeError(
                    "This decoder needs an encoder output: pass memory, or a cache from new_cache(memory)."
                )
            memory = Memory(cache.memory, cache.memory_mask)
        if memory.batch != target.shape[0]:
            raise ShapeError(f"There must be as many sources ({memory.batch}) as targets ({target.shape[0]}).")
        packing = None if starts is None else pack(target, starts)
        expecting = None if cache is None else cache.expect(lengths)
        hidden = self.decoder(target, mask=mask, packing=packing, memory=memory, cache=expecting, losses=losses)
        logits = tap(self, "logits", self.compute_logits(self.head, hidden, self.decoder.embedding.table))
        return Output(logits, hidden, cache=advance_cache(cache, target, lengths), losses=losses)

    def new_cache(self, memory: Memory, capacity: int) -> Cache:
        """Return a new cache for up to `capacity` target tokens, with the memory's keys and values of every layer."""
        if not isinstance(memory.states, Tensor):
            raise ShapeError("new_cache needs the memory that `encode` returned.")
        states = memory.states
        cache = self._new_cache(states.shape[0], capacity)
        return cache.with_memory(self.decoder.project(states), memory.mask)


def advance_cache(cache: Cache | None, tokens: Tensor, lengths: Tensor | None) -> Cache | None:
    return None if cache is None else cache.advance(tokens.shape[1], lengths)


def check_lengths(cache: Cache | None, tokens: Tensor, lengths: Tensor | None) -> None:
    if lengths is None:
        return
    if cache is None:
        raise ShapeError("Lengths are only used with a cache; without one, mark padding with a mask.")
    cache.check_lengths(lengths, tokens.shape[1])
