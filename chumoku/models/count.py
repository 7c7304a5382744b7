"""Counting: parameters by part, arithmetic per token, memory. From the config alone, so nothing is built.

attention      2 D·D + 2 D·G·K (4 D² when every head has its own keys), biases beside
feed-forward   2 D·F, gated 3 D·F, times the experts
FLOPs          2 per weight that multiplies a token, and 4·D·S per attention for scores and weighted values
training       forward + backward = 3 × forward;  weights + gradients + two Adam moments = 16 bytes a parameter
decoding       weights, and 2·L·G·K numbers a token for the cache
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig

BYTES = {"float32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5625}  # int4: a float16 scale for every 32

Term = tuple[int, ...]  # factors of a product


@dataclass(frozen=True)
class Part:
    """One part's parameters, as a sum of products."""

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
    parts: dict[str, Part]
    active: int  # parameters one token meets: all, less the experts it does not choose
    forward_flops: int  # a token, at `length`
    training_bytes: int  # weights, gradients, optimizer in float32
    activation_bytes: int  # kept for the backward pass, at `length` and `batch`, float32
    weight_bytes: int  # for decoding, at `precision`
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


def count(config: ModelConfig, *, length: int | None = None, batch: int = 1, precision: str = "float32") -> Count:
    """Everything about a model's size, at a sequence length (its context when not given)."""
    length = config.context if length is None else length
    if precision not in BYTES:
        raise UsageError(f"The precision {precision} is not known; choose {', '.join(BYTES)}.")
    if length < 1 or batch < 1:
        raise UsageError(f"A batch of {batch} sequences of {length} tokens cannot be; both must be 1 or more.")
    shape = Sizes(config)
    parts = {name: Part(tuple(terms)) for name, terms in shape.terms().items()}
    parameters = sum(part.parameters for part in parts.values())
    unused = shape.depth * (shape.experts - shape.chosen) * (math.prod(shape.feeding) + shape.feeding_bias)
    return Count(
        parts=parts,
        active=parameters - unused,
        forward_flops=2 * shape.multiplying() + 4 * shape.attentions * config.width * length,
        training_bytes=16 * parameters,
        activation_bytes=4 * batch * length * shape.kept_per_token(length),
        weight_bytes=int(parameters * BYTES[precision]),
        cache_bytes=int(shape.cached_per_token() * batch * length * max(2.0, BYTES[precision])),
        length=length,
        batch=batch,
        precision=precision,
    )


class Sizes:
    """The numbers that the sums are made of."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.depth = config.encoder_depth + config.decoder_depth
        self.crosses = config.decoder_depth if config.kind == "encoder-decoder" else 0
        self.attentions = self.depth + self.crosses
        self.stacks = bool(config.encoder_depth) + bool(config.decoder_depth)
        self.shared = config.key_heads * config.head_width
        self.gated = config.feedforward in ("geglu", "swiglu")
        self.experts = max(1, config.experts)
        self.chosen = config.experts_per_token if config.experts else 1
        self.masked = config.head_kind == "masked"
        self.feeding: Term = (2 + self.gated, config.width, config.hidden)
        self.feeding_bias = config.bias * ((1 + self.gated) * config.hidden + config.width)

    def terms(self) -> dict[str, list[Term]]:
        """Part → products whose sum is its number of parameters."""
        c, width = self.config, self.config.width
        separate = c.kind == "encoder-decoder" and not c.share_embeddings
        learned, relative = c.position == "learned", c.position == "relative"
        norms = 2 * self.depth + self.crosses + self.masked
        norms += self.stacks * ((c.placement == "pre") + c.embedding_norm)
        logits = c.head_kind != "vector"
        return {
            "embeddings": [(c.vocabulary, width), (separate * c.source_tokens, width), (c.segments, width)],
            "positions": [
                (learned * self.stacks, c.context, width),
                (relative * self.depth, 2 * c.relative_clip + 1, c.head_width),
            ],
            "attention": [
                *(
                    [(self.attentions, 4, width, width)]
                    if self.shared == width
                    else [(self.attentions, 2, width, width), (self.attentions, 2, width, self.shared)]
                ),
                (self.attentions, c.bias * (2 * width + 2 * self.shared)),
            ],
            "feedforward": [
                (self.depth, self.experts, *self.feeding),
                (self.depth, self.experts, self.feeding_bias),
                (self.depth, c.experts, width),
            ],
            "norms": [(norms, width if c.norm == "rms" else 2 * width)],
            "head": [
                (logits and not c.tie_output, c.vocabulary, width),
                (logits and c.output_bias, c.vocabulary),
                (self.masked, width, width),
                (self.masked and c.bias, width),
            ],
        }

    def multiplying(self) -> int:
        """Weights that multiply each token: matrices and logits, not tables that are looked up."""
        c, width = self.config, self.config.width
        attention = 2 * width * width + 2 * width * self.shared
        feeding = self.chosen * math.prod(self.feeding) + c.experts * width
        logits = (c.head_kind != "vector") * c.vocabulary * width + self.masked * width * width
        return self.attentions * attention + self.depth * feeding + logits

    def cached_per_token(self) -> int:
        """Keys and values of one token in every layer; as many again for what cross-attention looks at."""
        return (self.config.decoder_depth + self.crosses) * 2 * self.shared

    def kept_per_token(self, length: int) -> int:
        """Numbers autograd keeps for one token until the backward pass, without dropout (measured to within 10 %)."""
        c, width = self.config, self.config.width
        # Input and normed input; queries, heads' output; keys and values.
        attention = 2 * width + 2 * width + 2 * self.shared
        looking = 0
        if c.position == "rotary" and c.pairing == "interleaved":
            looking = width
        elif c.position == "relative":  # a bias that learns keeps the weights themselves
            looking = 2 * width + c.heads * (2 * c.relative_clip + 1 + length)
        feeding = 2 * width + self.chosen * c.hidden * (4 if self.gated else 2)
        feeding += bool(c.experts) * self.chosen * 3 * width
        norms = (c.norm == "rms") * (2 * self.depth + self.crosses) * width
        ends = self.stacks * 2 * width + (c.head_kind != "vector") * c.vocabulary
        return self.attentions * attention + self.depth * (looking + feeding) + norms + ends
