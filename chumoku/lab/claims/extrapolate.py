"""Texts longer than in training.

Models are trained on positions 0 … 31 and tested on 0 … 255, with each kind of position encoding.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.errors import LengthError
from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, GREEN, OCHRE, RED, make_panels, plot_curves
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import build_toy, fit, mean
from chumoku.models.model import Model

JA = {"sinusoidal": "正弦波", "learned": "学習", "relative": "相対", "rotary": "回転", "none": "なし"}
KINDS = ("sinusoidal", "learned", "relative", "rotary", "none")
WORDS, BACK, SHORT, LONG = 8, 3, 32, 256
EDGES = (BACK, 32, 64, 96, 128, 160, 192, 224, 256)


def run(budget: Budget) -> Outcome:
    steps = budget.steps(150, minimum=120)
    numbers: dict[str, Any] = {"steps": steps, "trained_length": SHORT, "until": list(EDGES[1:]), "accuracy": {}}
    for kind in KINDS:
        numbers["accuracy"][kind] = [run_trial(kind, seed, steps) for seed in range(budget.seeds)]
    numbers["reach"] = {kind: reach(numbers["accuracy"][kind]) for kind in KINDS}
    numbers["table_of_32_rows"] = length_error()
    beyond = {kind: format_seeds([one[1] for one in runs], "{:.0%}") for kind, runs in numbers["accuracy"].items()}
    far = {kind: format_seeds([one[-1] for one in runs], "{:.0%}") for kind, runs in numbers["accuracy"].items()}
    good = [kind for kind in KINDS if numbers["reach"][kind] >= LONG]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            "Accuracy at words 33 to 64, and at the end of 256: "
            + "; ".join(f"{kind} {beyond[kind]}, {far[kind]}" for kind in KINDS)
            + f" (chance {1 / WORDS:.0%}). A table of 32 rows rejects the 33rd word.",
            "33〜64 語目と 256 語の最後での正解率は、"
            + "、".join(f"{JA[kind]} {beyond[kind]} と {far[kind]}" for kind in KINDS)
            + f" です (偶然は {1 / WORDS:.0%})。32 行の表は 33 語目を受け付けません。",
        ),
        when=Words(
            f"Eight times the training length is reached only with {', '.join(good) or 'no kind'} (relative positions "
            f"clip their distances). The sinusoidal encoding reached {numbers['reach']['sinusoidal']} words, rotary "
            f"{numbers['reach']['rotary']}, the learned table {numbers['reach']['learned']}.",
            f"訓練した長さの 8 倍まで届いたのは {'、'.join(JA[kind] for kind in good) or '(なし)'} だけです (相対位置は"
            f"距離を打ち切ります)。正弦波は {numbers['reach']['sinusoidal']} 語、RoPE は {numbers['reach']['rotary']} "
            f"語、学習可能な表は {numbers['reach']['learned']} 語まででした。",
        ),
    )


def run_trial(kind: str, seed: int, steps: int) -> list[float]:
    model = build_model(kind, seed, LONG)

    def loss(generator: torch.Generator) -> Tensor:
        words = torch.randint(WORDS, (16, SHORT), generator=generator)
        return F.cross_entropy(answer_logits(model, words).flatten(0, 1), words[:, :-BACK].flatten())

    fit(model, loss, steps=steps, seed=seed, rate=6e-3)
    words = torch.randint(WORDS, (16, LONG), generator=torch.Generator().manual_seed(1000 + seed))
    with torch.no_grad():
        right = (answer_logits(model, words).argmax(-1) == words[:, :-BACK]).float().mean(0)
    return [float(right[start - BACK : end - BACK].mean()) for start, end in itertools.pairwise(EDGES)]


def build_model(kind: str, seed: int, context: int) -> Model:
    return build_toy(seed, vocabulary=WORDS, position=kind, context=context)


def answer_logits(model: Model, words: Tensor) -> Tensor:
    logits: Tensor = model(words).logits[:, BACK:]
    return logits


def length_error() -> str:
    """The error message of a learned table for one word more than it has rows."""
    try:
        build_model("learned", 0, SHORT)(torch.zeros(1, SHORT + 1, dtype=torch.long))
    except LengthError as error:
        return str(error)
    return ""


def reach(runs: list[list[float]]) -> int:
    """The last word up to which the mean accuracy is at least 90 %."""
    reached = 0
    for place, end in enumerate(EDGES[1:]):
        if mean([one[place] for one in runs]) < 0.9:
            break
        reached = end
    return reached


def judge(numbers: dict[str, Any]) -> str:
    far = numbers["reach"]
    if far["learned"] >= 2 * SHORT or not numbers["table_of_32_rows"]:
        return FAILS
    if max(far["relative"], far["rotary"]) <= far["sinusoidal"] < LONG:
        return FAILS
    return HOLDS if min(far[kind] for kind in ("sinusoidal", "relative", "rotary")) >= LONG else PARTLY


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1)[0]
    numbers = outcome.numbers
    at = [(start + end) / 2 for start, end in itertools.pairwise(EDGES)]
    plot_curves(axis, at, numbers["accuracy"], colors=(BLUE, RED, GREEN, OCHRE, GRAY), marker="o")
    axis.axvline(numbers["trained_length"], color="#1c2733", linewidth=0.8, linestyle=":")
    axis.axhline(1 / WORDS, color=GRAY, linewidth=0.6, linestyle=":")
    axis.set(xlabel="position in the text (位置)", ylabel="accuracy (正解率)", ylim=(0, 1.03))
    axis.set_xticks(numbers["until"])
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
