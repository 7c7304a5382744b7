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
from chumoku.lab.figures import GREY, GRID, INK, LIGHT, RED, make_panels
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import build_toy, fit, mean, remove_norms
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
        "Decoders of 3, 5 and 7 layers learn a simple substitution of words by 300 steps of plain gradient descent (a "
        "quick run takes fewer), with their LayerNorms and with all of them replaced by nothing; with 5 layers also by "
        "60 steps of Adam. The note names neither network nor task: depths were chosen after a look at 2 to 8 and 12 "
        "in a harder task, so that the border is seen to move, and this task so that the slowest rate can learn.",
        "3 層、5 層、7 層のデコーダに、単語の単純な置き換えを勾配降下法で 300 ステップ (簡易実行では減ります) 学習させ"
        "ます。Layer Norm がある場合と、すべて取り除いた場合を比べ、5 層では Adam でも 60 ステップ試します。ノートには"
        "ネットワークも課題も記載がないため、深さは、より難しい課題で 2〜8 層と 12 層を見て境目が動く様子がわかるよう"
        "に、課題は最も小さい学習率でも学習できるように選びました。",
    ),
    refutes=Words(
        "A cell of the note's table that turns out otherwise, at every depth.",
        "どの深さでも、ノートの表と異なる結果になる欄があれば、反証されます。",
    ),
    rule=Words(
        "A run diverges when its loss is no longer finite or ends above its start; it learns when it ends below 90 % "
        "of chance (ln 8); otherwise it stays. A cell diverges when one seed does, learns when all do, else stays. The "
        'note\'s "converges" means that the cell learns. Holds when all five cells of the note are as stated at every '
        "depth (plain descent); holds only at some depths when at one at least; does not hold otherwise.",
        "損失が有限でなくなるか始めより高く終われば「発散」、偶然 (ln 8) の 90 % 未満で終われば「学習」、それ以外は「停"
        "滞」とします。一つのシードでも発散すればその欄は発散、すべてのシードが学習すれば学習、それ以外は停滞です。ノ"
        "ートの「収束」は学習のことと読みます。ノートの五つの欄がすべての深さで (勾配降下法で) 一致すれば「成り立つ」、"
        "一部の深さだけなら「条件つきで成り立つ」、それ以外は「成り立たない」。",
    ),
)
RATES = (0.001, 0.01, 0.1)
STEPS = {"sgd": 300, "adam": 60}
DEPTHS = (3, 5, 7)
WORDS = 8
LEARNS, STAYS, DIVERGES = "learns", "stays", "diverges"
STATED = {"without": (LEARNS, DIVERGES, None), "with": (LEARNS, LEARNS, LEARNS)}  # at each rate; None: not said
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
    verdict = judge(numbers)
    shown = [(depth, *(numbers["state"][f"sgd, {depth} layers, {norm}"] for norm in STATED)) for depth in DEPTHS]
    good = ", ".join(map(str, numbers["as_stated"]))
    slow = ", ".join(format_seeds(numbers["end"][f"sgd, {depth} layers, with"][0]) for depth in DEPTHS)
    return Outcome(
        verdict,
        numbers,
        Words(
            "Plain descent at 0.001, 0.01, 0.1, without | with LayerNorm: "
            + "; ".join(f"{depth} layers {', '.join(bare)} | {', '.join(normed)}" for depth, bare, normed in shown)
            + f". With LayerNorm at 0.001 the loss ends at {slow} after {steps['sgd']} steps (chance "
            f"{math.log(WORDS):.2f}). The note's table comes out at "
            + (f"a depth of {good}." if good else "no depth."),
            "勾配降下法の結果 (学習率 0.001、0.01、0.1 の順、Layer Norm なし | あり) は、"
            + "、".join(f"{depth} 層で {in_japanese(bare)} | {in_japanese(normed)}" for depth, bare, normed in shown)
            + f" です。Layer Norm ありの 0.001 の損失は {steps['sgd']} ステップ後に {slow} です (偶然は "
            f"{math.log(WORDS):.2f})。ノートの表と一致する深さは" + (f" {good} 層です。" if good else "ありません。"),
        ),
        when=Words(
            f"The network is {good} layers deep; the border moves with the depth.",
            f"深さが {good} 層のときです。境目は深さによって変わります。",
        )
        if verdict == PARTLY
        else None,
        reading=Words(
            "The loss at the end: mean, and from the least to the greatest seed (chance 2.08). Blue: learns; grey: "
            "stays; red: diverges.",
            "最後の損失の平均と、シードの最小から最大までです (偶然は 2.08)。青は学習、灰色は停滞、赤は発散です。",
        ),
    )


def in_japanese(states: list[str]) -> str:
    return "・".join(JA[one] for one in states)


def state(cell: list[tuple[float, float]]) -> str:
    """What became of the seeds, by their losses before and after."""
    if any(not end <= start for start, end in cell):
        return DIVERGES
    return LEARNS if all(end < 0.9 * math.log(WORDS) for _, end in cell) else STAYS


def train_model(case: str, norm: str, rate: float, seed: int, steps: int) -> tuple[float, float]:
    """The loss on fixed sentences, before and after."""
    model = build_toy(seed, vocabulary=WORDS, layers=int(case.split()[1]), position="sinusoidal")
    if norm == "without":
        remove_norms(model)
    fixed = torch.randint(WORDS, (64, 12), generator=torch.Generator().manual_seed(1000 + seed))

    def loss(generator: torch.Generator) -> Tensor:
        return substitution_loss(model, torch.randint(WORDS, (8, 12), generator=generator))

    start = float(substitution_loss(model, fixed).detach())
    losses = fit(model, loss, steps=steps, seed=seed, rate=rate, optimizer="sgd" if "sgd" in case else "adam")
    return start, float(substitution_loss(model, fixed).detach()) if math.isfinite(losses[-1]) else math.inf


def substitution_loss(model: Model, words: Tensor) -> Tensor:
    """The loss of saying 3w + 1 for every word w."""
    return F.cross_entropy(model(words).logits.flatten(0, 1), ((3 * words + 1) % WORDS).flatten())


def finite(value: float) -> float | None:
    return value if math.isfinite(value) and value < 1e6 else None


def agrees(numbers: dict[str, Any], case: str) -> bool:
    return all(
        said is None or said == found
        for norm, row in STATED.items()
        for said, found in zip(row, numbers["state"][f"{case}, {norm}"], strict=True)
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
                axis.add_patch(box(column, row, fill[found]))
                bad = found == DIVERGES
                text = "diverges\n発散" if bad else f"{mean(cell):.2f}\n{min(cell):.2f}–{max(cell):.2f}"
                axis.text(column, row, text, ha="center", va="center", fontsize=6.5, color="white" if bad else INK)
        axis.set(title=case, xlim=(-0.5, 2.5), ylim=(1.5, -0.5), xlabel="rate (学習率)")
        axis.set_xticks(range(3), [f"{rate:g}" for rate in RATES])
        axis.set_yticks(range(2), ["no LN", "LN"] if case == CASES[0] else ["", ""])
        for spine in axis.spines.values():
            spine.set_color(GREY)


def box(column: int, row: int, color: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, color=color, linewidth=0)
