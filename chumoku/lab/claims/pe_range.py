"""sin and cos lie in −1 … 1"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, RED, make_panels
from chumoku.nn.positions import sinusoidal


def run(budget: Budget) -> Outcome:
    values = sinusoidal(torch.arange(5000), 512, dtype=torch.float64)
    edges = torch.linspace(-1, 1, 41, dtype=torch.float64)
    shares = torch.histogram(values.flatten(), edges).hist / values.numel()
    numbers: dict[str, Any] = {
        "least": float(values.min()),
        "greatest": float(values.max()),
        "below_zero": float((values < 0).double().mean()),
        "edges": edges.tolist(),
        "shares": shares.tolist(),
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The values range from {numbers['least']:.4f} to {numbers['greatest']:.4f}; {numbers['below_zero']:.1%} "
            "are negative. It is correct that they stay bounded.",
            f"値は {numbers['least']:.4f} から {numbers['greatest']:.4f} までで、{numbers['below_zero']:.1%} が負です。"
            "「大きくなりすぎない」という要件を満たすことは正しいです。",
        ),
        correction=Correction("0 … 1", "−1 … 1", Words("sin and cos lie in −1 … 1", "sin と cos の値域は −1〜1 です")),
    )


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if numbers["least"] >= 0 and numbers["greatest"] <= 1 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.0, height=2.9)[0]
    edges, shares = outcome.numbers["edges"], outcome.numbers["shares"]
    colors = [RED if right <= 1e-9 else BLUE for right in edges[1:]]
    axis.bar(edges[:-1], [100 * share for share in shares], edges[1] - edges[0], align="edge", color=colors)
    axis.set(xlabel="value 値", ylabel="% of all values")
