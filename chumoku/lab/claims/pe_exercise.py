"""PE(pos, 2i) = sin(pos / 10000^{2i/d}), PE(pos, 2i+1) = cos(pos / 10000^{2i/d})"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, matches_rounded
from chumoku.lab.figures import make_panels, plot_heatmap
from chumoku.nn.positions import sinusoidal

NOTE_VALUES = (
    *(0.00, 1.00, 0.00, 1.00),
    *(0.84, 0.54, 0.01, 1.00),
    *(0.91, -0.42, 0.02, 1.00),
    *(0.14, -0.99, 0.03, 1.00),
)


def run(budget: Budget) -> Outcome:
    first = sinusoidal(torch.arange(1), 512, dtype=torch.float64)[0, :2].tolist()
    table = sinusoidal(torch.arange(4), 4, dtype=torch.float64)
    numbers: dict[str, Any] = {"first_two": first, "note": list(NOTE_VALUES), "table": table.flatten().tolist()}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"PE(0,0) = {first[0]:g}, PE(0,1) = {first[1]:g}, and all 16 cells are as in the note.",
            f"PE(0,0) = {first[0]:g}、PE(0,1) = {first[1]:g} で、16 マスすべてがノートのとおりです。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    return (
        HOLDS if matches_rounded(numbers["note"], numbers["table"], 2) and numbers["first_two"] == [0.0, 1.0] else FAILS
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=4.6, height=3.4)[0]
    flat = [value + 0.0 for value in outcome.numbers["table"]]
    table = [flat[row * 4 : row * 4 + 4] for row in range(4)]
    dims, rows = [f"dim{d}" for d in range(4)], [f"位置 {p}" for p in range(4)]
    plot_heatmap(axis, table, rows=rows, columns=dims, form="{:.2f}", cmap="RdBu_r", low=-1, high=1)
