"""Rotary positions: the inner product depends only on the distance.

(R_m q) · (R_n k) = q · R_{n−m} k
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels
from chumoku.nn.positions import RotaryPositions, rotate, sinusoidal

SHIFTS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
WIDTH, TOKENS = 64, 37


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, TOKENS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    numbers: dict[str, Any] = {"shifts": list(SHIFTS)}
    for name, score, dtype in (
        ("rotary_float64", rotary_scores, torch.float64),
        ("rotary_float32", rotary_scores, torch.float32),
        ("sinusoidal_float64", added_scores, torch.float64),
    ):
        still = score(query.to(dtype), key.to(dtype), 0)
        moved = [score(query.to(dtype), key.to(dtype), shift) for shift in SHIFTS]
        numbers[name] = [float((other - still).abs().max() / still.std()) for other in moved]
    reach = [at for at, miss in zip(SHIFTS, numbers["rotary_float32"], strict=True) if miss <= 0.01]
    numbers["float32_holds_until"] = max(reach, default=0)
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"In float64 no score changes by more than {format_number(max(numbers['rotary_float64']))} of their "
            f"standard deviation. In float32 the change is {format_number(numbers['rotary_float32'][3])} at a shift of "
            f"1,000 and {numbers['rotary_float32'][-1]:.2f} at a million; with an added sinusoidal encoding at least "
            f"{min(numbers['sinusoidal_float64']):.1f}.",
            f"float64 ではスコアの動きは散らばりの {format_number(max(numbers['rotary_float64']))} 以下です。float32 で"
            f"は、ずれ 1,000 で {format_number(numbers['rotary_float32'][3])}、百万で "
            f"{numbers['rotary_float32'][-1]:.2f} です。正弦波を足した場合は {min(numbers['sinusoidal_float64']):.1f} "
            "以上動きます。",
        ),
        when=Words(
            "It is exact in theory and in float64; in float32 angles are rounded, and scores change by at most 1 % up "
            f"to a shift of {numbers['float32_holds_until']:,}.",
            "数式の上と float64 では厳密です。float32 では角度が丸められるため、1 % 以内に収まるのはずれ "
            f"{numbers['float32_holds_until']:,} までです。",
        ),
    )


def rotary_scores(query: Tensor, key: Tensor, shift: int) -> Tensor:
    rotation = RotaryPositions(WIDTH)(torch.arange(TOKENS) + shift, query.dtype)
    return rotate(query, rotation) @ rotate(key, rotation).transpose(-2, -1)


def added_scores(query: Tensor, key: Tensor, shift: int) -> Tensor:
    """Scores with an added position encoding; the product contains terms that depend on the absolute position."""
    position = sinusoidal(torch.arange(TOKENS) + shift, WIDTH, dtype=query.dtype)
    return (query + position) @ (key + position).transpose(-2, -1)


def judge(numbers: dict[str, Any]) -> str:
    if max(numbers["rotary_float64"]) > 1e-6:
        return FAILS
    return HOLDS if numbers["float32_holds_until"] >= SHIFTS[-1] else PARTLY


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1)[0]
    for name, label, color in (
        ("sinusoidal_float64", "sinusoidal added (正弦波を加算)", GRAY),
        ("rotary_float32", "rotary, float32", RED),
        ("rotary_float64", "rotary, float64", BLUE),
    ):
        axis.plot(SHIFTS, outcome.numbers[name], "o-", color=color, label=label, markersize=3.5)
    axis.axhline(0.01, color=RED, linewidth=0.6, linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="shift of both positions (両方の位置のずれ)")
    axis.set_ylabel("largest change of a score / spread")
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(0.02, 0.36))
