"""‖a‖ = √(a₁² + a₂² + … + aₙ²)"""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, LIGHT, RED, make_panels


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for size in (1, 2, 3, 7, 31, 127, 1024):
        a = torch.randn(size, dtype=torch.float64, generator=generator)
        turn, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
        length = math.sqrt(sum(x * x for x in a.tolist()))
        for other in (float(torch.linalg.vector_norm(a)), float(torch.linalg.vector_norm(turn @ a))):
            worst = max(worst, abs(length - other) / length)
    found = float(torch.linalg.vector_norm(torch.tensor([1.0, 2.0], dtype=torch.float64)))
    numbers: dict[str, Any] = {"length": found, "root_5": math.sqrt(5), "worst": worst, "seeds": [0]}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"‖(1, 2)‖ = {found:.6f} = √5. Up to 1,024 dimensions the largest relative difference is "
            f"{format_number(worst)}.",
            f"‖(1, 2)‖ = {found:.6f} = √5 です。1,024 次元までの相対誤差は最大 {format_number(worst)} でした。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if max(abs(numbers["length"] - numbers["root_5"]), numbers["worst"]) < 1e-12 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=4.4, height=3.8)[0]
    axis.plot([0, 1, 1], [0, 0, 2], color=LIGHT, linewidth=2)
    axis.annotate("", (1, 2), (0, 0), arrowprops={"arrowstyle": "-|>", "color": BLUE, "linewidth": 2})
    axis.text(0.5, -0.16, "1", ha="center")
    axis.text(1.07, 1, "2", va="center")
    axis.text(
        0.30, 1.06, f"√(1² + 2²) = {outcome.numbers['length']:.4f}", color=RED, rotation=63.4, ha="center", va="center"
    )
    axis.set(xlim=(-0.6, 1.8), ylim=(-0.35, 2.3), aspect="equal", xlabel="x", ylabel="y")
