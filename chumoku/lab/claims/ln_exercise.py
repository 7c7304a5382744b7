"""LN(x) = (x − μ) / √(σ² + ε)"""

from __future__ import annotations

from typing import Any

import torch

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, format_list, matches_rounded
from chumoku.nn.norms import layer_norm

NOTE_VALUES = (-1.34, -0.45, 0.45, 1.34)


def run(budget: Budget) -> Outcome:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    found = layer_norm(x, torch.ones(4), torch.zeros(4), 0.0)
    numbers: dict[str, Any] = {
        "note": list(NOTE_VALUES),
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
    return HOLDS if matches_rounded(numbers["note"], numbers["found"], 2) and normal else FAILS
