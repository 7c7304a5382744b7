"""Why the scores are divided by √d.

Var(q·k) = d for components of variance 1;   p = softmax(s),   ∂p/∂s = diag(p) − p pᵀ → 0 as p → one-hot
"""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, RED, make_panels, plot_curves
from chumoku.nn.attention import compute_attention_weights

WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
KEYS = 64


def run(budget: Budget) -> Outcome:
    queries = budget.steps(2000, minimum=500)
    measured = [measure_by_width(seed, queries) for seed in range(budget.seeds)]
    numbers: dict[str, Any] = {"widths": list(WIDTHS), "keys": KEYS, "queries": queries}
    for key in measured[0]:
        numbers[key] = [one[key] for one in measured]
    at = WIDTHS.index(64)
    with_, without = (mean_at(numbers[f"entropy_{way}"], at) for way in ("scaled", "raw"))
    steep, flat = (mean_at(numbers[f"gradient_{way}"], -1) for way in ("scaled", "raw"))
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"At d = 64 the entropy of the weights over {KEYS} keys is {with_:.2f} of {math.log(KEYS):.2f} nats with "
            f"√d and {without:.2f} without. At d = 1,024 the gradient of the softmax is {steep:.3f} with √d and "
            f"{flat:.3f} without.",
            f"d = 64 では、{KEYS} 個のキーへの重みのエントロピーは √d で割ると {math.log(KEYS):.2f} ナットのうち "
            f"{with_:.2f}、割らないと {without:.2f} です。d = 1,024 での softmax の勾配は、割ると {steep:.3f}、割らない"
            f"と {flat:.3f} です。",
        ),
    )


def measure_by_width(seed: int, queries: int) -> dict[str, list[float]]:
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[float]] = {}
    for width in WIDTHS:
        query = torch.randn(queries // 10, 1, 10, width, generator=generator)
        key = torch.randn(queries // 10, 1, KEYS, width, generator=generator)
        for way, factor in (("scaled", 1.0), ("raw", math.sqrt(width))):
            _, weights = compute_attention_weights(query * factor, key)
            found.setdefault(f"entropy_{way}", []).append(float(entropy(weights).mean()))
            found.setdefault(f"gradient_{way}", []).append(float(slope(weights).mean()))
    return found


def entropy(weights: Tensor) -> Tensor:
    return -torch.xlogy(weights, weights).sum(-1)


def slope(weights: Tensor) -> Tensor:
    """‖diag(p) − p pᵀ‖_F of each row, from its squares: Σ p² − 2 Σ p³ + (Σ p²)²"""
    squares = weights.square().sum(-1)
    return (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt()


def mean_at(runs: list[list[float]], place: int) -> float:
    return sum(one[place] for one in runs) / len(runs)


def judge(numbers: dict[str, Any]) -> str:
    start = numbers["widths"].index(16)
    for kind in ("entropy", "gradient"):
        level = [one[-1] / one[start] for one in numbers[f"{kind}_scaled"]]
        fallen = [one[-1] / one[start] for one in numbers[f"{kind}_raw"]]
        if max(abs(1 - share) for share in level) >= 0.1 or max(fallen) >= 0.5:
            return FAILS
    return HOLDS


def draw(outcome: Outcome, figure: Figure) -> None:
    numbers = outcome.numbers
    for axis, kind, label in zip(
        make_panels(figure, 2),
        ("entropy", "gradient"),
        ("entropy of the weights (エントロピー, nats)", "‖∂p/∂s‖ (勾配)"),
        strict=True,
    ):
        series = {"q·k / √d": numbers[f"{kind}_scaled"], "q·k": numbers[f"{kind}_raw"]}
        plot_curves(axis, numbers["widths"], series, colors=(BLUE, RED), marker="o")
        axis.set(xscale="log", xlabel="d", ylabel=label, ylim=(0, None))
        axis.set_xticks(numbers["widths"][::2], [str(width) for width in numbers["widths"][::2]])
        axis.minorticks_off()
