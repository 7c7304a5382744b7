"""q Kᵀ / √d_k for q = [1, 0] and three keys"""

from __future__ import annotations

from typing import Any

import torch

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Claim, Outcome, Words, format_list, matches_rounded
from chumoku.nn.attention import compute_attention_weights

NOTE_VALUES = (0.707, 0.0, 0.707)

CLAIM = Claim(
    id="scores-exercise",
    notes=("002",),
    title=Words("Exercise: attention scores", "練習問題:アテンションスコア"),
    stated=Words(
        "For Q = [1,0], the keys [1,0], [0,1], [1,1] and d_k = 2, the scaled scores are [0.707, 0, 0.707].",
        "Q = [1,0]、キー [1,0], [0,1], [1,1]、d_k = 2 のとき、スケール後のスコアは [0.707, 0, 0.707] です。",
    ),
    tried=Words(
        "Compute the scores with this project's attention.", "本プロジェクトのアテンションのスコアを計算します。"
    ),
    refutes=Words("A score that rounds to another number.", "丸めた値が異なること。"),
    rule=Words("Holds if all three round to the note's values.", "三つとも小数三桁で一致すれば「成り立つ」。"),
)


def run(budget: Budget) -> Outcome:
    query = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    key = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]], dtype=torch.float64)
    scores, weights = compute_attention_weights(query, key)
    numbers: dict[str, Any] = {
        "said": list(NOTE_VALUES),
        "scores": scores.flatten().tolist(),
        "weights": weights.flatten().tolist(),
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The scores are {format_list(numbers['scores'])}; the weights are {format_list(numbers['weights'])}.",
            f"スコアは {format_list(numbers['scores'])} で、重みにすると {format_list(numbers['weights'])} です。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if matches_rounded(numbers["said"], numbers["scores"], 3) else FAILS
