"""2 · D · F weights and D + F biases"""

from __future__ import annotations

from typing import Any

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words
from chumoku.nn.feedforward import FeedForward

WIDTH, HIDDEN, NOTE_VALUES = 768, 3072, 4.7


def run(budget: Budget) -> Outcome:
    layer = FeedForward(WIDTH, HIDDEN, kind="gelu_tanh")
    weights = sum(p.numel() for p in layer.parameters() if p.ndim == 2)
    every = sum(p.numel() for p in layer.parameters())
    numbers: dict[str, Any] = {"weights": weights, "with_biases": every, "note_millions": NOTE_VALUES}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"768 × 3072 × 2 = {weights:,}, with biases {every:,}: 4.72 million either way.",
            f"768 × 3072 × 2 = {weights:,}、バイアスを含めて {every:,} で、どちらも約 4.72M です。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    both = (numbers["weights"], numbers["with_biases"])
    return HOLDS if all(round(count / 1e6, 1) == numbers["note_millions"] for count in both) else FAILS
