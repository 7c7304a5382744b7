"""y = x + f(x)  →  y′ = 1 + f′(x)"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch.autograd.functional import jacobian

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, RED, make_panels
from chumoku.nn.feedforward import FeedForward


def run(budget: Budget) -> Outcome:
    x = torch.linspace(-4, 4, 81, dtype=torch.float64, requires_grad=True)
    with_skip = torch.autograd.grad((x + x.tanh()).sum(), x)[0]
    alone = torch.autograd.grad(x.tanh().sum(), x)[0]
    generator = torch.Generator().manual_seed(0)
    layer = FeedForward(7, 13, kind="gelu").double()
    for theta in layer.parameters():
        torch.nn.init.normal_(theta, std=0.3, generator=generator)
    point = torch.randn(7, dtype=torch.float64, generator=generator)
    both = jacobian(lambda v: v + layer(v), point)  # type: ignore[no-untyped-call]
    inner = jacobian(layer, point)  # type: ignore[no-untyped-call]
    numbers: dict[str, Any] = {
        "gap_scalar": float((with_skip - (1 + alone)).abs().max()),
        "gap_matrix": float((both - (torch.eye(7) + inner)).abs().max()),
        "x": x.tolist(),
        "slope_skip": with_skip.tolist(),
        "slope_alone": alone.tolist(),
        "seeds": [0],
    }
    least, least_alone = float(with_skip.min()), float(alone.min())
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The largest differences are {format_number(numbers['gap_scalar'])} (tanh) and "
            f"{format_number(numbers['gap_matrix'])} (feed-forward layer). At the ends the derivative is "
            f"{least_alone:.4f} for tanh alone and {least:.4f} with the skip connection.",
            f"差は最大で {format_number(numbers['gap_scalar'])}(tanh)と {format_number(numbers['gap_matrix'])}(フィード"
            f"フォワード層)でした。両端では tanh だけの傾きが {least_alone:.4f}、スキップ接続があると {least:.4f} で"
            "す。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if max(numbers["gap_scalar"], numbers["gap_matrix"]) < 1e-12 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=5.8, height=3.0)[0]
    axis.plot(outcome.numbers["x"], outcome.numbers["slope_skip"], color=BLUE, label="x + tanh x")
    axis.plot(outcome.numbers["x"], outcome.numbers["slope_alone"], color=RED, label="tanh x")
    axis.set(xlabel="x", ylabel="slope 傾き", ylim=(-0.05, 2.1))
    axis.legend(frameon=False, fontsize=8)
