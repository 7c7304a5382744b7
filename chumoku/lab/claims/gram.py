"""(AᵀB)ᵢⱼ = aᵢ·bⱼ, every column of A with every column of B"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Correction, Outcome, Words
from chumoku.lab.figures import RED, make_panels, plot_heatmap

A, B = [[1, 3], [2, 4]], [[10, 30], [20, 40]]
NOTE_VALUES = [1 * 10 + 2 * 20, 3 * 30 + 4 * 40]


def run(budget: Budget) -> Outcome:
    product = (torch.tensor(A).T @ torch.tensor(B)).tolist()
    numbers: dict[str, Any] = {"note": NOTE_VALUES, "product": product}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"AᵀB is the 2×2 matrix {product}. The note shows only its diagonal {NOTE_VALUES} and omits a₁·b₂ and "
            "a₂·b₁, although the point is that one product gives all pairs.",
            f"AᵀB は 2×2 の行列 {product} です。ノートは対角成分 {NOTE_VALUES} だけを書き、a₁·b₂ と a₂·b₁ を落としてい"
            "ます。すべての組の内積が一度に求まることこそ、この積の利点です。",
        ),
        when=Words("only the diagonal aᵢ·bᵢ is considered", "対角成分 aᵢ·bᵢ だけを見るとき"),
        correction=Correction(
            str(NOTE_VALUES),
            str(product),
            Words("(1·10+2·20, 1·30+2·40; 3·10+4·20, 3·30+4·40)", "(1·10+2·20, 1·30+2·40; 3·10+4·20, 3·30+4·40)"),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    product, note = numbers["product"], numbers["note"]
    if product == note:
        return HOLDS
    return PARTLY if [product[i][i] for i in range(len(product))] == note else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=3.8, height=3.2)[0]
    names = ["b₁ = (10,20)", "b₂ = (30,40)"], ["a₁ = (1,2)", "a₂ = (3,4)"]
    plot_heatmap(axis, outcome.numbers["product"], columns=names[0], rows=names[1], form="{:g}", high=400)
    for place in range(2):
        corner = (place - 0.48, place - 0.48)
        axis.add_patch(Rectangle(corner, 0.96, 0.96, fill=False, edgecolor=RED, linewidth=2))
