"""Choosing: from what a model says to the token it writes.

    seen        l ← l / r where l > 0, l · r elsewhere       repetition r, of tokens in prompt or text (CTRL, 2019)
                l ← l − c                                    presence c, of the same tokens, however often
    bias        l ← l + b                                    a number for a token; forbidden: b = −∞
    shape       l ← l / temperature                          temperature 0: the likeliest token, and nothing more
    top_k       only the k likeliest
    top_p       only the fewest likeliest that reach p together (Holtzman, 2019)
    min_p       only those at least min_p times as likely as the likeliest (Nguyen, 2024)
    draw        the first token t with e₀ + … + e_t > u · (e₀ + … + e_V),  e = exp(l),  u from [0, 1)

in this order. Each stands below as one small function from logits [..., V] to logits, and `shaped` is all of them.
`decoding.chosen` does the same for the rows of a batch, each with a `Choice` of its own, as fast as it can be done.
A text's random numbers u depend on its (seed, row) alone, so its batch mates change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from chumoku.decoding.defaults import TEMPERATURE, TOP_P
from chumoku.errors import UsageError

# Numbers beyond these leave float32, and then nothing is likelier than anything else. Logits themselves stay below 1e3.
COLD, MOST = 1e-6, 1e6


@dataclass(frozen=True)
class Choice:
    """How one text is chosen. What is left out has the defaults of `decoding.defaults`; top_p=None keeps all tokens."""

    temperature: float = TEMPERATURE
    top_k: int | None = None
    top_p: float | None = TOP_P
    min_p: float | None = None
    repetition: float = 1.0
    presence: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    forbidden: Sequence[int] = ()
    seed: int = 0
    row: int = 0  # which of several texts of one seed

    def __post_init__(self) -> None:
        rules = {
            f"Temperature is a number of 0 or more, up to {MOST:,.0f}; {self.temperature} was given.": 0
            <= self.temperature
            <= MOST,
            f"top_k is 1 or more; {self.top_k} was given.": self.top_k is None or self.top_k >= 1,
            f"top_p is above 0 and at most 1; {self.top_p} was given.": self.top_p is None or 0 < self.top_p <= 1,
            f"min_p is above 0 and at most 1; {self.min_p} was given.": self.min_p is None or 0 < self.min_p <= 1,
            f"Repetition is a number from {COLD:.6f} to {MOST:,.0f}, and 1 changes nothing; "
            f"{self.repetition} was given.": COLD <= self.repetition <= MOST,
            f"Presence is a number from −{MOST:,.0f} to {MOST:,.0f}; {self.presence} was given.": abs(self.presence)
            <= MOST,
            f"A bias is a number from −{MOST:,.0f} to {MOST:,.0f}, or −∞; forbid what must not be, and leave the rest "
            "possible.": all(abs(value) <= MOST or value == -math.inf for value in self.bias.values()),
        }
        for sentence, held in rules.items():
            if not held:
                raise UsageError(sentence)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is all there is to choose: so cold, every other is impossible."""
        return self.temperature < COLD

    @property
    def remembers(self) -> bool:
        """Whether the tokens seen so far matter."""
        return self.repetition != 1 or self.presence != 0

    def without(self, tokens: Sequence[int]) -> Choice:
        """The same, with these tokens forbidden too."""
        return replace(self, forbidden=(*self.forbidden, *tokens))

    def spread(self, rows: int) -> list[Choice]:
        """The same for several texts, each with random numbers of its own."""
        return [replace(self, row=self.row + row) for row in range(rows)]

    def edits(self, also: Sequence[int] = ()) -> dict[int, float]:
        """What is added to the logits of single tokens; those of `also` are forbidden for now."""
        return {**self.bias, **dict.fromkeys((*self.forbidden, *also), -math.inf)}


def tempered(logits: Tensor, *, temperature: float) -> Tensor:
    """Below 1 the likely become likelier, above 1 all become more alike."""
    return logits / temperature


def keep_top_k(logits: Tensor, *, k: int) -> Tensor:
    """All but the k largest become impossible."""
    values, tokens = logits.topk(min(k, logits.shape[-1]))
    return torch.full_like(logits, -math.inf).scatter(-1, tokens, values)


def keep_top_p(logits: Tensor, *, p: float) -> Tensor:
    """All become impossible but the fewest, likeliest ones whose probabilities reach p together."""
    values, tokens = logits.sort(descending=True, stable=True)
    reached = values.softmax(-1).cumsum(-1) >= p
    # What reaches p is still needed; what comes after it is not.
    values[..., 1:].masked_fill_(reached[..., :-1], -math.inf)
    return torch.empty_like(logits).scatter(-1, tokens, values)


def keep_min_p(logits: Tensor, *, p: float) -> Tensor:
    """All become impossible that are less than p times as likely as the likeliest."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


def penalized(logits: Tensor, seen: Tensor, *, repetition: float, presence: float) -> Tensor:
    """Tokens that were `seen` (bool, of the logits' shape) become less likely."""
    return torch.where(seen, lessened(logits, repetition=repetition, presence=presence), logits)


def lessened(logits: Tensor, *, repetition: float | Tensor, presence: float | Tensor) -> Tensor:
    return torch.where(logits > 0, logits / repetition, logits * repetition) - presence


def edited(logits: Tensor, edits: Mapping[int, float]) -> Tensor:
    """The logits with a number added to those of single tokens."""
    if not edits:
        return logits
    tokens = torch.tensor(list(edits), device=logits.device)
    return logits.index_add(-1, tokens, logits.new_tensor(list(edits.values())).expand(*logits.shape[:-1], -1))


def shaped(logits: Tensor, choice: Choice, *, seen: Tensor, also: Sequence[int] = ()) -> Tensor:
    """All of a choice, as it stands above. Greedy, only the likeliest token stays possible."""
    logits = penalized(logits, seen, repetition=choice.repetition, presence=choice.presence)
    logits = edited(logits, choice.edits(also))
    if choice.greedy:
        likeliest = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter(-1, likeliest, 0.0)
    logits = tempered(logits, temperature=choice.temperature)
    if choice.top_k is not None:
        logits = keep_top_k(logits, k=choice.top_k)
    if choice.top_p is not None:
        logits = keep_top_p(logits, p=choice.top_p)
    if choice.min_p is not None:
        logits = keep_min_p(logits, p=choice.min_p)
    return logits


def precise(device: torch.device) -> torch.dtype:
    """The finest numbers a device adds: Apple's has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
