"""The placement of the norm, and whether training needs a warm-up.

pre    x ← x + f(norm(x))          post   x ← norm(x + f(x))
"""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import HOLDS, PARTLY, Budget, Outcome, Words, refute
from chumoku.lab.figures import BLUE, LIGHT, OCHRE, RED, make_panels, plot_curves
from chumoku.lab.toy_models import format_seeds, substitution_loss
from chumoku.lab.training import build_toy, downsample, final_loss, fit

DEPTHS = (2, 6, 12)
WORDS = 8
LEARNED = math.log(WORDS) / 2  # a loss below this
WAYS = ("pre", "post")


def run(budget: Budget) -> Outcome:
    steps = budget.steps(60, minimum=20)
    numbers: dict[str, Any] = {"steps": steps, "end": {}, "losses": {}}
    for depth in DEPTHS:
        for way in WAYS:
            for warmup in (0, steps // 2):
                key = run_key(depth, way, warm=warmup > 0)
                runs = [train_model(depth, way, warmup, seed, steps) for seed in range(budget.seeds)]
                numbers["end"][key] = [final_loss(one) for one in runs]
                numbers["losses"][key] = [downsample(one, 30) for one in runs]
    end = {key: format_seeds(values) for key, values in numbers["end"].items()}
    deep = DEPTHS[-1]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"Without warm-up the loss ends, at {' / '.join(map(str, DEPTHS))} layers, at "
            + " / ".join(end[run_key(depth, "pre")] for depth in DEPTHS)
            + " with Pre-LN and "
            + " / ".join(end[run_key(depth, "post")] for depth in DEPTHS)
            + f" with Post-LN (chance {math.log(WORDS):.2f}). With a warm-up Post-LN of {deep} layers ends "
            f"at {end[run_key(deep, 'post', warm=True)]}.",
            f"ウォームアップなしの最後の損失は、{'・'.join(map(str, DEPTHS))} 層の順に、Pre-LN で "
            + "・".join(end[run_key(depth, "pre")] for depth in DEPTHS)
            + "、Post-LN で "
            + "・".join(end[run_key(depth, "post")] for depth in DEPTHS)
            + f" です (偶然は {math.log(WORDS):.2f})。{deep} 層の Post-LN はウォームアップありで "
            f"{end[run_key(deep, 'post', warm=True)]} でした。",
        ),
        when=Words(
            "Only Pre-LN is considered: at these depths and this rate, Post-LN needs no warm-up either.",
            "Pre-LN だけを見るときです。この深さと学習率では、Post-LN もウォームアップなしで学習できました。",
        )
        if learns(numbers)[run_key(deep, "post")]
        else Words(
            f"Only Pre-LN is considered: at {deep} layers, Post-LN does not learn in {steps} steps with a warm-up "
            "either, so the missing warm-up is not the reason.",
            f"Pre-LN だけを見るときです。{deep} 層の Post-LN は、この {steps} ステップではウォームアップがあっても学習"
            "できず、足りないのはウォームアップだとは言えません。",
        ),
    )


def run_key(depth: int, way: str, *, warm: bool = False) -> str:
    return f"{way}, {depth} layers, {'warm-up' if warm else 'no warm-up'}"


def train_model(depth: int, way: str, warmup: int, seed: int, steps: int) -> list[float]:
    model = build_toy(seed, vocabulary=WORDS, layers=depth, placement=way, position="sinusoidal", feedforward_width=64)

    def loss(generator: torch.Generator) -> Tensor:
        return substitution_loss(model, torch.randint(WORDS, (8, 12), generator=generator))

    return fit(model, loss, steps=steps, seed=seed, rate=3e-3, warmup=warmup)


def judge(numbers: dict[str, Any]) -> str:
    learned, deep = learns(numbers), DEPTHS[-1]
    if not all(learned[run_key(depth, "pre")] for depth in DEPTHS):
        return refute(*([LEARNED - value for value in numbers["end"][run_key(depth, "pre")]] for depth in DEPTHS))
    spared = learned[run_key(deep, "post", warm=True)] and not learned[run_key(deep, "post")]
    return HOLDS if spared else PARTLY


def learns(numbers: dict[str, Any]) -> dict[str, bool]:
    return {key: max(values) < LEARNED for key, values in numbers["end"].items()}


def draw(outcome: Outcome, figure: Figure) -> None:
    numbers = outcome.numbers
    for axis, depth in zip(make_panels(figure, len(DEPTHS), width=8.6, height=3.2), DEPTHS, strict=True):
        series = {
            f"{way}{', warm-up' if warm else ''}": numbers["losses"][run_key(depth, way, warm=warm)]
            for way in WAYS
            for warm in (False, True)
        }
        points = len(next(iter(series.values()))[0])
        at = [(place + 0.5) * numbers["steps"] / points for place in range(points)]
        plot_curves(axis, at, series, colors=(BLUE, LIGHT, RED, OCHRE), legend=depth == DEPTHS[0])
        axis.axhline(math.log(WORDS), color="#1c2733", linewidth=0.8, linestyle=":")
        axis.set(title=f"{depth} layers (層)", xlabel="step", ylim=(0, 3.2))
        axis.set_ylabel("loss (損失)" if depth == DEPTHS[0] else "")
