"""a·b = Σ aᵢbᵢ = ‖a‖ ‖b‖ cos θ"""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    sums, angles, worst = [], [], 0.0
    for size in (2, 3, 5, 17, 64, 512):
        for _ in range(20):
            a, b = torch.randn(2, size, dtype=torch.float64, generator=generator)
            lengths = float(a.norm() * b.norm())
            left, right = float((a * b).sum()) / lengths, math.cos(angle(a, b))
            worst = max(worst, abs(left - right))
            sums.append(left)
            angles.append(math.degrees(angle(a, b)))
    numbers: dict[str, Any] = {"pairs": len(sums), "worst": worst, "cosines": sums, "angles": angles, "seeds": [0]}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"In {len(sums)} pairs the two sides differ by at most {format_number(worst)} of ‖a‖‖b‖.",
            f"{len(sums)} 組で、両辺の差は最大でも ‖a‖‖b‖ の {format_number(worst)} でした。",
        ),
    )


def angle(a: Tensor, b: Tensor) -> float:
    u, v = a / a.norm(), b / b.norm()
    return 2 * math.atan2(float((u - v).norm()), float((u + v).norm()))


def judge(numbers: dict[str, Any]) -> str:
    within = max(abs(cosine) for cosine in numbers["cosines"]) <= 1 + 1e-12
    return HOLDS if numbers["worst"] < 1e-12 and within else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.0, height=3.2)[0]
    degrees = list(range(0, 181, 2))
    axis.plot(degrees, [math.cos(math.radians(d)) for d in degrees], color=GRAY, linewidth=1, label="cos θ")
    axis.scatter(
        outcome.numbers["angles"], outcome.numbers["cosines"], s=9, color=BLUE, label="Σ aᵢbᵢ / ‖a‖‖b‖", zorder=3
    )
    axis.axhline(0, color=RED, linewidth=0.6)
    axis.set(xlabel="θ, measured without inner product (degrees)", ylabel="類似度 similarity", xticks=range(0, 181, 30))
    axis.legend(frameon=False, fontsize=8)
