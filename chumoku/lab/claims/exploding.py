"""∂f/∂w₁ = w_o · w₃ · w₂ · x, and with residuals w_o (w₃+1)(w₂+1) x"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, RED, make_panels

DEPTHS = (1, 2, 3, 5, 8, 12, 16, 20)


def run(budget: Budget) -> Outcome:
    factors = {str(w): slope(w, 3, residual=False, head=w) for w in (100.0, 0.01)}
    with_residual = {str(w): slope(w, 3, residual=True, head=w) for w in (100.0, 0.01)}
    by_depth = {
        f"{w}": {
            kind: [slope(w, n + 1, residual=kind == "residual", head=1.0) for n in DEPTHS]
            for kind in ("plain", "residual")
        }
        for w in (100.0, 0.01)
    }
    numbers: dict[str, Any] = {
        "factors": factors,
        "with_residual": with_residual,
        "depths": list(DEPTHS),
        "by_depth": by_depth,
    }
    small = by_depth["0.01"]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The factors are {format_number(factors['100.0'], 0)} and {format_number(factors['0.01'], 0)}, as stated. "
            f"After 20 layers with weight 0.01 the gradient is {format_number(small['plain'][-1], 0)} without and "
            f"{small['residual'][-1]:.2f} with residual connections. They do not help against explosion: 100 + 1 is "
            "even larger.",
            f"係数は {format_number(factors['100.0'], 0)} と {format_number(factors['0.01'], 0)} で、ノートのとおりで"
            f"す。0.01 の層を 20 層重ねると、残差なしで {format_number(small['plain'][-1], 0)}、残差ありで "
            f"{small['residual'][-1]:.2f} でした。勾配爆発には効きません(100 + 1 はさらに大きい)。",
        ),
    )


def slope(w: float, depth: int, *, residual: bool, head: float) -> float:
    """∂f/∂w₁ of a chain of `depth` layers h ← w·h (+ h) on x = 1, multiplied by `head`."""
    first = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    h = first * 1.0 + (1.0 if residual else 0.0)
    for _ in range(depth - 1):
        h = w * h + (h if residual else 0.0)
    return float(torch.autograd.grad(head * h, first)[0])


def judge(numbers: dict[str, Any]) -> str:
    stated = [(numbers["factors"][str(w)], w**3) for w in (100.0, 0.01)]
    stated += [(numbers["with_residual"][str(w)], w * (w + 1) ** 2) for w in (100.0, 0.01)]
    for w in (100.0, 0.01):
        curves = numbers["by_depth"][str(w)]
        stated += [(found, w**n) for found, n in zip(curves["plain"], numbers["depths"], strict=True)]
        stated += [(found, (w + 1) ** n) for found, n in zip(curves["residual"], numbers["depths"], strict=True)]
    return HOLDS if all(abs(found / note - 1) < 1e-9 for found, note in stated) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    for axis, w in zip(make_panels(figure, 2, height=3.2), ("100.0", "0.01"), strict=True):
        curves = outcome.numbers["by_depth"][w]
        for kind, color, label in (("plain", RED, "w  (plain)"), ("residual", BLUE, "w + 1  (残差結合 residual)")):
            axis.plot(DEPTHS, curves[kind], color=color, marker="o", markersize=3.5, label=label)
        axis.set(yscale="log", xlabel="layers 層数", title=f"w = {float(w):g}", xticks=(1, 5, 10, 15, 20))
        axis.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("gradient of the first weight 勾配")
