"""PE(pos, 2i) = sin(pos / 10000^{2i/d}), PE(pos, 2i+1) = cos(pos / 10000^{2i/d})"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Claim, Outcome, Words, matches_rounded
from chumoku.lab.figures import make_panels, plot_heatmap
from chumoku.nn.positions import sinusoidal

NOTE_VALUES = (
    *(0.00, 1.00, 0.00, 1.00),
    *(0.84, 0.54, 0.01, 1.00),
    *(0.91, -0.42, 0.02, 1.00),
    *(0.14, -0.99, 0.03, 1.00),
)

CLAIM = Claim(
    id="pe-exercise",
    notes=("002",),
    title=Words("Exercise: the position table", "練習問題:位置エンコーディングの表"),
    stated=Words(
        "PE(0,0) = 0 and PE(0,1) = 1 for d = 512, and the table of d = 4 for positions 0 to 3.",
        "d = 512 で PE(0,0) = 0、PE(0,1) = 1 であり、d = 4 の位置 0〜3 の表は示したとおりです。",
    ),
    tried=Words(
        "Compute the encoding of this project's models for d = 512 and d = 4.",
        "本プロジェクトのモデルが足す位置エンコーディングを d = 512 と d = 4 で計算します。",
    ),
    refutes=Words("A cell that rounds to another number.", "丸めた値が異なるマスがあること。"),
    rule=Words(
        "Holds if all 16 cells round to the note's two digits and PE(0, ·) is 0, 1.",
        "16 マスすべてが小数二桁で一致し、PE(0,·) が 0, 1 なら「成り立つ」。",
    ),
)


def run(budget: Budget) -> Outcome:
    first = sinusoidal(torch.arange(1), 512, dtype=torch.float64)[0, :2].tolist()
    table = sinusoidal(torch.arange(4), 4, dtype=torch.float64)
    numbers: dict[str, Any] = {"first_two": first, "said": list(NOTE_VALUES), "table": table.flatten().tolist()}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"PE(0,0) = {first[0]:g}, PE(0,1) = {first[1]:g}, and all 16 cells are as in the note.",
            f"PE(0,0) = {first[0]:g}、PE(0,1) = {first[1]:g} で、16 マスすべてがノートのとおりです。",
        ),
        reading=Words(
            "The left columns oscillate fast with the position, the right ones hardly change.",
            "左の次元は位置とともに速く振動し、右の次元はほとんど動きません。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    return (
        HOLDS if matches_rounded(numbers["said"], numbers["table"], 2) and numbers["first_two"] == [0.0, 1.0] else FAILS
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=4.6, height=3.4)[0]
    flat = [value + 0.0 for value in outcome.numbers["table"]]
    table = [flat[row * 4 : row * 4 + 4] for row in range(4)]
    dims, rows = [f"dim{d}" for d in range(4)], [f"位置 {p}" for p in range(4)]
    plot_heatmap(axis, table, rows=rows, columns=dims, form="{:.2f}", cmap="RdBu_r", low=-1, high=1)
