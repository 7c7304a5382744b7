"""softmax(x / T)"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.decoding.sampling import apply_temperature
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

INPUT = (1.0, 2.0, 3.0)
NOTE_VALUES = {0.5: (0.02, 0.14, 0.84), 1.0: (0.09, 0.24, 0.67), 2.0: (0.19, 0.29, 0.52)}


def run(budget: Budget) -> Outcome:
    x = torch.tensor(INPUT, dtype=torch.float64)
    found = {t: apply_temperature(x, temperature=t).softmax(-1) for t in NOTE_VALUES}
    numbers: dict[str, Any] = {
        "temperatures": list(NOTE_VALUES),
        "note": [list(s) for s in NOTE_VALUES.values()],
        "found": [s.tolist() for s in found.values()],
        "entropies": [float(-(s * s.log()).sum()) for s in found.values()],
    }
    cold, one, hot = numbers["found"]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"T=0.5 gives {format_list(cold)}, T=1 {format_list(one)}, T=2 {format_list(hot)}. Only T=1 matches the "
            "note; it is correct that a larger T is flatter.",
            f"T=0.5 で {format_list(cold)}、T=1 で {format_list(one)}、T=2 で {format_list(hot)} です。数値が合うのは "
            "T=1 だけですが、T が大きいほど平坦になることは正しいです。",
        ),
        when=Words("T = 1", "T = 1 のとき"),
        correction=Correction(
            f"T=0.5: {format_list(NOTE_VALUES[0.5], 2)}; T=2: {format_list(NOTE_VALUES[2.0], 2)}",
            f"T=0.5: {format_list(cold)}; T=2: {format_list(hot)}",
            Words("softmax[2,4,6] and softmax[0.5,1,1.5]", "softmax[2,4,6] と softmax[0.5,1,1.5]"),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    right = [matches_rounded(note, found, 2) for note, found in zip(numbers["note"], numbers["found"], strict=True)]
    grows = numbers["entropies"] == sorted(numbers["entropies"])
    if all(right) and grows:
        return HOLDS
    return PARTLY if any(right) and grows else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    n = outcome.numbers
    for axis, t, note, found in zip(
        make_panels(figure, 3, height=2.9, width=8.6), n["temperatures"], n["note"], n["found"], strict=True
    ):
        plot_bars(axis, ["1", "2", "3"], {"note ノート": note, "true 正": found}, colors=(RED, BLUE), form="{:.2f}")
        axis.set(title=f"T = {t:g}", ylim=(0, 1.0))
