"""Attention treats its input as a set.

f(P x) = P f(x) for every permutation P, if f has neither a position encoding nor a mask
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import HOLDS, PARTLY, Budget, Outcome, Words, format_number, refute
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import build_toy, fit, mean
from chumoku.models.model import Model

JA = {"sinusoidal": "正弦波", "learned": "学習", "relative": "相対", "rotary": "回転"}
POSITIONED = ("sinusoidal", "learned", "relative", "rotary")
WORDS, LENGTH, PAIR = 11, 5, (1, 2)  # PAIR: the two words whose order is predicted; word 0 is the query at the end


def run(budget: Budget) -> Outcome:
    steps = budget.steps(120, minimum=90)
    ways = [(kind, "encoder") for kind in (*POSITIONED, "none")] + [("none", "decoder")]
    numbers: dict[str, Any] = {"steps": steps, "accuracy": {}, "moved": {}}
    for position, kind in ways:
        name = position if kind == "encoder" else "none, masked"
        runs = [run_trial(position, kind, seed, steps) for seed in range(budget.seeds)]
        numbers["moved"][name] = [run["moved"] for run in runs]
        numbers["accuracy"][name] = [run["accuracy"] for run in runs]
    free, masked = (format_seeds(numbers["accuracy"][name], "{:.0%}") for name in ("none", "none, masked"))
    still = format_number(max(numbers["moved"]["none"]))
    least, worst = (min(POSITIONED, key=lambda kind: mean(numbers[key][kind])) for key in ("moved", "accuracy"))
    moved, right = format_seeds(numbers["moved"][least]), format_seeds(numbers["accuracy"][worst], "{:.0%}")
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"Without positions, a permutation changes the sentence vector by {still} of its norm (rounding), and the "
            f"accuracy is {free}. With positions, it changes by at least {moved} ({least}), and the accuracy is at "
            f"least {right} ({worst}). A causal mask alone, without positions, reaches {masked}.",
            f"位置なしでは、並べ替えても文のベクトルは長さの {still} (丸め誤差) しか動かず、どちらが先かの正解率は "
            f"{free} です。位置があると、最も小さい方式でも {moved} ({JA[least]}) 動き、正解率は最も低い方式でも "
            f"{right} ({JA[worst]}) です。位置なしでも因果マスクがあれば {masked} に達します。",
        ),
        when=Words(
            "There is no mask, as in an encoder. With a causal mask, a decoder of two layers can recover the order "
            "even without positions.",
            "マスクのないとき (エンコーダ) です。二層のデコーダは、位置がなくても因果マスクから前後関係を知ることができ"
            "ます。",
        ),
    )


def run_trial(position: str, kind: str, seed: int, steps: int) -> dict[str, float]:
    model = build_toy(seed, kind=kind, position=position, vocabulary=WORDS)
    moved = measure_movement(model, torch.Generator().manual_seed(seed))
    fit(model, lambda g: loss_and_accuracy(model, *sample_questions(16, g))[0], steps=steps, seed=seed, rate=5e-3)
    with torch.no_grad():
        _, accuracy = loss_and_accuracy(model, *sample_questions(512, torch.Generator().manual_seed(1000 + seed)))
    return {"moved": moved, "accuracy": accuracy}


@torch.no_grad()
def measure_movement(model: Model, generator: torch.Generator) -> float:
    """Relative change of the last word's vector when the words before it are permuted."""
    words, _ = sample_questions(64, generator)
    shuffled = torch.cat([words[:, torch.randperm(LENGTH - 1, generator=generator)], words[:, -1:]], dim=1)
    before, after = model(words).hidden[:, -1], model(shuffled).hidden[:, -1]
    return float(((after - before).norm(dim=-1) / before.norm(dim=-1)).max())


def sample_questions(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Different words including the pair, with the query word at the end; the answer is 1 if the pair is reversed."""
    order = torch.rand(batch, WORDS - 3, generator=generator).argsort(-1)[:, : LENGTH - 3] + 3
    pair = torch.tensor(PAIR).expand(batch, 2)
    mixed = torch.cat([pair, order], dim=1).gather(1, torch.rand(batch, LENGTH - 1, generator=generator).argsort(-1))
    answer = (mixed == PAIR[0]).int().argmax(-1) > (mixed == PAIR[1]).int().argmax(-1)
    return torch.cat([mixed, torch.zeros(batch, 1, dtype=torch.long)], dim=1), answer.long()


def loss_and_accuracy(model: Model, words: Tensor, answer: Tensor) -> tuple[Tensor, float]:
    """Loss and accuracy of the answer, from the first two logits of the query word."""
    logits = model(words).logits[:, -1, :2]
    return F.cross_entropy(logits, answer), float((logits.argmax(-1) == answer).float().mean())


def judge(numbers: dict[str, Any]) -> str:
    accuracy = numbers["accuracy"]
    seen = {name: mean(values) > 0.75 for name, values in accuracy.items()}
    if seen["none"] or not all(seen[kind] for kind in POSITIONED):
        placed = ([value - 0.75 for value in accuracy[kind]] for kind in POSITIONED)
        return refute([0.75 - value for value in accuracy["none"]], *placed)
    return PARTLY if seen["none, masked"] else HOLDS


def draw(outcome: Outcome, figure: Figure) -> None:
    right, far = make_panels(figure, 2)
    accuracy, moved = outcome.numbers["accuracy"], outcome.numbers["moved"]
    colors = [RED if name == "none" else GRAY if "masked" in name else BLUE for name in accuracy]
    names = ["none (位置なし)" if name == "none" else name for name in accuracy]
    for axis, found in ((right, accuracy), (far, moved)):
        axis.barh(names, [mean(values) for values in found.values()], color=colors, height=0.6)
        for row, values in enumerate(found.values()):
            axis.plot(values, [row] * len(values), "|", color="#1c2733", markersize=8)
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
    for axis in (right, far):
        axis.title.set_fontsize(10)
    right.axvline(0.5, color="#1c2733", linewidth=0.8, linestyle=":")
    right.set(title="accuracy: which came first? (正解率)", xlim=(0, 1))
    far.set(title="change (並べ替えによる動き)", xscale="log", xlim=(1e-8, 10))
    far.set_yticklabels([])
