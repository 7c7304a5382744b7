"""Sizes are compatible, from the right, if they are equal or one of them is 1"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words
from chumoku.lab.figures import make_panels

SHAPES = ((), (1,), (3,), (2,), (2, 1), (2, 3), (4, 3), (2, 1, 3))


def run(budget: Budget) -> Outcome:
    total = (torch.tensor([1, 2, 3]) + torch.tensor([5])).tolist()
    table, wrong = [], 0
    for first in SHAPES:
        row = []
        for second in SHAPES:
            try:
                met: list[int] | None = list((torch.zeros(first) + torch.zeros(second)).shape)
            except RuntimeError:
                met = None
            wrong += met != broadcast_shape(first, second)
            row.append(met)
        table.append(row)
    meeting = sum(met is not None for row in table for met in row)
    numbers: dict[str, Any] = {
        "sum": total,
        "shapes": [list(s) for s in SHAPES],
        "table": table,
        "wrongly_told": wrong,
        "meeting": meeting,
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The sum is {total}. Of {len(SHAPES) ** 2} pairs, {meeting} are compatible and "
            f"{len(SHAPES) ** 2 - meeting} are not, all as the rule says; [2] and [3], or [2, 3] and [4, 3], are not "
            "compatible.",
            f"和は {total} です。{len(SHAPES) ** 2} 組のうち計算できるのは {meeting} 組、できないのは "
            f"{len(SHAPES) ** 2 - meeting} 組で、すべて規則どおりでした。[2] と [3]、[2, 3] と [4, 3] などは計算できま"
            "せん。",
        ),
    )


def broadcast_shape(first: tuple[int, ...], second: tuple[int, ...]) -> list[int] | None:
    met = []
    for a, b in zip_longest(reversed(first), reversed(second), fillvalue=1):
        if a != b and 1 not in (a, b):
            return None
        met.append(b if a == 1 else a)
    return met[::-1]


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if numbers["sum"] == [6, 7, 8] and numbers["wrongly_told"] == 0 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.6, height=4.0)[0]
    names = [str(shape) for shape in outcome.numbers["shapes"]]
    axis.grid(visible=False)
    for row, line in enumerate(outcome.numbers["table"]):
        for column, met in enumerate(line):
            color = "#f1d5d8" if met is None else "#dbe6f1"
            axis.barh(row, 0.94, 0.9, left=column - 0.47, color=color)
            axis.text(column, row, "×" if met is None else str(met), ha="center", va="center", fontsize=8)
    axis.set_xticks(range(len(names)), names)
    axis.set_yticks(range(len(names)), names)
    axis.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5))
