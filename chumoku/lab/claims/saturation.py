"""softmax(x)ᵢ = e^{xᵢ} / Σⱼ e^{xⱼ}, and its gradient sᵢ(δᵢⱼ − sⱼ)"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import (
    FAILS,
    HOLDS,
    PARTLY,
    Budget,
    Correction,
    Outcome,
    Words,
    format_list,
    matches_rounded,
)
from chumoku.lab.figures import BLUE, RED, make_panels, plot_bars

INPUTS = ((10.0, 8.0, 1.0, 0.0), (2.0, 1.6, 0.2, 0.0))
NOTE_VALUES = ((0.88, 0.12, 0.0, 0.0), (0.44, 0.30, 0.15, 0.11))


def run(budget: Budget) -> Outcome:
    found = [torch.tensor(x, dtype=torch.float64).softmax(0) for x in INPUTS]
    slopes = [float((s.diag() - torch.outer(s, s)).norm()) for s in found]
    numbers: dict[str, Any] = {
        "note": [list(s) for s in NOTE_VALUES],
        "found": [s.tolist() for s in found],
        "gradient_norms": slopes,
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The first is {format_list(numbers['found'][0])}, as stated; the second is "
            f"{format_list(numbers['found'][1])}. The gradient norms are {slopes[0]:.3f} and {slopes[1]:.3f}: the "
            "claim is correct, but the second list is not.",
            f"一つ目は {format_list(numbers['found'][0])} でノートのとおりですが、二つ目は "
            f"{format_list(numbers['found'][1])} です。勾配の大きさは {slopes[0]:.3f} と {slopes[1]:.3f} で、主張は正し"
            "く、二つ目の数値だけが誤りです。",
        ),
        when=Words("only the first list, [10, 8, 1, 0], is considered", "一つ目の例 [10, 8, 1, 0] のとき"),
        correction=Correction(
            format_list(NOTE_VALUES[1], 2),
            format_list(numbers["found"][1]),
            Words(
                "e²=7.389, e^1.6=4.953, e^0.2=1.221, e⁰=1; sum 14.563",
                "e²=7.389、e^1.6=4.953、e^0.2=1.221、e⁰=1、合計 14.563",
            ),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    right = [matches_rounded(note, found, 2) for note, found in zip(numbers["note"], numbers["found"], strict=True)]
    ordered = numbers["gradient_norms"][0] < numbers["gradient_norms"][1]
    if all(right) and ordered:
        return HOLDS
    return PARTLY if any(right) and ordered else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axes = make_panels(figure, 2, height=3.0)
    for axis, x, note, found in zip(axes, INPUTS, outcome.numbers["note"], outcome.numbers["found"], strict=True):
        plot_bars(
            axis, [f"{v:g}" for v in x], {"note ノート": note, "true 正": found}, colors=(RED, BLUE), form="{:.2f}"
        )
        axis.set(title=f"softmax[{', '.join(f'{v:g}' for v in x)}]", ylim=(0, 1.05))
