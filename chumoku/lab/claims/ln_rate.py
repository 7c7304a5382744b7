"""Which learning rates survive, with and without LayerNorm.

θ ← θ − α ∇L(θ),   α = 0.001, 0.01, 0.1
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Claim, Outcome, Words
from chumoku.lab.figures import GREY, INK, LIGHT, RED, panels
from chumoku.lab.training import fit, mean, toy, unnormed
from chumoku.models.model import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    id="ln-rate",
    notes=("002",),
    title=Words("LayerNorm and the learning rate", "Layer Normalization と学習率"),
    stated=Words(
        "Without LayerNorm a rate of 0.001 converges and 0.01 diverges; with it 0.001, 0.01 and even 0.1 converge.",
        "Layer Norm がないと学習率 0.001 は収束し 0.01 は発散しますが、あれば 0.001、0.01、0.1 のいずれでも収束しま"
        "す。",
    ),
    tried=Words(
        "Decoders of 3, 5 and 7 layers learn to repeat the previous word by plain gradient descent, with their "
        "LayerNorms and with all of them replaced by nothing; with 5 layers by Adam as well. The note names no "
        "network: the depths were chosen after a look at 2 to 8 and 12, so that the border is seen to move.",
        "3 層、5 層、7 層のデコーダに、直前の単語を答える課題を単純な勾配降下法で学習させます。Layer Norm がある場合"
        "と、すべて取り除いた場合を比べ、5 層では Adam でも試します。ノートにはネットワークの記載がないため、深さは "
        "2〜8 層と 12 層を見たうえで、境目が動く様子がわかるように選びました。",
    ),
    refutes=Words(
        "A cell of the note's table that turns out otherwise.",
        "ノートの表と異なる結果になる欄があれば、反証されます。",
    ),
    rule=Words(
        "A run diverges when its loss is no longer finite or ends above its start, and a cell when one of its seeds "
        "does. Holds when all five cells of the note are as stated at every depth (plain descent); holds only at some "
        "depths when at one at least; fails otherwise.",
        "損失が有限でなくなるか、始めより高く終わる学習を発散とし、一つのシードでも発散すればその欄を発散とします。"
        "ノートの五つの欄がすべての深さで (勾配降下法で) 一致すれば成立、一部の深さだけなら限定的に成立、それ以外は不"
        "成立とします。",
    ),
)
RATES = (0.001, 0.01, 0.1)
DEPTHS = (3, 5, 7)
WORDS = 8
STATED = {"without": (True, False, None), "with": (True, True, True)}  # converges at each rate; None: not said
CASES = (*(f"sgd, {depth} layers" for depth in DEPTHS), "adam, 5 layers")


def run(budget: Budget) -> Outcome:
    steps = budget.steps(60, least=16)
    numbers: dict[str, Any] = {"steps": steps, "rates": list(RATES), "start": {}, "end": {}, "diverged": {}}
    for case in CASES:
        for norm in STATED:
            cells = [[trained(case, norm, rate, seed, steps) for seed in range(budget.seeds)] for rate in RATES]
            key = f"{case}, {norm}"
            numbers["start"][key] = [[start for start, _ in cell] for cell in cells]
            numbers["end"][key] = [[finite(end) for _, end in cell] for cell in cells]
            numbers["diverged"][key] = [any(not end < start for start, end in cell) for cell in cells]
    numbers["as_stated"] = [depth for depth in DEPTHS if agrees(numbers, f"sgd, {depth} layers")]
    numbers["widened"] = [depth for depth in DEPTHS if first(numbers, depth, "with") > first(numbers, depth, "without")]
    verdict = judge(numbers)
    good = ", ".join(map(str, numbers["as_stated"])) or "none"
    return Outcome(
        verdict,
        numbers,
        Words(
            "The lowest rate at which plain descent diverges, without and with LayerNorm: "
            + "; ".join(
                f"{depth} layers {worst(numbers, depth, 'without')}, {worst(numbers, depth, 'with')}"
                for depth in DEPTHS
            )
            + f". The note's table comes out exactly at depth {good}.",
            "勾配降下法が発散する最小の学習率は (Layer Norm なし、ありの順に)、"
            + "、".join(
                f"{depth} 層で {worst(numbers, depth, 'without')} と {worst(numbers, depth, 'with')}"
                for depth in DEPTHS
            )
            + f" です (none は、どれも発散しないこと)。ノートの表と完全に一致する深さは {good} です。",
        ),
        when=Words(
            f"The network is {good} layers deep. The border moves with the depth; LayerNorm widens the range of rates "
            f"at {len(numbers['widened'])} of {len(DEPTHS)} depths.",
            f"深さが {good} 層のときです。境目は深さによって変わります。Layer Norm が学習率の範囲を広げること"
            f"は、{len(DEPTHS)} 通りの深さのうち {len(numbers['widened'])} 通りで見られます。",
        )
        if verdict == PARTLY
        else None,
        reading=Words(
            "The loss at the end (mean of the seeds; chance 2.08). Red: diverged.",
            "最後の損失です (シードの平均、偶然は 2.08)。赤は発散です。",
        ),
    )


def trained(case: str, norm: str, rate: float, seed: int, steps: int) -> tuple[float, float]:
    """The loss on fixed sentences, before and after."""
    model = toy(seed, vocabulary=WORDS, layers=int(case.split()[1]), position="sinusoidal")
    if norm == "without":
        unnormed(model)
    fixed = torch.randint(WORDS, (64, 12), generator=torch.Generator().manual_seed(1000 + seed))

    def loss(generator: torch.Generator) -> Tensor:
        return repeating(model, torch.randint(WORDS, (8, 12), generator=generator))

    start = float(repeating(model, fixed).detach())
    losses = fit(model, loss, steps=steps, seed=seed, rate=rate, optimiser="sgd" if "sgd" in case else "adam")
    return start, float(repeating(model, fixed).detach()) if math.isfinite(losses[-1]) else math.inf


def repeating(model: Model, words: Tensor) -> Tensor:
    """The loss of saying, at each word, the one before it."""
    return F.cross_entropy(model(words).logits[:, 1:].flatten(0, 1), words[:, :-1].flatten())


def finite(value: float) -> float | None:
    return value if math.isfinite(value) and value < 1e6 else None


def agrees(numbers: dict[str, Any], case: str) -> bool:
    return all(
        said is None or said != diverged
        for norm, row in STATED.items()
        for said, diverged in zip(row, numbers["diverged"][f"{case}, {norm}"], strict=True)
    )


def first(numbers: dict[str, Any], depth: int, norm: str) -> float:
    """The lowest rate that diverges."""
    row = numbers["diverged"][f"sgd, {depth} layers, {norm}"]
    return next((rate for rate, bad in zip(numbers["rates"], row, strict=True) if bad), math.inf)


def worst(numbers: dict[str, Any], depth: int, norm: str) -> str:
    rate = first(numbers, depth, norm)
    return f"{rate:g}" if rate < math.inf else "none"


def judge(numbers: dict[str, Any]) -> str:
    good = [agrees(numbers, f"sgd, {depth} layers") for depth in DEPTHS]
    return HOLDS if all(good) else PARTLY if any(good) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    numbers = outcome.numbers
    for axis, case in zip(panels(figure, len(CASES), height=2.3, width=8.6), CASES, strict=True):
        axis.grid(visible=False)
        for row, norm in enumerate(STATED):
            for column, cell in enumerate(numbers["end"][f"{case}, {norm}"]):
                bad = numbers["diverged"][f"{case}, {norm}"][column]
                axis.add_patch(box(column, row, RED if bad else LIGHT))
                text = "diverges\n発散" if bad else f"{mean(cell):.2f}"
                axis.text(column, row, text, ha="center", va="center", fontsize=7.5, color="white" if bad else INK)
        axis.set(title=case, xlim=(-0.5, 2.5), ylim=(1.5, -0.5), xlabel="rate (学習率)")
        axis.set_xticks(range(3), [f"{rate:g}" for rate in RATES])
        axis.set_yticks(range(2), ["no LN", "LN"] if case == CASES[0] else ["", ""])
        for spine in axis.spines.values():
            spine.set_color(GREY)


def box(column: int, row: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, color=colour, linewidth=0)
