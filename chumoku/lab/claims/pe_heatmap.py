"""The sinusoidal encoding as curves and heat maps.

PE(i, 2k) = sin(i / 10000^{2k/D}),  PE(i, 2k+1) = cos(i / 10000^{2k/D});   wavelength 2π · 10000^{2k/D}
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, LIGHT, RED, style_axis
from chumoku.nn.positions import frequencies, sinusoidal

WIDTHS = (32, 512)
POSITIONS = 4096
SKETCH_DIMENSIONS = (0, 50, 100)  # the dimensions of note 002's sketch, over 50 positions
SHOWN = 100


def run(budget: Budget) -> Outcome:
    numbers: dict[str, Any] = {"positions": POSITIONS, "widths": {str(width): measure(width) for width in WIDTHS}}
    cycles = [
        50 * float(frequencies(512, base=10000.0)[dimension // 2]) / (2 * math.pi) for dimension in SKETCH_DIMENSIONS
    ]
    numbers["cycles_in_50_positions"] = cycles
    slow, near = (numbers["widths"]["512"][key] for key in ("sign_changes", "smallest_distance"))
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"Over {POSITIONS:,} positions, dimension 0 changes its sign {slow[0]:,} times and the last pair "
            f"{slow[-1]} times (D = 512); the distance of the two most similar positions is {near:.2f}.",
            f"{POSITIONS:,} 個の位置で、次元 0 の符号は {slow[0]:,} 回、最後の組は {slow[-1]} 回変わります (D = 512)。"
            f"最も似た二つの位置の距離は {near:.2f} です。",
        ),
        correction=Correction(
            "002: 3.5, 7, 1.5 周期 (cycles) / 50, d = 0, 50, 100",
            ", ".join(f"{value:.1f}" for value in cycles),
            Words(
                "50 / (2π · 10000^{d/512}) for d = 0, 50, 100. In the note's sketch, dimension 50 oscillates faster "
                "than dimension 0.",
                "d = 0, 50, 100 に対する 50 / (2π · 10000^{d/512}) です。ノートの略図では次元 50 が次元 0 より速く振動"
                "しています。",
            ),
        ),
    )


def measure(width: int) -> dict[str, Any]:
    encoding = sinusoidal(torch.arange(POSITIONS), width, dtype=torch.float64)
    return {"sign_changes": sign_changes(encoding[:, ::2]), "smallest_distance": smallest_distance(encoding)}


def sign_changes(waves: Tensor) -> list[int]:
    """How often each column changes its sign."""
    positive = waves >= 0
    counted: list[int] = (positive[1:] != positive[:-1]).sum(0).tolist()
    return counted


def smallest_distance(vectors: Tensor) -> float:
    """Smallest distance between two rows, from ‖a − b‖² = ‖a‖² + ‖b‖² − 2 a·b."""
    squares = vectors.square().sum(-1)
    apart = squares[:, None] + squares[None] - 2 * vectors @ vectors.T
    return float(apart.fill_diagonal_(math.inf).min().clamp(min=0).sqrt())


def judge(numbers: dict[str, Any]) -> str:
    for found in numbers["widths"].values():
        changes = found["sign_changes"]
        if any(later > earlier for earlier, later in itertools.pairwise(changes)):
            return FAILS
        if found["smallest_distance"] <= 0.01:
            return FAILS
    return HOLDS


def draw(outcome: Outcome, figure: Figure) -> None:
    figure.set_size_inches(7.6, 7.8)
    axes = [style_axis(axis) for axis in figure.subplots(2, 2, height_ratios=(1, 1.75)).flat]
    for row, width in enumerate(int(width) for width in outcome.numbers["widths"]):
        encoding = sinusoidal(torch.arange(SHOWN), width).numpy()
        curve, picture = axes[2 * row : 2 * row + 2]
        curve.plot(encoding[1], color=LIGHT, linewidth=0.6 if width < 100 else 0, linestyle="--")
        curve.scatter(range(0, width, 2), encoding[1, ::2], s=5, color=BLUE, label="sin")
        curve.scatter(range(1, width, 2), encoding[1, 1::2], s=5, color=RED, label="cos")
        curve.set(title=f"PE of position 1, D = {width}", xlabel="dimension (次元)", ylabel="value", ylim=(-1.05, 1.05))
        curve.legend(frameon=False, fontsize=8, loc="lower right")
        picture.grid(visible=False)
        # Only sines, with two pixels per row at the runner's resolution: finer rows would cause aliasing, and sines
        # next to cosines would look like stripes that do not exist.
        shown = picture.imshow(
            encoding[:, ::2].T, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
        )
        figure.colorbar(shown, ax=picture, label="PE", shrink=0.85)
        picture.set(title=f"D = {width}, sin", xlabel="position (位置)", ylabel="dimension (次元)")
        picture.set_xticks(range(0, SHOWN, 20), [str(at) for at in range(0, SHOWN, 20)])
        picture.set_yticks(range(0, width // 2, width // 8), [str(at) for at in range(0, width, width // 4)])
