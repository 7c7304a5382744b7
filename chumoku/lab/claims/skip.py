"""Learning the identity with and without a skip connection.

plain   y = f(x)
skip    y = x + f(x)          f: 10 → 128 → 10
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from chumoku.lab.experiment import HOLDS, PARTLY, Budget, Outcome, Words, refute
from chumoku.lab.figures import BLUE, RED, make_panels, plot_curves
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import downsample, fit, fixed_seed
from chumoku.nn.feedforward import FeedForward

SAMPLES, WIDTH, HIDDEN = 10_000, 10, 128
GOAL = 0.01


class Skip(nn.Module):
    """y = x + f(x)"""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(x)
        return y


def run(budget: Budget) -> Outcome:
    steps = budget.steps(700, minimum=400)
    numbers: dict[str, Any] = {"steps": steps, "goal": GOAL}
    for task in ("identity", "rotation"):
        for way in ("plain", "skip"):
            runs = [train_model(task, way, seed, steps) for seed in range(budget.seeds)]
            numbers[f"{task}_{way}"] = {
                "losses": [downsample(one) for one in runs],
                "reached": [first_step_at_goal(one) for one in runs],
            }
    at = {key: [one or math.inf for one in numbers[key]["reached"]] for key in numbers if "_" in key}
    step = {key: format_seeds(values, "{:.0f}").replace("inf", "∞") for key, values in at.items()}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The identity reaches an error of {GOAL} after {step['identity_skip']} steps with a skip connection and "
            f"{step['identity_plain']} without; a random rotation after {step['rotation_skip']} and "
            f"{step['rotation_plain']}.",
            f"恒等写像は、スキップ接続ありでは {step['identity_skip']} ステップ、なしでは {step['identity_plain']} ステ"
            f"ップで誤差 {GOAL} に達します。ランダムな回転では {step['rotation_skip']} と {step['rotation_plain']} で"
            "す。",
        ),
        when=Words("In some seeds only.", "一部のシードでのみ成り立ちます。"),
    )


def train_model(task: str, way: str, seed: int, steps: int) -> list[float]:
    with fixed_seed(seed) as generator:
        data = torch.randn(SAMPLES, WIDTH, generator=generator)
        turn, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator))
        inner = FeedForward(WIDTH, HIDDEN, kind="relu")
    model = Skip(inner) if way == "skip" else inner
    target = data if task == "identity" else data @ turn

    def loss(generator: torch.Generator) -> Tensor:
        chosen = torch.randint(SAMPLES, (100,), generator=generator)
        return F.mse_loss(model(data[chosen]), target[chosen])

    return fit(model, loss, steps=steps, seed=seed, rate=1e-3)


def first_step_at_goal(losses: list[float]) -> int | None:
    """The first step whose loss reaches the goal, or None."""
    return next((step for step, loss in enumerate(losses, 1) if loss <= GOAL), None)


def judge(numbers: dict[str, Any]) -> str:
    pairs = zip(numbers["identity_skip"]["reached"], numbers["identity_plain"]["reached"], strict=True)
    steps = [[math.inf if one is None else one for one in pair] for pair in pairs]
    faster = [skip < plain for skip, plain in steps]
    if any(faster):
        return HOLDS if all(faster) else PARTLY
    return refute([0.0 if skip == plain else plain - skip for skip, plain in steps])


def draw(outcome: Outcome, figure: Figure) -> None:
    numbers = outcome.numbers
    titles = {"identity": "identity (恒等写像)", "rotation": "random rotation (回転)"}
    for axis, (task, title) in zip(make_panels(figure, 2), titles.items(), strict=True):
        runs = {way: numbers[f"{task}_{way}"]["losses"] for way in ("skip", "plain")}
        points = len(runs["skip"][0])
        at = [(place + 0.5) * numbers["steps"] / points for place in range(points)]
        named = {"skip (スキップ接続あり)": runs["skip"], "plain (なし)": runs["plain"]}
        plot_curves(axis, at, named, colors=(BLUE, RED))
        axis.axhline(numbers["goal"], color="#1c2733", linewidth=0.8, linestyle=":")
        axis.set(title=title, xlabel="step", ylabel="mean squared error", yscale="log")
