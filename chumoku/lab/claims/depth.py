"""Gradients in deep networks with and without residual connections.

plain      x ← f(x)            ∂x_L/∂x_0 = Π f′
residual   x ← x + f(x)        ∂x_L/∂x_0 = Π (1 + f′)
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from chumoku.lab.experiment import HOLDS, PARTLY, Budget, Outcome, Words, format_number, refute
from chumoku.lab.figures import BLUE, OCHRE, RED, make_panels, plot_curves
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import final_loss, fit, fixed_seed, mean
from chumoku.nn.feedforward import FeedForward

DEPTHS = (2, 4, 8, 16, 32, 64)
WAYS = ("residual", "plain", "plain, scaled start")
WIDTH, HIDDEN, CLASSES = 16, 32, 4


class DeepNetwork(nn.Module):
    """A stack of feed-forward layers, with or without residual connections, and a linear output."""

    def __init__(self, depth: int, way: str) -> None:
        super().__init__()
        self.residual = way == "residual"
        self.layers = nn.ModuleList(FeedForward(WIDTH, HIDDEN, kind="relu") for _ in range(depth))
        self.answer = nn.Linear(WIDTH, CLASSES)
        if way == "plain, scaled start":
            for name, parameter in self.layers.named_parameters():
                # ReLU halves the mean square, so the down projection has to double it.
                size = {"up.weight": WIDTH**-0.5, "down.weight": (2 / HIDDEN) ** 0.5}.get(name.split(".", 1)[1], 0.0)
                nn.init.normal_(parameter, 0.0, size) if size else nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x) if self.residual else layer(x)
        logits: Tensor = self.answer(x)
        return logits


def run(budget: Budget) -> Outcome:
    steps = budget.steps(100, minimum=25)
    numbers: dict[str, Any] = {"steps": steps, "depths": list(DEPTHS), "end": {}, "first_to_last": {}, "by_layer": {}}
    for way in WAYS:
        runs = [[run_trial(depth, way, seed, steps) for depth in DEPTHS] for seed in range(budget.seeds)]
        numbers["end"][way] = [[end for end, _ in run] for run in runs]
        numbers["first_to_last"][way] = [[sizes[0] / sizes[-1] for _, sizes in run] for run in runs]
        numbers["by_layer"][way] = [run[-1][1] for run in runs]
    end = {way: format_seeds([one[-1] for one in numbers["end"][way]]) for way in WAYS}
    share = {way: 10 ** mean([math.log10(one[-1]) for one in numbers["first_to_last"][way]]) for way in WAYS}
    ratio = {way: format_number(value) for way, value in share.items()}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"At 64 layers the gradient of the first layer is {ratio['plain']} of that of the last layer in plain "
            f"stacks and {ratio['residual']} in residual ones; after {steps} steps the loss is {end['plain']} and "
            f"{end['residual']} (chance {math.log(CLASSES):.2f}). With scaled initialization the ratio is "
            f"{ratio['plain, scaled start']} and the loss {end['plain, scaled start']}.",
            f"64 層では、最初の層の勾配は最後の層に対して、残差結合なしで {ratio['plain']}、ありで {ratio['residual']} "
            f"です。{steps} ステップ後の損失は {end['plain']} と {end['residual']} でした (偶然は "
            f"{math.log(CLASSES):.2f})。初期値を調整すると勾配は {ratio['plain, scaled start']}、損失は "
            f"{end['plain, scaled start']} です。",
        ),
        when=Words(
            "It holds for what learns: deep residual stacks do, plain ones do not. Vanishing gradients are not the "
            f"only cause: with an initialization that keeps the gradient at {ratio['plain, scaled start']} of its "
            f"size, the plain stack of 64 layers ends with a loss of {end['plain, scaled start']}.",
            "学習できるかどうかについては成り立ちます (残差結合ありは学習でき、なしはできません)。ただし原因は勾配消失"
            f"だけとは言えません。勾配が {ratio['plain, scaled start']} 倍に保たれる初期値でも、64 層の残差結合なしの損"
            f"失は {end['plain, scaled start']} でした。",
        ),
    )


def run_trial(depth: int, way: str, seed: int, steps: int) -> tuple[float, list[float]]:
    """The final loss, and the gradient norm of each layer before the first step."""
    with fixed_seed(seed) as generator:
        model = DeepNetwork(depth, way)
        teacher = torch.randn(WIDTH, CLASSES, generator=generator)

    def loss(generator: torch.Generator) -> Tensor:
        points = torch.randn(64, WIDTH, generator=generator)
        return F.cross_entropy(model(points), (points @ teacher).argmax(-1))

    with fixed_seed(seed) as generator:
        sizes = gradient_norms(
            copy.deepcopy(model).double(), torch.randn(64, WIDTH, generator=generator).double(), teacher
        )
    return final_loss(fit(model, loss, steps=steps, seed=seed, rate=2e-3)), sizes


def gradient_norms(model: nn.Module, points: Tensor, teacher: Tensor) -> list[float]:
    """The gradient norm of each layer, in float64 so that even tiny values can be measured."""
    F.cross_entropy(model(points), (points.float() @ teacher).argmax(-1)).backward()  # type: ignore[no-untyped-call]
    ups = (parameter.grad for name, parameter in model.named_parameters() if name.endswith("up.weight"))
    return [float(gradient.norm()) for gradient in ups if gradient is not None]


def judge(numbers: dict[str, Any]) -> str:
    goal = 0.8 * math.log(CLASSES)
    learns = {way: all(one[-1] < goal for one in runs) for way, runs in numbers["end"].items()}
    if not learns["residual"] or learns["plain"]:
        below = {way: [goal - one[-1] for one in runs] for way, runs in numbers["end"].items()}
        return refute(below["residual"], [-margin for margin in below["plain"]])
    vanished = {way: all(one[-1] < 1e-3 for one in runs) for way, runs in numbers["first_to_last"].items()}
    as_stated = vanished["plain"] and not vanished["residual"] and not vanished["plain, scaled start"]
    return HOLDS if as_stated and learns["plain, scaled start"] else PARTLY


def draw(outcome: Outcome, figure: Figure) -> None:
    numbers = outcome.numbers
    losses, gradients = make_panels(figure, 2)
    names = {"residual": "residual (残差結合)", "plain": "plain (なし)", "plain, scaled start": "plain, scaled start"}
    series = {label: numbers["end"][way] for way, label in names.items()}
    plot_curves(losses, numbers["depths"], series, colors=(BLUE, RED, OCHRE), marker="o", legend=False)
    losses.axhline(math.log(CLASSES), color="#1c2733", linewidth=0.8, linestyle=":")
    losses.set(xscale="log", xlabel="depth (層の数)", ylabel="loss (損失)", ylim=(0, 1.6))
    losses.set_xticks(numbers["depths"], [str(depth) for depth in numbers["depths"]])
    losses.xaxis.minorticks_off()
    series = {label: numbers["by_layer"][way] for way, label in names.items()}
    plot_curves(gradients, range(1, numbers["depths"][-1] + 1), series, colors=(BLUE, RED, OCHRE))
    gradients.set(yscale="log", xlabel="layer (層)", ylabel="gradient norm (勾配)")
