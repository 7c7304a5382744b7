"""2 · D · F weights and D + F biases"""

from __future__ import annotations

from typing import Any

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Claim, Outcome, Words
from chumoku.nn.feedforward import FeedForward

WIDTH, HIDDEN, NOTE_VALUES = 768, 3072, 4.7

CLAIM = Claim(
    id="ffn-params",
    notes=("002",),
    title=Words("The size of one feed-forward layer", "FFN 一層のパラメータ数"),
    stated=Words(
        "A feed-forward layer of 768 → 3072 → 768 has about 4.7 million parameters.",
        "768 → 3072 → 768 の FFN のパラメータ数は一層あたり約 4.7M です。",
    ),
    tried=Words("Build one such layer and count its parameters.", "実際に一層を作り、数を数えます。"),
    refutes=Words("A count that does not round to 4.7 million.", "数が 4.7M に丸まらないこと。"),
    rule=Words(
        "Holds if the count rounds to 4.7 million both with and without biases.",
        "重みだけでも、バイアスを含めても 4.7M に丸まれば「成り立つ」。",
    ),
)


def run(budget: Budget) -> Outcome:
    layer = FeedForward(WIDTH, HIDDEN, kind="gelu_tanh")
    weights = sum(p.numel() for p in layer.parameters() if p.ndim == 2)
    every = sum(p.numel() for p in layer.parameters())
    numbers: dict[str, Any] = {"weights": weights, "with_biases": every, "said_millions": NOTE_VALUES}
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
    return HOLDS if all(round(count / 1e6, 1) == numbers["said_millions"] for count in both) else FAILS
