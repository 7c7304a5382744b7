"""Which learning rates converge, with and without LayerNorm.

θ ← θ − α ∇L(θ),   α = 0.001, 0.01, 0.1
"""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import GRAY, GRID, INK, LIGHT, RED, make_panels
from chumoku.lab.toy_models import format_seeds, substitution_loss
from chumoku.lab.training import build_toy, fit, mean, remove_norms

RATES = (0.001, 0.01, 0.1)
STEPS = {"sgd": 300, "adam": 60}
DEPTHS = (3, 5, 7)
WORDS = 8
LEARNS, STAYS, DIVERGES = "learns", "stays", "diverges"
STATED = {"without": (LEARNS, DIVERGES, None), "with": (LEARNS, LEARNS, LEARNS)}  # at each rate; None: not stated
CASES = (*(f"sgd, {depth} layers" for depth in DEPTHS), "adam, 5 layers")
JA = {LEARNS: "学習", STAYS: "停滞", DIVERGES: "発散"}


def run(budget: Budget) -> Outcome:
    steps = {kind: budget.steps(full, minimum=16) for kind, full in STEPS.items()}
    numbers: dict[str, Any] = {"steps": steps, "rates": list(RATES), "start": {}, "end": {}, "state": {}}
    for case in CASES:
        for norm in STATED:
            most = steps[case.split(",")[0]]
            cells = [[train_model(case, norm, rate, seed, most) for seed in range(budget.seeds)] for rate in RATES]
            key = f"{case}, {norm}"
            numbers["start"][key] = [[start for start, _ in cell] for cell in cells]
            numbers["end"][key] = [[finite(end) for _, end in cell] for cell in cells]
            numbers["state"][key] = [state(cell) for cell in cells]
    numbers["as_stated"] = [depth for depth in DEPTHS if agrees(numbers, f"sgd, {depth} layers")]
    shown = [(depth, *(numbers["state"][f"sgd, {depth} layers, {norm}"] for norm in STATED)) for depth in DEPTHS]
    good = ", ".join(map(str, numbers["as_stated"]))
    slow = ", ".join(format_seeds(numbers["end"][f"sgd, {depth} layers, with"][0]) for depth in DEPTHS)
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            "Gradient descent at 0.001, 0.01, 0.1, without | with LayerNorm: "
            + "; ".join(f"{depth} layers {', '.join(bare)} | {', '.join(normed)}" for depth, bare, normed in shown)
            + f". With LayerNorm at 0.001 the loss ends at {slow} after {steps['sgd']} steps (chance "
            f"{math.log(WORDS):.2f}). The note's table is reproduced at "
            + (f"a depth of {good}." if good else "no depth."),
            "勾配降下法の結果 (学習率 0.001、0.01、0.1 の順、Layer Norm なし | あり) は、"
            + "、".join(f"{depth} 層で {in_japanese(bare)} | {in_japanese(normed)}" for depth, bare, normed in shown)
            + f" です。Layer Norm ありの 0.001 の損失は {steps['sgd']} ステップ後に {slow} です (偶然は "
            f"{math.log(WORDS):.2f})。ノートの表と一致する深さは" + (f" {good} 層です。" if good else "ありません。"),
        ),
        when=Words(
            f"The network has {good} layers; the border depends on the depth.",
            f"深さが {good} 層のときです。境目は深さによって変わります。",
        ),
    )


def in_japanese(states: list[str]) -> str:
    return "・".join(JA[one] for one in states)


def state(cell: list[tuple[float, float]]) -> str:
    """The state of a cell from the losses of its seeds before and after training."""
    if any(not end <= start for start, end in cell):
        return DIVERGES
    return LEARNS if all(end < 0.9 * math.log(WORDS) for _, end in cell) else STAYS


def train_model(case: str, norm: str, rate: float, seed: int, steps: int) -> tuple[float, float]:
    """Loss on fixed sentences before and after training."""
    model = build_toy(seed, vocabulary=WORDS, layers=int(case.split()[1]), position="sinusoidal")
    if norm == "without":
        remove_norms(model)
    fixed = torch.randint(WORDS, (64, 12), generator=torch.Generator().manual_seed(1000 + seed))

    def loss(generator: torch.Generator) -> Tensor:
        return substitution_loss(model, torch.randint(WORDS, (8, 12), generator=generator))

    start = float(substitution_loss(model, fixed).detach())
    losses = fit(model, loss, steps=steps, seed=seed, rate=rate, optimizer="sgd" if "sgd" in case else "adam")
    return start, float(substitution_loss(model, fixed).detach()) if math.isfinite(losses[-1]) else math.inf


def finite(value: float) -> float | None:
    return value if math.isfinite(value) and value < 1e6 else None


def agrees(numbers: dict[str, Any], case: str) -> bool:
    return all(
        note is None or note == found
        for norm, row in STATED.items()
        for note, found in zip(row, numbers["state"][f"{case}, {norm}"], strict=True)
    )


def judge(numbers: dict[str, Any]) -> str:
    good = [agrees(numbers, f"sgd, {depth} layers") for depth in DEPTHS]
    return HOLDS if all(good) else PARTLY if any(good) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    numbers = outcome.numbers
    fill = {LEARNS: LIGHT, STAYS: GRID, DIVERGES: RED}
    for axis, case in zip(make_panels(figure, len(CASES), height=2.5, width=9.4), CASES, strict=True):
        axis.grid(visible=False)
        for row, norm in enumerate(STATED):
            for column, cell in enumerate(numbers["end"][f"{case}, {norm}"]):
                found = numbers["state"][f"{case}, {norm}"][column]
                axis.add_patch(Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, color=fill[found], linewidth=0))
                bad = found == DIVERGES
                text = "diverges\n発散" if bad else f"{mean(cell):.2f}\n{min(cell):.2f}–{max(cell):.2f}"
                axis.text(column, row, text, ha="center", va="center", fontsize=6.5, color="white" if bad else INK)
        axis.set(title=case, xlim=(-0.5, 2.5), ylim=(1.5, -0.5), xlabel="rate (学習率)")
        axis.set_xticks(range(3), [f"{rate:g}" for rate in RATES])
        axis.set_yticks(range(2), ["no LN", "LN"] if case == CASES[0] else ["", ""])
        for spine in axis.spines.values():
            spine.set_color(GRAY)
