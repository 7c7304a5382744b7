"""The rules of a beam search: the score of a hypothesis, and when a sentence is done. `decoding.beam` does the rest.

score(y) = log p(y | x) / ((5 + |y|) / 6)^α
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from chumoku.decoding.defaults import LARGEST_PENALTY
from chumoku.errors import UsageError
from chumoku.models.model import EncoderDecoderModel, Model


class Hypothesis(NamedTuple):
    tokens: list[int]  # without begin and end
    score: float
    attention: Tensor | None = None  # [L, H, T, S] for each token and for the step after the last
    logprobs: Sequence[float] = ()  # of each token, and of the end token if there is one

    @property
    def ended(self) -> bool:
        """Whether it has an end token, so that it was not cut at the limit."""
        return len(self.logprobs) > len(self.tokens)


@dataclass(frozen=True)
class Rules:
    """The settings of one search."""

    end: int
    beam: int
    best: int
    length_penalty: float
    forbidden: list[int]
    limits: list[int]  # most tokens of each row
    min_new_tokens: int = 0

    def score(self, total: float, length: int) -> float:
        return float(total / ((5 + length) / 6) ** self.length_penalty)

    def done(self, found: list[Hypothesis], live: float, *, length: int, limit: int) -> bool:
        """Whether no live hypothesis (all have log p ≤ `live`) can still beat the `best` finished ones."""
        if length >= limit or len(found) >= self.beam or live == -math.inf:
            return True
        attainable = max(self.score(live, length + 1), self.score(live, limit))
        return sum(one.score >= attainable for one in found) >= self.best


def check(model: Model, rows: int, rules: Rules, *, kind: type[Model]) -> None:
    if not isinstance(model, kind):
        name = "encoder-decoder" if kind is EncoderDecoderModel else "decoder"
        raise UsageError(f"This search needs a model of kind '{name}'.")
    if not 1 <= rules.best <= rules.beam:
        raise UsageError(f"best must be from 1 to beam ({rules.beam}), not {rules.best}.")
    if not abs(rules.length_penalty) <= LARGEST_PENALTY:
        raise UsageError(
            f"length_penalty must be a number from −{LARGEST_PENALTY} to {LARGEST_PENALTY}, not {rules.length_penalty}."
        )
    if len(rules.limits) != rows or min(rules.limits, default=0) < 1:
        raise UsageError(
            f"limit must be 1 or more, for all rows or for each of the {rows}, and there must be a row; the limits are "
            f"{rules.limits[:10]}."
        )
    for token in (rules.end, *rules.forbidden):
        if not 0 <= token < model.config.vocabulary:
            raise UsageError(f"Token {token} (end or forbidden) is not in the vocabulary of {model.config.vocabulary}.")
    if not 0 <= rules.min_new_tokens < min(rules.limits):
        raise UsageError(
            f"min_new_tokens is {rules.min_new_tokens}, but a row may have only {min(rules.limits)} tokens. Give 0 or "
            "more, and leave room for the end token."
        )
    if rules.end in rules.forbidden:
        raise UsageError(f"Token {rules.end} is the end token, so it cannot be forbidden.")
