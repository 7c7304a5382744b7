"""Scores and weighted values of H heads of width D/H: 2 · 2 · H · n² · D/H = 4 n² D operations for any H"""

from __future__ import annotations

import time
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, RED, make_panels, plot_bars
from chumoku.nn.attention import attend

WIDTH, LENGTH, HEADS = 768, 256, (1, 12)


def run(budget: Budget) -> Outcome:
    counts = {str(heads): count_operations(heads) for heads in HEADS}
    turns = budget.steps(30, minimum=5)
    seconds: dict[str, list[float]] = {str(heads): [] for heads in HEADS}
    with torch.no_grad():
        for _ in range(turns):
            for heads in HEADS:
                x = random_vectors(heads)
                started = time.perf_counter()
                attend(x, x, x)
                seconds[str(heads)].append((time.perf_counter() - started) * 1e3)
    medians = {heads: sorted(times)[len(times) // 2] for heads, times in seconds.items()}
    formula = 4 * LENGTH**2 * WIDTH
    numbers: dict[str, Any] = {
        "operations": counts,
        "formula": formula,
        "note_ratio": 12.0,
        "milliseconds": medians,
        "turns": turns,
    }
    one, twelve = (counts[str(heads)] for heads in HEADS)
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"One head takes {one:,} operations and twelve take {twelve:,}, both 4·n²·768. Timed: {medians['1']:.1f} "
            f"ms and {medians['12']:.1f} ms; twelve heads have twelve softmaxes. More heads give more views, not less "
            "computation.",
            f"1 ヘッドは {one:,} 回、12 ヘッドは {twelve:,} 回で、どちらも 4·n²·768 です。時間は {medians['1']:.1f} ms "
            f"と {medians['12']:.1f} ms でした(12 ヘッドは softmax も 12 回)。ヘッドが増やすのは観点であり、計算は減り"
            "ません。",
        ),
        correction=Correction(
            "n²·768² → n²·768·64",
            "n²·768 → n²·768",
            Words(
                "An inner product of width d costs d, not d²: 1·n²·768 = 12·n²·64.",
                "d 次元の内積は d² ではなく d 回の積和です。1·n²·768 = 12·n²·64。",
            ),
        ),
    )


def random_vectors(heads: int) -> Tensor:
    return torch.randn(1, heads, LENGTH, WIDTH // heads, generator=torch.Generator().manual_seed(0))


def count_operations(heads: int) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        x = random_vectors(heads)
        attend(x, x, x)
    return int(counter.get_total_flops())


def judge(numbers: dict[str, Any]) -> str:
    ratio = numbers["operations"]["1"] / numbers["operations"]["12"]
    return HOLDS if abs(ratio / numbers["note_ratio"] - 1) <= 0.05 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    left, right = make_panels(figure, 2, height=3.0)
    operations, times = outcome.numbers["operations"], outcome.numbers["milliseconds"]
    note = [LENGTH**2 * WIDTH**2 / 1e6, LENGTH**2 * WIDTH * (WIDTH // 12) / 1e6]
    counts = [operations["1"] / 1e6, operations["12"] / 1e6]
    labels = ["1 head × 768", "12 heads × 64"]
    plot_bars(left, labels, {"note ノート": note, "counted 実測": counts}, colors=(RED, BLUE), form="{:,.0f}")
    left.set(yscale="log", ylabel="million operations 百万回", ylim=(100, 2e5))
    plot_bars(right, labels, {"ms": [times["1"], times["12"]]}, colors=(BLUE,), form="{:.1f}")
    right.set_ylabel(f"milliseconds, n = {LENGTH}")
