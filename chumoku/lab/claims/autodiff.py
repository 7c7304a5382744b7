"""Numerical differentiation (f(x+h) − f(x−h)) / 2h, and automatic differentiation by the chain rule"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, RED, make_panels

STEPS = tuple(10.0**-k for k in range(1, 15))


class CountedFunction:
    """Σ eˣ·sin x, which counts its evaluations."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (x.exp() * x.sin()).sum()


def run(budget: Budget) -> Outcome:
    x = torch.linspace(-2, 2, 41, dtype=torch.float64)
    exact = x.exp() * (x.sin() + x.cos())
    automatic = float((_gradient(CountedFunction(), x) - exact).abs().max())
    by_step = []
    for h in STEPS:
        ahead, behind = ((x + s * h).exp() * (x + s * h).sin() for s in (1, -1))
        by_step.append(float(((ahead - behind) / (2 * h) - exact).abs().max()))
    many = torch.zeros(1000, dtype=torch.float64)
    once, often = CountedFunction(), CountedFunction()
    _gradient(once, many)
    _differences(often, many, 1e-5)
    numbers: dict[str, Any] = {
        "automatic": automatic,
        "steps": list(STEPS),
        "differences": by_step,
        "best_difference": min(by_step),
        "calls_automatic": once.calls,
        "calls_differences": often.calls,
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"PyTorch's error is {format_number(automatic)}, the rounding error of float64; that of {len(STEPS)} "
            f"finite differences is between {format_number(min(by_step))} and {format_number(max(by_step))}. For 1,000 "
            f"parameters, finite differences evaluate the function {often.calls:,} times, PyTorch {once.calls} time "
            "(plus one backward pass).",
            f"PyTorch の誤差は {format_number(automatic)} で float64 の丸め程度です。差分は最良でも "
            f"{format_number(min(by_step))}、最悪は {format_number(max(by_step))} でした。1,000 個のパラメータに差分は"
            f"関数を {often.calls:,} 回計算しますが、PyTorch は {once.calls} 回(と逆向きに一回)です。",
        ),
        correction=Correction(
            "数値微分 (numerical differentiation)",
            "自動微分 (automatic differentiation)",
            Words(
                "the known derivative of each operation, combined by the chain rule",
                "各演算の導関数を連鎖律でつないで計算します",
            ),
        ),
    )


def _gradient(function: CountedFunction, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


def _differences(function: CountedFunction, x: Tensor, h: float) -> Tensor:
    slopes = torch.zeros_like(x)
    for index in range(len(x)):
        step = torch.zeros_like(x)
        step[index] = h
        slopes[index] = (function(x + step) - function(x - step)) / (2 * h)
    return slopes


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if numbers["automatic"] >= numbers["best_difference"] / 100 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.2, height=3.3)[0]
    numbers = outcome.numbers
    axis.plot(numbers["steps"], numbers["differences"], "o-", color=RED, markersize=3.5, label="数値微分 differences")
    axis.axhline(numbers["automatic"], color=BLUE, linewidth=1.6, label="自動微分 automatic (PyTorch)")
    axis.set(xscale="log", yscale="log", xlabel="h", ylabel="largest error 最大誤差")
    axis.legend(frameon=False, fontsize=8, loc="upper center")
