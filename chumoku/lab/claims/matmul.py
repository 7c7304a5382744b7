"""(AB)ᵢⱼ = Σₖ Aᵢₖ Bₖⱼ"""

from __future__ import annotations

from typing import Any

import torch

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Claim, Outcome, Words

A, B, NOTE_VALUES = [[1, 3], [2, 4]], [[10, 30], [20, 40]], [[70, 150], [100, 220]]

CLAIM = Claim(
    id="matmul",
    notes=("000",),
    title=Words("A product of matrices", "行列の積"),
    stated=Words(
        f"{A} · {B} = {NOTE_VALUES}, and N×M times M×L is N×L.",
        f"{A} · {B} = {NOTE_VALUES}。また N×M と M×L の積は N×L です。",
    ),
    tried=Words(
        "Compute the product with the library and with the formula, in integers. Check the shape of 3×5 · 5×7, and "
        "that 5×3 · 5×7 is rejected.",
        "整数のまま、ライブラリと定義式の両方で計算します。3×5 と 5×7 の積の形と、5×3 · 5×7 が拒否されることも確かめま"
        "す。",
    ),
    refutes=Words(
        "Another product, another shape, or a product of incompatible sizes.",
        "積や形が異なる、または合わないサイズの積が計算できてしまうこと。",
    ),
    rule=Words("Holds if all of this is exactly true.", "すべて正確に一致すれば「成り立つ」。"),
)


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
