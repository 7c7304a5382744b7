"""(a−b)·(a−b) = a·a − a·b − b·a + b·b"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randn(100, 2, 5, dtype=torch.float64, generator=generator)
    gaps: dict[str, float] = {"minus": 0.0, "plus": 0.0}
    for a, b in pairs:
        length = float((a - b).square().sum())
        for name, sign in (("minus", -1), ("plus", 1)):
            gaps[name] = max(gaps[name], abs(float(a @ a - a @ b - b @ a + sign * (b @ b)) - length))
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])
    terms = [float(a @ a), -float(a @ b), -float(b @ a), float(b @ b)]
    example = {"a": a.tolist(), "b": b.tolist(), "terms": terms, "true": float((a - b).square().sum())}
    numbers: dict[str, Any] = {"gap_minus": gaps["minus"], "gap_plus": gaps["plus"], "example": example, "seeds": [0]}
    note = sum(terms[:3]) - terms[3]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"For a = (1, 2), b = (3, 1) the note's line gives {note:g}, but ‖a−b‖² is {example['true']:g}; a square "
            "cannot be negative. With + all 100 random pairs agree. The next line of the note has the correct sign "
            "again.",
            f"a = (1, 2)、b = (3, 1) ではノートの式は {note:g}、‖a−b‖² は {example['true']:g} です。二乗が負になること"
            "はありません。+ なら 100 組すべてで一致します。ノートも次の行では正しい符号に戻っています。",
        ),
        correction=Correction(
            "a·a − a·b − b·a − b·b",
            "a·a − a·b − b·a + b·b",
            Words("(−b)·(−b) = (−1)(−1) b·b = + b·b", "(−b)·(−b) = (−1)(−1) b·b = + b·b"),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if numbers["gap_minus"] < 1e-12 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=5.6, height=3.0)[0]
    terms, true = outcome.numbers["example"]["terms"], outcome.numbers["example"]["true"]
    shown = [sum(terms[:3]) - terms[3], sum(terms), true]
    labels = ["… − b·b\n(note ノート)", "… + b·b", "‖a−b‖²"]
    for place, (label, value, color) in enumerate(zip(labels, shown, (RED, BLUE, GRAY), strict=True)):
        bars_at = axis.bar([place], [value], 0.55, color=color, label=label)
        axis.bar_label(bars_at, [f"{value:g}"], padding=2)
    axis.axhline(0, color=GRAY, linewidth=0.8)
    axis.set_xticks(range(3), labels)
    axis.margins(y=0.2)
    axis.set_title("a = (1, 2),  b = (3, 1)", fontsize=9)
