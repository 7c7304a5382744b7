"""Π pᵢ → 0, and log Π pᵢ = Σ log pᵢ"""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels

P, WORDS = 0.1, 200


def run(budget: Budget) -> Outcome:
    single = torch.full((WORDS,), P).cumprod(0)
    double = torch.full((WORDS,), P, dtype=torch.float64).cumprod(0)
    logs = torch.full((WORDS,), P).log().cumsum(0)
    zero = {name: first_zero(values.tolist()) for name, values in (("float32", single), ("float64", double))}
    numbers: dict[str, Any] = {
        "first_zero": zero,
        "largest_product": float(single.max()),
        "products_float32": single.tolist(),
        "log_sums": logs.tolist(),
        "last_log_sum": float(logs[-1]),
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The product never exceeds {P}. In float32 it is exactly 0 from word {zero['float32']} on, so later words "
            f"have no effect; the sum of logarithms is {numbers['last_log_sum']:.1f} after {WORDS} words, without any "
            "problem. The method is correct, but the reason is the opposite.",
            f"積は {P} を超えません。float32 では {zero['float32']} 語目から正確に 0 になり、以後どの語も効かなくなりま"
            f"す。対数の和は {WORDS} 語でも {numbers['last_log_sum']:.1f} で無事です。対策は正しく、理由が逆です。",
        ),
        correction=Correction(
            "値が大きくなりすぎる (too large)",
            f"小さくなりすぎる (too small): float32 では {zero['float32']} 語目から 0",
            Words(
                "0.1⁴⁶ = 10⁻⁴⁶, and the smallest float32 is 1.4 × 10⁻⁴⁵",
                "0.1⁴⁶ = 10⁻⁴⁶ で、float32 の最小の数は 1.4 × 10⁻⁴⁵ です",
            ),
        ),
    )


def first_zero(values: list[float]) -> int | None:
    return next((place for place, value in enumerate(values, start=1) if value == 0), None)


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if numbers["largest_product"] > 1 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    left, right = make_panels(figure, 2, height=3.2)
    products = [value for value in outcome.numbers["products_float32"] if value > 0]
    zero = outcome.numbers["first_zero"]["float32"]
    left.plot(range(1, len(products) + 1), products, color=RED)
    left.axhline(2.0**-149, color=GRAY, linewidth=0.8, linestyle=":")
    left.annotate(
        f"0 from word {zero} on", (len(products), products[-1]), xytext=(6, 12), textcoords="offset points", color=RED
    )
    left.set(yscale="log", xlim=(0, WORDS), xlabel="words 語数", title="product 積 (float32)")
    right.plot(range(1, WORDS + 1), outcome.numbers["log_sums"], color=BLUE)
    right.set(xlim=(0, WORDS), xlabel="words 語数", title="sum of logs 対数の和")
    right.axhline(math.log(2.0**-149), color=GRAY, linewidth=0.8, linestyle=":")
