"""The inner product of two positions depends only on their distance.

PEᵢ · PEⱼ = Σ_k cos((i − j) / 10000^{2k/D})
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, RED, make_panels, plot_heatmap
from chumoku.nn.positions import frequencies, sinusoidal

CASES = ((32, 32), (128, 100))  # width, positions


def run(budget: Budget) -> Outcome:
    numbers: dict[str, Any] = {f"D={width}": measure(width, positions) for width, positions in CASES}
    small, large = numbers.values()
    fall = large["falls_until"]
    apart = format_number(max(small["difference"], large["difference"]))
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"Theory and measurement differ by at most {apart}. With D = 128 the product decreases from "
            f"{large['products'][0]:.0f} at distance 0 to {large['products'][fall]:.1f} at distance {fall}, but "
            f"{large['rises']} of 99 steps increase again (D = 32: {small['rises']} of 31).",
            f"理論値と実測値の差は最大 {apart} です。D = 128 では距離 0 の {large['products'][0]:.0f} から距離 {fall} "
            f"の {large['products'][fall]:.1f} まで下がりますが、その先は 99 歩のうち {large['rises']} 歩で再び上がりま"
            f"す (D = 32 では 31 歩のうち {small['rises']} 歩)。",
        ),
        when=Words(
            f"It holds as a general tendency (rank correlation {large['correlation']:.2f}), but not at every step: "
            f"beyond distance {fall} (D = 128) a farther position can be more similar.",
            f"全体の傾向として成り立ちます (順位相関 {large['correlation']:.2f})。一歩ごとには成り立たず、距離 {fall} "
            "(D = 128) より先では、遠い位置の方が似ていることがあります。",
        ),
    )


def measure(width: int, positions: int) -> dict[str, Any]:
    encoding = sinusoidal(torch.arange(positions), width, dtype=torch.float64)
    products = encoding @ encoding.T
    distance = (torch.arange(positions)[:, None] - torch.arange(positions)).abs()
    theory = (torch.arange(positions)[:, None] * frequencies(width, base=10000.0, dtype=torch.float64)).cos().sum(-1)
    rising = (products[0, 1:] > products[0, :-1]).nonzero().flatten()
    return {
        "positions": positions,
        "difference": float((products - theory[distance]).abs().max()),
        "products": products[0].tolist(),
        "theory": theory.tolist(),
        "rises": len(rising),
        "falls_until": int(rising[0]) if len(rising) else positions - 1,
        "correlation": rank_correlation(products[0]),
    }


def rank_correlation(values: Tensor) -> float:
    """Spearman's rank correlation of the values with their index."""
    ranks = values.argsort().argsort().double()
    return float(torch.corrcoef(torch.stack([ranks, torch.arange(len(values)).double()]))[0, 1])


def judge(numbers: dict[str, Any]) -> str:
    found = list(numbers.values())
    if any(case["difference"] > 1e-9 or case["correlation"] > -0.5 for case in found):
        return FAILS
    return HOLDS if all(case["rises"] == 0 for case in found) else PARTLY


def draw(outcome: Outcome, figure: Figure) -> None:
    curve, picture = make_panels(figure, 2)
    case = outcome.numbers["D=128"]
    curve.plot(case["theory"], color=BLUE, linewidth=1.5, label="理論値 Σ cos")
    measured = case["products"][::3]
    curve.plot(range(0, len(case["products"]), 3), measured, "o", color=RED, markersize=2.8, label="実測値 PE₀·PEⱼ")
    curve.axvline(case["falls_until"], color=RED, linewidth=0.6, linestyle=":")
    curve.set(title="D = 128", xlabel="distance (位置の差)", ylabel="inner product (内積)")
    curve.legend(frameon=False, fontsize=8)
    small = outcome.numbers["D=32"]
    at = torch.arange(small["positions"])
    matrix = torch.tensor(small["products"])[(at[:, None] - at).abs()]
    plot_heatmap(picture, matrix, bar="inner product (内積)")
    picture.set(title="D = 32", xlabel="position i (位置)", ylabel="position j (位置)")
    picture.set_xticks(range(0, len(at), 8), [str(i) for i in range(0, len(at), 8)])
    picture.set_yticks(range(0, len(at), 8), [str(i) for i in range(0, len(at), 8)])
    picture.invert_yaxis()
