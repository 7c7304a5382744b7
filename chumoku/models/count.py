"""Config → parameters by part, FLOPs per token and memory, without building the model.

attention      2 D·H·K + 2 D·G·K (4 D² when every head has its own keys and H·K = D), plus biases
feed-forward   2 D·F, gated 3 D·F, times the experts
FLOPs          2 per weight that multiplies a token, and 4·H·K·S per attention for scores and weighted values
training       forward + backward = 3 × forward;  weights + gradients + two Adam moments = 16 bytes per parameter
decoding       weights, and 2·L·G·K numbers per token for the cache; layers with an attention window keep only the last

An attention window saves no FLOPs in a pass over a whole text: all scores are computed, and distant keys are hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig

BYTES = {"float32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0625, "int4": 0.625}  # with scales

Term = tuple[int, ...]  # factors of a product


@dataclass(frozen=True)
class Part:
    """The parameters of one part, as a sum of products."""

    terms: tuple[Term, ...]

    @property
    def parameters(self) -> int:
        return sum(math.prod(term) for term in self.terms)

    @property
    def arithmetic(self) -> str:
        products = (" × ".join(f"{n:,}" for n in term if n != 1) or "1" for term in self.terms if math.prod(term))
        return " + ".join(products)


@dataclass(frozen=True)
class Count:
    """The size of a model, at a sequence length, batch size and decoding precision."""

    parts: dict[str, Part]
    active: int  # parameters used for one token: all except those of unused experts
    forward_flops: int  # per token
    training_bytes: int  # weights, gradients and optimizer state in float32
    activation_bytes: int  # stored for the backward pass, in float32
    weight_bytes: int  # for decoding
    cache_bytes: int
    length: int
    batch: int
    precision: str

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts.values())

    @property
    def training_flops(self) -> int:
        return 3 * self.forward_flops

    def as_dict(self) -> dict[str, Any]:
        numbers = {key: value for key, value in vars(self).items() if key != "parts"}
        parts = {name: part.parameters for name, part in self.parts.items()}
        return {
            "parameters": self.parameters,
            "parts": parts,
            **numbers,
            "training_flops": self.training_flops,
        }

    def _repr_html_(self) -> str:
        """The parameters of each part with their arithmetic, as a table for notebooks."""
        from chumoku.nn.html_view import html_table  # imports torch, which counting does not need

        total = max(1, self.parameters)
        rows = [
            (name, f"{part.parameters:,}", f"{part.parameters / total:.1%}", part.arithmetic)
            for name, part in self.parts.items()
            if part.parameters
        ]
        return html_table(("part", "parameters", "%", "="), [*rows, ("Σ", f"{self.parameters:,}", "", "")])


def count(config: ModelConfig, *, length: int | None = None, batch: int = 1, precision: str = "float32") -> Count:
    """Return the size of a model; `length` is a sequence length, by default the model's context."""
    length = config.context if length is None else length
    if precision not in BYTES:
        raise UsageError(f"The precision {precision} is unknown; choose {', '.join(BYTES)}.")
    if length < 1 or batch < 1:
        raise UsageError(f"The batch ({batch}) and the length ({length}) must both be 1 or more.")
    sizes = Sizes(config)
    parts = {name: Part(tuple(terms)) for name, terms in sizes.terms().items()}
    parameters = sum(part.parameters for part in parts.values())
    unused_experts = sizes.experts - sizes.active_experts
    unused = sizes.depth * unused_experts * (math.prod(sizes.feedforward) + sizes.feedforward_bias)
    return Count(
        parts=parts,
        active=parameters - unused,
        forward_flops=2 * sizes.weights_per_token() + 4 * sizes.attentions * sizes.query_width * length,
        training_bytes=16 * parameters,
        activation_bytes=4 * (batch * length * sizes.activations_per_token(length) + sizes.stored_masks(length)),
        weight_bytes=int(parameters * BYTES[precision]),
        cache_bytes=int(sizes.cached_numbers(length) * batch * max(2.0, BYTES[precision])),
        length=length,
        batch=batch,
        precision=precision,
    )


class Sizes:
    """Sizes derived from a config, and the counts per token."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.depth = config.encoder_depth + config.decoder_depth
        self.cross_attentions = config.decoder_depth if config.kind == "encoder-decoder" else 0
        self.attentions = self.depth + self.cross_attentions
        self.stacks = bool(config.encoder_depth) + bool(config.decoder_depth)
        self.query_width = config.heads * config.key_width
        self.kv_width = config.key_heads * config.key_width
        self.gated = config.feedforward in ("geglu", "geglu_tanh", "swiglu")
        self.experts = max(1, config.experts)
        self.active_experts = config.experts_per_token if config.experts else 1
        self.masked = config.head_kind == "masked"
        self.feedforward: Term = (2 + self.gated, config.width, config.hidden)
        self.feedforward_bias = config.bias * ((1 + self.gated) * config.hidden + config.width)
        shared = config.shared_expert_width or 0
        self.shared_expert: Term = (2 + self.gated, config.width, shared)
        self.shared_expert_bias = config.bias * bool(shared) * ((1 + self.gated) * shared + config.width)
        self.shared_expert_gate = bool(shared) * config.width

    def terms(self) -> dict[str, list[Term]]:
        """Return the parameters of each part, as products to be added."""
        c, width = self.config, self.config.width
        separate = c.kind == "encoder-decoder" and not c.share_embeddings
        learned, relative = c.position == "learned", c.position == "relative"
        norms = (
            self.block_norms()
            + self.masked
            + c.classifier_norm
            + self.stacks * ((c.placement != "post") + c.embedding_norm)
        )
        query_key_norm = {"none": 0, "head": 2 * c.key_width, "all": self.query_width + self.kv_width}[c.query_key_norm]
        biases = {"none": 0, "qkv": self.query_width + 2 * self.kv_width}
        biases["all"] = biases["qkv"] + width
        logits = c.predicts_tokens
        return {
            "embeddings": [(c.vocabulary, width), (separate * c.source_tokens, width), (c.segments, width)],
            "positions": [
                (learned * self.stacks, c.context, width),
                (relative * self.depth, 2 * c.relative_clip + 1, c.key_width),
                ((c.position == "relative_bias") * self.stacks, c.relative_buckets, c.heads),
            ],
            "attention": [
                *(
                    [(self.attentions, 4, width, width)]
                    if self.kv_width == self.query_width == width
                    else [(self.attentions, 2, width, self.query_width), (self.attentions, 2, width, self.kv_width)]
                ),
                (self.attentions, biases[c.biased_attention]),
            ],
            "feedforward": [
                (self.depth, self.experts, *self.feedforward),
                (self.depth, self.experts, self.feedforward_bias),
                (self.depth, c.experts, width),
                (self.depth, *self.shared_expert),
                (self.depth, self.shared_expert_bias + self.shared_expert_gate),
            ],
            "norms": [
                (norms, width if c.norm == "rms" or not c.norm_bias else 2 * width),
                (self.attentions, query_key_norm),
            ],
            "head": [
                (logits and not c.tie_output, c.vocabulary, width),
                (logits and c.output_bias, c.vocabulary),
                (self.masked, width, width),
                (self.masked and c.bias, width),
                (c.label_count, width + c.label_bias),
                (bool(c.classifier_activation), width, width + c.classifier_bias),
            ],
        }

    def block_norms(self) -> int:
        """Return the number of norms of all blocks, without those of queries and keys."""
        norms = (2 * self.depth + self.cross_attentions) * (2 if self.config.placement == "sandwich" else 1)
        norms -= self.depth * self.config.shared_norm
        return norms if self.config.first_norm else norms - self.stacks

    def weights_per_token(self) -> int:
        """Return the number of weights that multiply each token: matrices and logits, without embedding tables."""
        c, width = self.config, self.config.width
        attention = 2 * width * (self.query_width + self.kv_width)
        feedforward = self.active_experts * math.prod(self.feedforward) + c.experts * width
        feedforward += math.prod(self.shared_expert) + self.shared_expert_gate
        logits = c.predicts_tokens * c.vocabulary * width + self.masked * width * width
        logits += (c.head_kind == "tags") * (c.label_count + bool(c.classifier_activation) * width) * width
        return self.attentions * attention + self.depth * feedforward + logits

    def cached_numbers(self, length: int) -> int:
        """Return how many numbers are cached for a text in all layers; cross-attention needs those of the source."""
        c = self.config
        kept = c.rolling_size(length) or length
        positions = sum(kept if c.is_local(layer) else length for layer in range(c.decoder_depth))
        return (positions + self.cross_attentions * length) * 2 * self.kv_width

    def stored_masks(self, length: int) -> int:
        """Return how many numbers of biases and masks autograd stores, for a batch without padding."""
        c = self.config
        if c.position == "alibi":  # one bias for the whole stack if no key is hidden, otherwise one for each block
            encoder = c.encoder_depth if c.attention_window else min(c.encoder_depth, 1)
            return (encoder + c.decoder_depth) * c.heads * length * length
        local = sum(c.is_local(layer) for depth in (c.encoder_depth, c.decoder_depth) for layer in range(depth))
        buckets = 2 * self.stacks if c.position == "relative_bias" else 0  # in int64
        return (local + buckets) * length * length

    def activations_per_token(self, length: int) -> int:
        """Return how many numbers autograd stores per token, without dropout (measured to within 10 %)."""
        c, width = self.config, self.config.width
        # Input and normalized input; queries and output of the heads; keys and values.
        attention = 2 * width + 2 * self.query_width + 2 * self.kv_width
        if c.query_key_norm != "none":
            attention += 2 * (self.query_width + self.kv_width)
        if c.score_cap is not None:  # no fused kernel: capped scores and weights, before and after the mask
            attention += 3 * c.heads * length - self.query_width
        position = 0
        if c.position == "rotary" and c.pairing == "interleaved":
            position = self.query_width
        elif c.position == "relative":  # the gradient of the bias needs the attention weights
            position = 2 * self.query_width + c.heads * (2 * c.relative_clip + 1 + length)
        elif c.position == "relative_bias":
            position = c.heads * length
        feedforward = 2 * width + self.active_experts * c.hidden * (4 if self.gated else 2)
        feedforward += bool(c.experts) * self.active_experts * 3 * width
        feedforward += (c.shared_expert_width or 0) * (4 if self.gated else 2) + bool(c.shared_expert_width) * width
        norms = ((c.norm == "rms") + (c.placement == "sandwich") / 2) * self.block_norms() * width
        logits = c.predicts_tokens * c.vocabulary * (1 if c.logit_cap is None else 2)
        ends = self.stacks * 2 * width + logits
        return self.attentions * attention + self.depth * (position + feedforward) + int(norms) + ends
