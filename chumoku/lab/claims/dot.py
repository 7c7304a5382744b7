"""a·b = Σ aᵢbᵢ = ‖a‖ ‖b‖ cos θ"""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Claim, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels

CLAIM = Claim(
    id="dot",
    notes=("000",),
    title=Words("Two definitions of the inner product", "内積の二つの定義"),
    stated=Words(
        "a·b = Σ aᵢbᵢ = ‖a‖‖b‖cos θ, so the cosine measures the similarity of two vectors.",
        "a·b = Σ aᵢbᵢ = ‖a‖‖b‖cos θ であり、cos θ はベクトルの類似度を表します。",
    ),
    tried=Words(
        "Random pairs in 2 to 512 dimensions. The angle is measured without an inner product: θ = 2 arctan(‖u−v‖ / "
        "‖u+v‖) for the unit vectors u, v.",
        "2〜512 次元の乱数ベクトルの組で確かめます。角度は内積を使わず、単位ベクトル u, v から θ = 2 arctan(‖u−v‖ / "
        "‖u+v‖) として測ります。",
    ),
    refutes=Words("A pair whose two sides differ.", "両辺が一致しない組があること。"),
    rule=Words(
        "Holds if the sides differ by less than 10⁻¹² of ‖a‖‖b‖ for every pair, and every cosine is between −1 and 1.",
        "すべての組で両辺の差が ‖a‖‖b‖ の 10⁻¹² 未満で、cos θ が −1〜1 に入れば「成り立つ」。",
    ),
)


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
        reading=Words(
            "Every measured pair (dots) lies on the cosine curve, which is 0 at 90°.",
            "測った組(点)はすべて cos の曲線に乗り、90° で 0 になります。",
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
