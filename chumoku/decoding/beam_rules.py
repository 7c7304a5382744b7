"""The rules of a beam search: the score of a hypothesis, and when a sentence is done. `decoding.beam` does the rest.

score(y) = log p(y | x) / ((5 + |y|) / 6)^α
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from chumoku.decoding.defaults import LARGEST_PENALTY
from chumoku.errors import UsageError
from chumoku.models.model import EncoderDecoderModel, Model

Numbers = npt.NDArray[Any]


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

    @functools.cached_property
    def limit_array(self) -> Numbers:
        return np.array(self.limits, dtype=np.int64)

    @functools.cached_property
    def least_limit(self) -> int:
        return min(self.limits)

    @functools.cached_property
    def _limit_divisors(self) -> Numbers:
        return np.array([self.divisor(limit) for limit in self.limits])

    def divisor(self, length: int) -> float:
        """What log p is divided by."""
        return float(((5 + length) / 6) ** self.length_penalty)

    def done(self, scores: Numbers, live: Numbers, numbers: Numbers, *, length: int) -> Numbers:
        """Which sentences are done: no live hypothesis can still beat the `best` finished ones.

        scores      of the finished hypotheses [S, n], NaN where there are fewer
        live        log p of the best live hypothesis [S]
        numbers     the rows of the input that these sentences are [S]
        """
        finished = ~np.isnan(scores)
        if length < self.least_limit and not finished.any() and np.isfinite(live).all():
            return np.zeros(len(live), dtype=bool)
        live = live.astype(np.float64)
        attainable = np.maximum(live / self.divisor(length + 1), live / self._limit_divisors[numbers])
        beaten = (scores >= attainable[:, None]).sum(1) >= self.best
        full = finished.sum(1) >= self.beam
        done: Numbers = (length >= self.limit_array[numbers]) | full | (live == -np.inf) | beaten
        return done


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
