"""The rules of a beam search: how a hypothesis scores, and when a sentence is done.

score(y) = log p(y | x) / ((5 + |y|) / 6)^α         see `decoding.beam`, which searches by them
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.model import EncoderDecoderModel, Model

STEEPEST = 10  # steeper, a score leaves what a float holds


class Hypothesis(NamedTuple):
    tokens: list[int]  # without begin and end
    score: float
    attention: Tensor | None = None  # [L, H, T, S] of each token and of what followed the last, when asked for
    logprobs: Sequence[float] = ()  # of each token, and of the end where it came to one


@dataclass(frozen=True)
class Rules:
    """What does not change during a search."""

    end: int
    beam: int
    best: int
    length_penalty: float
    forbidden: list[int]
    limits: list[int]  # a row's own
    least: int = 0

    def score(self, total: float, length: int) -> float:
        return float(total / ((5 + length) / 6) ** self.length_penalty)

    def done(self, found: list[Hypothesis], live: float, *, length: int, limit: int) -> bool:
        """Whether nothing above the `best` ones found can come of live hypotheses whose log p is `live` or less."""
        if length >= limit or len(found) >= self.beam or live == -math.inf:
            return True
        attainable = max(self.score(live, length + 1), self.score(live, limit))
        return sum(one.score >= attainable for one in found) >= self.best


def check(model: Model, rows: int, rules: Rules, *, kind: type[Model]) -> None:
    if not isinstance(model, kind):
        name = "encoder-decoder" if kind is EncoderDecoderModel else "decoder"
        raise UsageError(f"This search reads and writes as models of kind '{name}' do, and needs one of them.")
    if not 1 <= rules.best <= rules.beam:
        raise UsageError(f"The {rules.best} best of a beam of {rules.beam} were asked for; give 1 ≤ best ≤ beam.")
    if not abs(rules.length_penalty) <= STEEPEST:
        raise UsageError(
            f"A length penalty is a number from −{STEEPEST} to {STEEPEST}, 0 for none; "
            f"{rules.length_penalty} was given."
        )
    if len(rules.limits) != rows or min(rules.limits, default=0) < 1:
        raise UsageError(
            f"A limit is 1 or more, for all rows or for each of the {rows}, and there must be a row; "
            f"the limits are {rules.limits[:10]}."
        )
    for token in (rules.end, *rules.forbidden):
        if not 0 <= token < model.config.vocabulary:
            raise UsageError(
                f"There is no token {token} to end with or to forbid; there are {model.config.vocabulary}."
            )
    if not 0 <= rules.least < min(rules.limits):
        raise UsageError(
            f"At least {rules.least} tokens were asked for, and a row may have {min(rules.limits)} with its end; give "
            "0 or more, and leave room for the end."
        )
    if rules.end in rules.forbidden:
        raise UsageError(f"Token {rules.end} ends a sentence, so it cannot be forbidden.")
