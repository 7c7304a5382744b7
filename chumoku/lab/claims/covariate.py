"""How the input distribution of a layer changes while the layers below it learn.

shift(t)    √ mean over features of ((μ_t − μ_0) / σ_0)²       μ, σ of one feature over the tokens of a fixed batch
spread(t)   σ_t / σ_0 over everything
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import HOLDS, PARTLY, Budget, Outcome, Words, refute
from chumoku.lab.figures import BLUE, RED, make_panels, plot_curves
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import build_toy, fit, remove_norms
from chumoku.nn.tap import record

WORDS, LAYERS, POINTS = 8, 4, 30
ADDRESS = f"decoder.blocks.{LAYERS - 1}.feedforward_norm"


def run(budget: Budget) -> Outcome:
    steps = budget.steps(150, minimum=60)
    numbers: dict[str, Any] = {"steps": steps}
    for way in ("with", "without"):
        runs = [track_inputs(way, seed, steps) for seed in range(budget.seeds)]
        numbers[way] = {key: [one[key] for one in runs] for key in ("at", "mean", "deviation", "shift", "spread")}
    parts = is_halved(numbers)
    reduced = [
        name for name, less in zip(("the shift of the means", "the change of the spread"), parts, strict=True) if less
    ]
    reduced_ja = [name for name, less in zip(("平均の動き", "広がりの変化"), parts, strict=True) if less]
    shift = {way: format_seeds([one[-1] for one in numbers[way]["shift"]]) for way in ("with", "without")}
    spread = {way: format_seeds([one[-1] for one in numbers[way]["spread"]]) for way in ("with", "without")}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"After {steps} steps the means of the features have moved by {shift['without']} standard deviations "
            f"without normalization and {shift['with']} with LayerNorm; the spread is {spread['without']} and "
            f"{spread['with']} times the initial one, the latter almost by definition.",
            f"{steps} ステップ後、特徴ごとの平均は、正規化なしで広がりの {shift['without']} 倍、Layer Norm ありで "
            f"{shift['with']} 倍動きました。広がりは、もとの {spread['without']} 倍と {spread['with']} 倍になりました "
            "(後者は Layer Norm の式からほぼ当然です)。",
        ),
        when=Words(
            "The distribution does change; LayerNorm more than halves "
            f"{' and '.join(reduced) or 'neither part of it'}, but not the rest.",
            "分布が変わることは確かです。Layer Norm で半分未満になったのは"
            f"{'と'.join(reduced_ja) or '、どちらでもありません'}{'だけです' if reduced_ja else ''}。",
        ),
    )


def track_inputs(way: str, seed: int, steps: int) -> dict[str, Any]:
    model = build_toy(seed, vocabulary=WORDS, layers=LAYERS, position="sinusoidal")
    if way == "without":
        remove_norms(model)
    fixed = torch.randint(WORDS, (32, 12), generator=torch.Generator().manual_seed(1000 + seed))
    snapshots: list[Tensor] = []
    every = max(1, steps // POINTS)

    def callback(step: int) -> None:
        if step % every == 0:
            with torch.no_grad(), record(model, ADDRESS) as tape:
                model(fixed)
            snapshots.append(tape[ADDRESS].flatten(0, 1))

    def loss(generator: torch.Generator) -> Tensor:
        words = torch.randint(WORDS, (8, 12), generator=generator)
        return F.cross_entropy(model(words).logits[:, 1:].flatten(0, 1), words[:, :-1].flatten())

    fit(model, loss, steps=steps, seed=seed, rate=3e-3, callback=callback)
    return {"at": [place * every for place in range(len(snapshots))], **summarize(snapshots)}


def summarize(snapshots: list[Tensor]) -> dict[str, list[float]]:
    start, spread = snapshots[0].mean(0), snapshots[0].std(0)
    return {
        "mean": [float(x.mean()) for x in snapshots],
        "deviation": [float(x.std()) for x in snapshots],
        "shift": [float(((x.mean(0) - start) / spread).square().mean().sqrt()) for x in snapshots],
        "spread": [float(x.std() / snapshots[0].std()) for x in snapshots],
    }


def is_halved(numbers: dict[str, Any]) -> tuple[bool, bool]:
    """Whether LayerNorm more than halves the shift of the means, and the change of the spread, in every seed."""
    moved = {way: [one[-1] for one in numbers[way]["shift"]] for way in ("with", "without")}
    wider = {way: [abs(one[-1] - 1) for one in numbers[way]["spread"]] for way in ("with", "without")}
    less, narrower = (
        all(normed < plain / 2 for normed, plain in zip(found["with"], found["without"], strict=True))
        for found in (moved, wider)
    )
    return less, narrower


def judge(numbers: dict[str, Any]) -> str:
    moved = [one[-1] - 0.25 for one in numbers["without"]["shift"]]
    if min(moved) < 0:
        return refute(moved)
    return HOLDS if all(is_halved(numbers)) else PARTLY


def draw(outcome: Outcome, figure: Figure) -> None:
    numbers = outcome.numbers
    at = numbers["with"]["at"][0]
    for axis, key, label in zip(
        make_panels(figure, 2),
        ("shift", "spread"),
        ("shift of the means / spread (平均の動き)", "spread / spread at the start (広がり)"),
        strict=True,
    ):
        series = {"no norm (正規化なし)": numbers["without"][key], "LayerNorm": numbers["with"][key]}
        plot_curves(axis, at, series, colors=(RED, BLUE))
        axis.set(xlabel="step", ylabel=label, ylim=(0, None))
