"""LN(x) = (x − μ) / √(σ² + ε)"""

from __future__ import annotations

from typing import Any

import torch

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Claim, Outcome, Words, format_list, matches_rounded
from chumoku.nn.norms import layer_norm

NOTE_VALUES = (-1.34, -0.45, 0.45, 1.34)

CLAIM = Claim(
    id="ln-exercise",
    notes=("002",),
    title=Words("Exercise: layer normalization", "練習問題:Layer Normalization"),
    stated=Words(
        "LN[1,2,3,4] = [−1.34, −0.45, 0.45, 1.34] with γ = 1, β = 0, ε = 0.",
        "γ = 1、β = 0、ε = 0 のとき LN[1,2,3,4] = [−1.34, −0.45, 0.45, 1.34] です。",
    ),
    tried=Words(
        "Apply this project's layer norm to [1,2,3,4].", "本プロジェクトの LayerNorm に [1,2,3,4] を与えます。"
    ),
    refutes=Words("A value that rounds to another number.", "丸めた値が異なること。"),
    rule=Words(
        "Holds if all four round to the note's values, with mean 0 and variance 1.",
        "四つとも小数二桁で一致し、平均 0・分散 1 なら「成り立つ」。",
    ),
)


def run(budget: Budget) -> Outcome:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    found = layer_norm(x, torch.ones(4), torch.zeros(4), 0.0)
    numbers: dict[str, Any] = {
        "said": list(NOTE_VALUES),
        "found": found.tolist(),
        "mean": float(found.mean()),
        "variance": float(found.var(unbiased=False)),
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"LN[1,2,3,4] = {format_list(numbers['found'], 4)}: μ = 2.5, σ² = 1.25, and the division is by σ = 1.118.",
            f"LN[1,2,3,4] = {format_list(numbers['found'], 4)} です。μ = 2.5、σ² = 1.25 で、σ = 1.118 で割っています。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    normal = abs(numbers["mean"]) < 1e-12 and abs(numbers["variance"] - 1) < 1e-12
    return HOLDS if matches_rounded(numbers["said"], numbers["found"], 2) and normal else FAILS
