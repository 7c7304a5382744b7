"""BatchNorm and LayerNorm, and what their outputs depend on.

BatchNorm   μ, σ² of one feature over all tokens of the batch
LayerNorm   μ, σ² of one token over its features
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, RED, make_panels, plot_curves
from chumoku.lab.toy_models import format_seeds, substitution_loss
from chumoku.lab.training import build_toy, fit, fixed_seed, mean
from chumoku.nn.norms import BatchNorm, LayerNorm
from chumoku.nn.plain import plain

SIZES = (1, 2, 4, 16, 64)
WORDS, LENGTH, WIDTH = 8, 6, 32


def run(budget: Budget) -> Outcome:
    steps = budget.steps(80, minimum=40)
    numbers: dict[str, Any] = {"steps": steps, "sizes": list(SIZES), "moved": {}, "padded": {}, "loss": {}}
    seeds = range(budget.seeds)
    for norm in ("layer", "batch"):
        numbers["moved"][norm] = [[measure_shift(norm, size, seed) for size in SIZES] for seed in seeds]
        numbers["padded"][norm] = [measure_padding_shift(norm, seed) for seed in seeds]
        numbers["loss"][norm] = [[train_model(norm, size, seed, steps) for size in SIZES] for seed in seeds]
    shift = {place: format_seeds([one[place] for one in numbers["moved"]["batch"]], "{:.0%}") for place in (1, -1)}
    wider = format_seeds(numbers["padded"]["batch"], "{:.0%}")
    end = {
        norm: [format_seeds([one[at] for one in numbers["loss"][norm]], "{:.3f}") for at in (0, -1)]
        for norm in ("layer", "batch")
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"With other sentences in the batch, a sentence changes by {shift[1]} of its norm under BatchNorm in a "
            f"batch of 2 and {shift[-1]} in a batch of 64, and with padding by {wider}; under LayerNorm by "
            f"{max(map(max, numbers['moved']['layer'])):.0f}. After training in batches of 1, the loss on new "
            f"sentences is {end['batch'][0]} (BatchNorm) and {end['layer'][0]} (LayerNorm), in batches of 64 "
            f"{end['batch'][1]} and {end['layer'][1]}.",
            f"バッチのほかの文を入れ替えると、Batch Normalization では文のベクトルが、バッチサイズ 2 で {shift[1]}、64 "
            f"で {shift[-1]}、パディングを付けると {wider} 動きます。Layer Normalization では "
            f"{max(map(max, numbers['moved']['layer'])):.0f} です。学習後の損失は、バッチサイズ 1 で {end['batch'][0]} "
            f"と {end['layer'][0]}、64 で {end['batch'][1]} と {end['layer'][1]} です (前者が Batch Normalization)。",
        ),
        when=Words(
            "It holds for the dependence; in this training, small batches did not hurt BatchNorm more in every seed.",
            "依存性については成り立ちますが、この学習では、小さなバッチで必ず Batch Normalization が悪くなるとは言えま"
            "せんでした。",
        ),
    )


def measure_shift(kind: str, size: int, seed: int) -> float:
    """Mean relative change of a sentence over eight sets of other sentences; for size 1, its change with padding."""
    with fixed_seed(seed) as generator, torch.no_grad(), plain():
        norm = (LayerNorm if kind == "layer" else BatchNorm)(WIDTH)
        if size == 1:
            return measure_padding_shift(kind, seed)
        sentence = torch.randn(1, LENGTH, WIDTH, generator=generator)
        found = [norm(torch.cat([sentence, random_sentences(size - 1, generator)]))[0] for _ in range(9)]
    return mean([float((other - found[0]).norm() / found[0].norm()) for other in found[1:]])


def random_sentences(count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, LENGTH, WIDTH, generator=generator)


def measure_padding_shift(kind: str, seed: int) -> float:
    """Relative change of a sentence when it is padded to twice its length with one vector."""
    with fixed_seed(seed) as generator, torch.no_grad(), plain():
        norm = (LayerNorm if kind == "layer" else BatchNorm)(WIDTH)
        sentence = torch.randn(1, LENGTH, WIDTH, generator=generator)
        filling = torch.randn(1, 1, WIDTH, generator=generator).expand(1, LENGTH, WIDTH)
        alone = norm(sentence)
        beside = norm(torch.cat([sentence, filling], dim=1))[:, :LENGTH]
        return float((beside - alone).norm() / alone.norm())


def train_model(kind: str, size: int, seed: int, steps: int) -> float:
    model = build_toy(seed, kind="encoder", vocabulary=WORDS, norm=kind, position="sinusoidal")

    def loss(generator: torch.Generator, rows: int = size) -> Tensor:
        return substitution_loss(model, torch.randint(WORDS, (rows, LENGTH), generator=generator))

    fit(model, loss, steps=steps, seed=seed, rate=3e-3)
    with torch.no_grad():
        return float(loss(torch.Generator().manual_seed(1000 + seed), 256))


def judge(numbers: dict[str, Any]) -> str:
    if max(map(max, numbers["moved"]["layer"])) > 0 or min(map(min, numbers["moved"]["batch"])) < 0.01:
        return FAILS
    pairs = list(zip(numbers["loss"]["batch"], numbers["loss"]["layer"], strict=True))
    worse = all(batch[0] > layer[0] and batch[0] - layer[0] > batch[-1] - layer[-1] for batch, layer in pairs)
    return HOLDS if worse else PARTLY


def draw(outcome: Outcome, figure: Figure) -> None:
    numbers = outcome.numbers
    left, right = make_panels(figure, 2)
    for axis, key in ((left, "moved"), (right, "loss")):
        series = {"BatchNorm": numbers[key]["batch"], "LayerNorm": numbers[key]["layer"]}
        plot_curves(axis, numbers["sizes"], series, colors=(RED, BLUE), marker="o")
        axis.set(xscale="log", xlabel="batch size (バッチサイズ)")
        axis.set_xticks(numbers["sizes"], [str(size) for size in numbers["sizes"]])
        axis.xaxis.minorticks_off()
    left.set(ylabel="change of a sentence / its norm", ylim=(-0.02, None))
    right.set(ylabel="loss on new sentences (損失)", yscale="log")
