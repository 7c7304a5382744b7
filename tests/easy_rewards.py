"""Rewards that an untrained model gets for some answers and not for others."""

from __future__ import annotations

from chumoku.training.objectives import GrpoObjective, grpo
from chumoku.training.rewards import RULES


def ascii_share(text: str, answer: str) -> float:
    """The share of ASCII characters in an answer; half of it if the right answer is not in it."""
    share = sum(char.isascii() for char in text) / max(1, len(text))
    return share if answer in text else share / 2


def judge_unfinished(self: GrpoObjective, prompt: list[int], tokens: list[int], answer: str) -> grpo.Answer:
    """As `GrpoObjective.judge`, but an answer need not end, which those of an untrained model hardly do."""
    text, finished = self.text(tokens), len(tokens) < self.settings.max_new_tokens
    return grpo.Answer(prompt, [*tokens, self.end] if finished else tokens, text, finished, self.rule(text, answer))


def replace_words_rule() -> None:
    """Replace the rule `words` in this process, for good."""
    RULES["words"] = ascii_share
    GrpoObjective.judge = judge_unfinished  # type: ignore[method-assign]
