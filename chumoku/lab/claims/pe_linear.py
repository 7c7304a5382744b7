"""A shift by k is the same matrix for all positions.

PE_{i+k} = M_k PE_i,   M_k = blocks [[cos kω, sin kω], [−sin kω, cos kω]],   ω = 1 / 10000^{2d/D}
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels, plot_heatmap
from chumoku.nn.positions import frequencies, sinusoidal

WIDTH = 32
SHIFTS = (1, 2, 4, 8, 16, 32, 64)
SEEN, UNSEEN = (
    torch.arange(4096),
    torch.arange(5000, 6000),
)  # with fewer positions the lowest frequencies are not determined


def run(budget: Budget) -> Outcome:
    numbers: dict[str, Any] = {"shifts": list(SHIFTS), "written": [], "found": [], "random_table": []}
    random = torch.randn(6100, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    random *= (WIDTH / 2) ** 0.5 / random.norm(dim=-1, keepdim=True)  # same norm as PE
    for shift in SHIFTS:
        numbers["written"].append(relative_error(shift_matrix(shift), encode, UNSEEN, shift))
        numbers["found"].append(relative_error(fit_shift_matrix(encode, shift), encode, UNSEEN, shift))
        numbers["random_table"].append(
            relative_error(fit_shift_matrix(random.__getitem__, shift), random.__getitem__, UNSEEN, shift)
        )
    numbers["matrix"] = shift_matrix(8).tolist()
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The largest relative error is {format_number(max(numbers['written']))} with the formula and "
            f"{format_number(max(numbers['found']))} with the matrix fitted to 4,096 positions; for a random table the "
            f"best matrix has an error of {min(numbers['random_table']):.2f}.",
            f"式の行列の誤差は、ベクトルの長さを 1 として最大 {format_number(max(numbers['written']))}、4,096 個の位置"
            f"から求めた行列では {format_number(max(numbers['found']))} です。乱数の表では最良でも "
            f"{min(numbers['random_table']):.2f} 外れます。",
        ),
    )


def encode(positions: Tensor) -> Tensor:
    return sinusoidal(positions, WIDTH, dtype=torch.float64)


def shift_matrix(shift: int) -> Tensor:
    """M_k from the addition theorems."""
    angles = shift * frequencies(WIDTH, base=10000.0, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    matrix = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    even = torch.arange(0, WIDTH, 2)
    matrix[even, even], matrix[even, even + 1] = cos, sin
    matrix[even + 1, even], matrix[even + 1, even + 1] = -sin, cos
    return matrix


def fit_shift_matrix(vectors: Any, shift: int) -> Tensor:
    """M_k as the least-squares solution on the seen positions."""
    solution: Tensor = torch.linalg.lstsq(vectors(SEEN), vectors(SEEN + shift), driver="gelsd").solution
    return solution.T


def relative_error(matrix: Tensor, vectors: Any, positions: Tensor, shift: int) -> float:
    """The largest ‖M PE_i − PE_{i+k}‖ / ‖PE‖."""
    left = vectors(positions) @ matrix.T - vectors(positions + shift)
    return float((left.norm(dim=-1) / vectors(positions).norm(dim=-1)).max())


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if max(numbers["written"]) < 1e-9 and min(numbers["random_table"]) > 0.5 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    curve, picture = make_panels(figure, 2)
    numbers = outcome.numbers
    for key, label, color in (
        ("random_table", "random table, best matrix", GRAY),
        ("found", "PE, matrix fitted (最小二乗)", RED),
        ("written", "PE, matrix from formula (式)", BLUE),
    ):
        curve.plot(numbers["shifts"], numbers[key], "o-", color=color, label=label, markersize=3.5)
    curve.set(title="relative error", xlabel="shift k (ずれ)", xscale="log", yscale="log")
    curve.set_xticks(numbers["shifts"], [str(k) for k in numbers["shifts"]])
    curve.minorticks_off()
    curve.legend(frameon=False, fontsize=8, loc="center right")
    plot_heatmap(picture, numbers["matrix"], cmap="RdBu_r", low=-1, high=1, bar="weight")
    picture.set(title="M₈", xlabel="from dimension (次元)", ylabel="to dimension")
