"""(AB)ᵢⱼ = Σₖ Aᵢₖ Bₖⱼ"""

from __future__ import annotations

from typing import Any

import torch

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words

A, B, NOTE_VALUES = [[1, 3], [2, 4]], [[10, 30], [20, 40]], [[70, 150], [100, 220]]


def run(budget: Budget) -> Outcome:
    product = (torch.tensor(A) @ torch.tensor(B)).tolist()
    by_formula = [[sum(A[i][k] * B[k][j] for k in range(2)) for j in range(2)] for i in range(2)]
    try:
        torch.ones(5, 3) @ torch.ones(5, 7)
        refused = False
    except RuntimeError:
        refused = True
    shape = list((torch.ones(3, 5) @ torch.ones(5, 7)).shape)
    numbers: dict[str, Any] = {
        "product": product,
        "by_formula": by_formula,
        "shape_3x5_5x7": shape,
        "refused_5x3_5x7": refused,
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The product is {product}; 3×5 · 5×7 is 3×7, and 5×3 · 5×7 is rejected.",
            f"積は {product} です。3×5 · 5×7 は 3×7 になり、5×3 · 5×7 は計算できません。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    same = numbers["product"] == numbers["by_formula"] == NOTE_VALUES
    return HOLDS if same and numbers["shape_3x5_5x7"] == [3, 7] and numbers["refused_5x3_5x7"] else FAILS
