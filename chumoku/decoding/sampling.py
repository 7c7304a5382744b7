"""Sampling: the formulas that turn a model's logits l [..., V] into the next token, applied in this order.

    repetition_penalty r   l ← l / r where l > 0, else l · r    tokens in the prompt or the generated text (CTRL, 2019)
    presence_penalty c     l ← l − c                            the same tokens, however often they occur
    frequency_penalty f    l ← l − f · n                        n: how often the generated text contains the token
    bias                   l ← l + b                            per token; forbidden tokens have b = −∞
    temperature            l ← l / temperature                  temperature 0: greedy, the most likely token
    top_k                  keep the k most likely tokens
    top_p                  keep the smallest set of most likely tokens whose probabilities sum to p (Holtzman, 2019)
    min_p                  keep tokens at least min_p times as likely as the most likely one (Nguyen, 2024)
    draw                   the first token t with e₀ + … + e_t > u · (e₀ + … + e_{V−1}),  e = exp(l),  u from [0, 1)

Each change of the logits is one small function below; `process_logits` applies all of them. `decoding.batch_sampling`
computes the same for a batch whose rows have different options, and draws. The random numbers u of a text depend only
on its (seed, row), not on the other rows of its batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from chumoku.decoding.defaults import TEMPERATURE, TOP_P
from chumoku.errors import UsageError

# Options outside these bounds would overflow float32. Logits themselves stay below 1e3.
SMALLEST, LARGEST = 1e-6, 1e6


@dataclass(frozen=True)
class SamplingOptions:
    """How the tokens of one text are sampled; the formulas are at the top of `decoding/sampling.py`. `top_p=None` keeps
    all tokens.

    temperature, top_p     defaults are in `decoding.defaults`; temperature 0 is greedy
    bias, forbidden        numbers added to the logits of single tokens; tokens that are never generated
    seed, row              seed of the random numbers; `row` tells several texts with one seed apart
    """

    temperature: float = TEMPERATURE
    top_k: int | None = None
    top_p: float | None = TOP_P
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    forbidden: Sequence[int] = ()
    seed: int = 0
    row: int = 0

    def __post_init__(self) -> None:
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise UsageError(f"{name} must be above 0 and at most 1, not {value}.")
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) <= LARGEST:
                raise UsageError(
                    f"{name} must be a number from −{LARGEST:,.0f} to {LARGEST:,.0f}, not {getattr(self, name)}."
                )
        if not 0 <= self.temperature <= LARGEST:
            raise UsageError(f"temperature must be a number from 0 to {LARGEST:,.0f}, not {self.temperature}.")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k must be 1 or more, not {self.top_k}.")
        if not SMALLEST <= self.repetition_penalty <= LARGEST:
            raise UsageError(
                f"repetition_penalty must be a number from {SMALLEST:.6f} to {LARGEST:,.0f} (1: no penalty), not "
                f"{self.repetition_penalty}."
            )
        if not all(abs(value) <= LARGEST or value == -math.inf for value in self.bias.values()):
            raise UsageError(
                f"A bias must be a number from −{LARGEST:,.0f} to {LARGEST:,.0f}, or −∞ to forbid a token."
            )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken; at such low temperatures no other token is possible."""
        return self.temperature < SMALLEST

    @property
    def penalizes_seen(self) -> bool:
        """Whether the tokens of prompt and text matter."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0

    def describe(self) -> str:
        """The options that shape the distribution, in words."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        values = ((name, getattr(self, name)) for name in names)
        return ", ".join(
            f"{name} {value:g}" for name, value in values if name == "temperature" or value not in (None, 1)
        )

    def forbid(self, tokens: Sequence[int]) -> SamplingOptions:
        """The same options, with these tokens forbidden too."""
        return replace(self, forbidden=(*self.forbidden, *tokens))

    def for_rows(self, rows: int) -> list[SamplingOptions]:
        """The same options for several texts, each with its own random numbers."""
        return [replace(self, row=self.row + row) for row in range(rows)]

    def biases(self, also_forbidden: Sequence[int] = ()) -> dict[int, float]:
        """The number added to the logit of each token that has one; −∞ for forbidden tokens."""
        return {**self.bias, **dict.fromkeys((*self.forbidden, *also_forbidden), -math.inf)}


def apply_temperature(logits: Tensor, *, temperature: float) -> Tensor:
    """Below 1 the distribution becomes sharper, above 1 flatter."""
    return logits / temperature


def keep_top_k(logits: Tensor, *, k: int) -> Tensor:
    """All but the k largest logits become −∞."""
    values, tokens = logits.topk(min(k, logits.shape[-1]))
    return torch.full_like(logits, -math.inf).scatter(-1, tokens, values)


def keep_top_p(logits: Tensor, *, p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose probabilities sum to at least p; the others become −∞."""
    values, tokens = logits.sort(descending=True, stable=True)
    reached = values.softmax(-1).cumsum(-1) >= p
    # The token that reaches p is kept, those after it are not.
    values[..., 1:].masked_fill_(reached[..., :-1], -math.inf)
    return torch.empty_like(logits).scatter(-1, tokens, values)


def keep_min_p(logits: Tensor, *, p: float) -> Tensor:
    """Drop tokens whose probability is below p times the highest."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


def apply_penalties(logits: Tensor, seen: Tensor, *, repetition_penalty: float, presence_penalty: float) -> Tensor:
    """Penalize the tokens marked in `seen` (bool, same shape as the logits)."""
    penalized = penalize(logits, repetition_penalty=repetition_penalty, presence_penalty=presence_penalty)
    return torch.where(seen, penalized, logits)


def penalize(logits: Tensor, *, repetition_penalty: float | Tensor, presence_penalty: float | Tensor) -> Tensor:
    return torch.where(logits > 0, logits / repetition_penalty, logits * repetition_penalty) - presence_penalty


def apply_frequency_penalty(logits: Tensor, counts: Tensor, *, frequency_penalty: float | Tensor) -> Tensor:
    """Subtract the penalty once per occurrence; `counts` (same shape) says how often each token was generated."""
    return logits - (frequency_penalty * counts).to(logits.dtype)


def add_biases(logits: Tensor, biases: Mapping[int, float]) -> Tensor:
    if not biases:
        return logits
    tokens = torch.tensor(list(biases), device=logits.device)
    return logits.index_add(-1, tokens, logits.new_tensor(list(biases.values())).expand(*logits.shape[:-1], -1))


def process_logits(
    logits: Tensor,
    options: SamplingOptions,
    *,
    seen: Tensor,
    counts: Tensor | None = None,
    also_forbidden: Sequence[int] = (),
) -> Tensor:
    """Apply all options in the order above. With greedy options only the most likely token stays possible.

    seen, counts     of the logits' shape: whether prompt or text contain a token, and how often the text does
    """
    logits = apply_penalties(
        logits, seen, repetition_penalty=options.repetition_penalty, presence_penalty=options.presence_penalty
    )
    if counts is not None:
        logits = apply_frequency_penalty(logits, counts, frequency_penalty=options.frequency_penalty)
    logits = add_biases(logits, options.biases(also_forbidden))
    if options.greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter(-1, best, 0.0)
    logits = apply_temperature(logits, temperature=options.temperature)
    if options.top_k is not None:
        logits = keep_top_k(logits, k=options.top_k)
    if options.top_p is not None:
        logits = keep_top_p(logits, p=options.top_p)
    if options.min_p is not None:
        logits = keep_min_p(logits, p=options.min_p)
    return logits


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on Apple's GPUs, which have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
