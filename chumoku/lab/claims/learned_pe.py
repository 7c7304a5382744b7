"""x = E[token] + P[position], P a learned table [context, width]"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Correction, Outcome, Words
from chumoku.lab.figures import make_panels, plot_heatmap
from chumoku.models.count import count
from chumoku.models.presets import preset
from chumoku.nn.positions import LearnedPositions

NOTE_VALUES = 786_432


def run(budget: Budget) -> Outcome:
    config = preset("gpt2")
    layer = LearnedPositions(config.context, config.width)
    torch.nn.init.normal_(layer.table, std=0.02, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(7)
    given = layer(positions, 7)
    given.square().sum().backward()
    gradient = layer.table.grad
    learns = gradient is not None and bool(gradient[:7].abs().min(dim=1).values.max() > 0)
    numbers: dict[str, Any] = {
        "counted": layer.table.numel(),
        "in_the_preset": count(config).parts["positions"].parameters,
        "shape": list(layer.table.shape),
        "gives_the_numbers": bool(torch.equal(given.detach(), positions[:, None].expand_as(given).float())),
        "learns": learns,
        "first_rows": given.detach()[:, :24].tolist(),
        "seeds": [0],
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The table is {numbers['shape']}: {numbers['counted']:,} parameters. [0, 1, 2, …] is the input (the "
            "index); the output is the rows of the table, 768 learned numbers per position.",
            f"表は {numbers['shape']} で、パラメータは {numbers['counted']:,} 個です。[0, 1, 2, …] は入力(添字)であり、"
            "出てくるのは表の行、位置ごとに学習された 768 個の数です。",
        ),
        when=Words(
            "only the count is meant; [0, 1, 2, …] is the index into the table",
            "パラメータ数について。[0, 1, 2, …] は表の添字にすぎません",
        ),
        correction=Correction(
            "その層は [0, 1, 2, 3, …] (the layer is these numbers)",
            "0, 1, 2, 3, … で引く学習された表 [1024, 768] (a learned table, looked up by them)",
            Words("x = E[token] + P[position]", "x = E[トークン] + P[位置]"),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    counted = numbers["counted"] == numbers["in_the_preset"] == NOTE_VALUES
    if not counted:
        return FAILS
    return HOLDS if numbers["gives_the_numbers"] else PARTLY


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.4, height=2.6)[0]
    rows = outcome.numbers["first_rows"]
    names = [f"位置 {p}" for p in range(len(rows))]
    plot_heatmap(axis, rows, rows=names, cmap="RdBu_r", low=-0.06, high=0.06, bar="initial values 初期値")
    axis.set_xlabel("the first 24 of 768 dimensions 次元")
