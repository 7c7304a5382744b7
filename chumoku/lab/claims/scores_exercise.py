"""q Kᵀ / √d_k for q = [1, 0] and three keys"""

from __future__ import annotations

from typing import Any

import torch

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, format_list, matches_rounded
from chumoku.nn.attention import compute_attention_weights

NOTE_VALUES = (0.707, 0.0, 0.707)


def run(budget: Budget) -> Outcome:
    query = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    key = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]], dtype=torch.float64)
    scores, weights = compute_attention_weights(query, key)
    numbers: dict[str, Any] = {
        "note": list(NOTE_VALUES),
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
    return HOLDS if matches_rounded(numbers["note"], numbers["scores"], 3) else FAILS
