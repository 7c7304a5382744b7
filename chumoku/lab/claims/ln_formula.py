"""(x − μ)/σ makes the variance 1; (x − μ)/σ² makes it 1/σ²"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words, format_list, format_number
from chumoku.lab.figures import BLUE, OCHRE, RED, make_panels
from chumoku.nn.norms import layer_norm

SPREADS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
EPSILON = 1e-5


def run(budget: Budget) -> Outcome:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    ones, zeros = torch.ones(4), torch.zeros(4)
    centered, deviation = x - x.mean(), float(x.std(unbiased=False))
    by_variance = centered / deviation**2
    direction = centered / deviation
    after = {"σ²": [], "√(σ²+ε)": [], "σ+ε": []}  # type: dict[str, list[float]]
    for spread in SPREADS:
        y = direction * spread
        after["σ²"].append(float((y / spread**2).var(unbiased=False)))
        after["√(σ²+ε)"].append(float(layer_norm(y, ones, zeros, EPSILON).var(unbiased=False)))
        after["σ+ε"].append(float((y / (spread + EPSILON)).var(unbiased=False)))
    numbers: dict[str, Any] = {
        "by_variance": by_variance.tolist(),
        "variance_by_variance": float(by_variance.var(unbiased=False)),
        "by_deviation": layer_norm(x, ones, zeros, 0.0).tolist(),
        "spreads": list(SPREADS),
        "variance_after": after,
        "epsilon": EPSILON,
    }
    root, plus = after["√(σ²+ε)"][0], after["σ+ε"][0]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"Division by σ² gives {format_list(numbers['by_variance'], 1)} with variance "
            f"{numbers['variance_by_variance']:g}; division by σ gives {format_list(numbers['by_deviation'], 2)} with "
            "variance 1. The note's code divides by σ, so only the formula is wrong. The position of ε matters for "
            f"small vectors: at σ = 0.001 the variance is {root:.3f} with √(σ²+ε) and {plus:.3f} with σ+ε, as in the "
            "note's code.",
            f"σ² で割ると {format_list(numbers['by_variance'], 1)} で分散は {numbers['variance_by_variance']:g}、σ で割"
            f"ると {format_list(numbers['by_deviation'], 2)} で分散は 1 です。ノートのコードは σ で割っており、式だけが"
            f"誤りです。小さいベクトルでは ε の位置も効き、σ = 0.001 の分散は √(σ²+ε) で {root:.3f}、ノートのコードの "
            f"σ+ε で {plus:.3f} になります。",
        ),
        correction=Correction(
            "x̃ = (x − μ)/σ²",
            "x̃ = (x − μ)/√(σ² + ε)",
            Words(
                f"Var((x−μ)/σ²) = σ²/σ⁴ = 1/σ² = {format_number(numbers['variance_by_variance'])} for [1,2,3,4], where "
                "σ² = 1.25",
                "[1,2,3,4] は σ² = 1.25 で、Var((x−μ)/σ²) = σ²/σ⁴ = 1/σ² = "
                f"{format_number(numbers['variance_by_variance'])}",
            ),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    variances = [numbers["variance_by_variance"], *numbers["variance_after"]["σ²"]]
    return HOLDS if all(abs(v - 1) < 1e-9 for v in variances) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.2, height=3.3)[0]
    for (name, values), color in zip(outcome.numbers["variance_after"].items(), (RED, BLUE, OCHRE), strict=True):
        label = f"(x−μ) / ({name})"
        axis.plot(outcome.numbers["spreads"], values, "o-", color=color, markersize=3.5, label=label)
    axis.set(xscale="log", yscale="log", ylim=(1e-7, 1e7))
    axis.set(xlabel="σ of the input 入力の標準偏差", ylabel="variance after 出力の分散")
    axis.legend(frameon=False, fontsize=8)
