"""softmax[1, 2, 3, 4]"""

from __future__ import annotations

import math
from typing import Any

import torch

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, format_list, matches_rounded

NOTE_VALUES = (0.032, 0.087, 0.237, 0.644)


def run(budget: Budget) -> Outcome:
    by_formula = [math.exp(x) / sum(math.exp(y) for y in (1, 2, 3, 4)) for x in (1, 2, 3, 4)]
    found = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).softmax(0).tolist()
    gap = max(abs(a - b) for a, b in zip(by_formula, found, strict=True))
    total = sum(math.exp(x) for x in (1, 2, 3, 4))
    numbers: dict[str, Any] = {
        "note": list(NOTE_VALUES),
        "found": found,
        "sum": sum(found),
        "gap": gap,
        "sum_of_exponentials": total,
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"softmax[1,2,3,4] = {format_list(found)}, and the exponentials sum to {total:.2f}.",
            f"softmax[1,2,3,4] = {format_list(found)} で、指数の和は {total:.2f} です。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    sums_to_one = abs(numbers["sum"] - 1) < 1e-12 and numbers["gap"] < 1e-12
    return HOLDS if matches_rounded(numbers["note"], numbers["found"], 3) and sums_to_one else FAILS
