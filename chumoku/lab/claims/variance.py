"""Var(q·k) = d · Var(qᵢ) · Var(kᵢ): d for components of variance 1, 1/d for vectors of length 1"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels

SIZES = (4, 16, 64, 128, 512)


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    pairs = budget.steps(20_000, minimum=6_000)
    unit, spread = [], []
    for size in SIZES:
        q, k = torch.randn(2, pairs, size, generator=generator)
        spread.append(float((q * k).sum(-1).var()))
        q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
        unit.append(float((q * k).sum(-1).var()))
    numbers: dict[str, Any] = {
        "sizes": list(SIZES),
        "unit_vectors": unit,
        "unit_variance": spread,
        "pairs": pairs,
        "seeds": [0],
    }
    at = SIZES.index(64)
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"At d = 64 the variance is {unit[at]:.4f} for unit vectors (1/64 = {1 / 64:.4f}) and {spread[at]:.1f} for "
            "vectors whose components have variance 1. Division by √d_k gives variance 1 for the latter.",
            f"d = 64 では、単位ベクトルの分散は {unit[at]:.4f}(1/64 = {1 / 64:.4f})、各成分の分散が 1 のベクトルでは "
            f"{spread[at]:.1f} でした。√d_k で割って 1 になるのは後者です。",
        ),
        when=Words(
            "the components have variance 1, instead of the vectors having length 1",
            "ベクトルの長さではなく、各成分の分散が 1 のとき",
        ),
        correction=Correction(
            "Var = d_k = 64",
            f"1/d_k = {1 / 64:.4f}",
            Words(
                "d · (1/d)·(1/d): a component of a unit vector has variance 1/d",
                "d · (1/d)·(1/d)。単位ベクトルの各成分の分散は 1/d です",
            ),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    def follows(variances: list[float]) -> bool:
        return all(abs(v / d - 1) <= 0.1 for v, d in zip(variances, numbers["sizes"], strict=True))

    if follows(numbers["unit_vectors"]):
        return HOLDS
    return PARTLY if follows(numbers["unit_variance"]) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.2, height=3.3)[0]
    sizes = outcome.numbers["sizes"]
    axis.plot(sizes, sizes, color=GRAY, linestyle=":", label="d  (note ノート)")
    axis.plot(sizes, [1 / d for d in sizes], color=GRAY, linestyle="--", linewidth=0.9, label="1/d")
    axis.plot(sizes, outcome.numbers["unit_variance"], "o", color=BLUE, label="成分の分散 1 (components)")
    axis.plot(sizes, outcome.numbers["unit_vectors"], "o", color=RED, label="長さ 1 (unit vectors)")
    axis.set(xscale="log", yscale="log", xlabel="d", ylabel="Var(q·k)")
    axis.set_xticks(sizes, [str(d) for d in sizes])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=8)
