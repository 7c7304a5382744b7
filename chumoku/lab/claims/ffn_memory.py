"""ffn-memory: how many random facts one block memorizes, by the width of its feed-forward layer.

(subject, relation) → object      64 × 32 random facts with 64 objects: 6 bits each
F = 0, 8, 32, 128                 embeddings and output are random and frozen, so facts are stored in the block
switched off                      the trained block with FFN(x) = 0
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels, plot_curves
from chumoku.lab.toy_models import WIDTH, FactModel, ZeroLayer, format_seeds, make_facts
from chumoku.lab.training import fit, fixed_seed, mean
from chumoku.nn import FeedForward

WIDTHS = (0, 8, 32, 128)
SUBJECTS, RELATIONS, OBJECTS = 64, 32, 64


def run_trial(hidden: int, seed: int, steps: int) -> dict[str, int]:
    known = make_facts(seed, subjects=SUBJECTS, relations=RELATIONS, objects=OBJECTS)
    with fixed_seed(seed):
        model = FactModel(known, FeedForward(WIDTH, hidden) if hidden else ZeroLayer(), seed)

    def loss(generator: torch.Generator) -> Tensor:
        part = known.sample(generator)
        return F.cross_entropy(model(part), part.answer)

    fit(model, loss, steps=steps, seed=seed, rate=1e-2, warmup=steps // 10, cosine=True)
    recalled = model.count_recalled(known)
    model.block.feedforward = ZeroLayer()  # type: ignore[assignment]
    return {"recalled": recalled, "switched_off": model.count_recalled(known)}


def supports_claim(runs: list[dict[str, int]]) -> bool:
    """Whether one seed recalls more with each width and loses at least half when switched off."""
    recalled = [one["recalled"] for one in runs]
    rises = all(wider > narrower for narrower, wider in itertools.pairwise(recalled))
    return rises and runs[-1]["switched_off"] <= recalled[-1] / 2


def judge(numbers: dict[str, Any]) -> str:
    seen = [supports_claim(runs) for runs in numbers["runs"]]
    return HOLDS if all(seen) else PARTLY if any(seen) else FAILS


def run(budget: Budget) -> Outcome:
    seeds, steps = list(range(budget.seeds)), budget.steps(300, 60)
    runs = [[run_trial(hidden, seed, steps) for hidden in WIDTHS] for seed in seeds]
    total, chance = SUBJECTS * RELATIONS, SUBJECTS * RELATIONS / OBJECTS
    recalled = {str(F): [one[place]["recalled"] for one in runs] for place, F in enumerate(WIDTHS)}
    gained = mean(recalled["128"]) - mean(recalled["0"])
    bits = gained * math.log2(OBJECTS) / (2 * WIDTH * 128)
    off = [one[-1]["switched_off"] for one in runs]
    numbers = {"seeds": seeds, "steps": steps, "facts": total, "chance": chance, "widths": list(WIDTHS), "runs": runs}
    counts = ", ".join(f"F={F}: {format_seeds(values, '{:.0f}')}" for F, values in recalled.items())
    return Outcome(
        verdict=judge(numbers),
        numbers={**numbers, "bits_a_number_at_128": bits},
        summary=Words(
            f"Recalled of {total:,} facts: {counts} (F=0 is attention alone). With the feed-forward layer of 128 units "
            f"switched off, {format_seeds(off, '{:.0f}')} remain (chance {chance:.0f}). The 128 units add {bits:.2f} "
            "bits per parameter of the feed-forward layer.",
            f"{total:,}件のうち思い出せた件数は {counts} です。幅128のFFNを切ると残るのは{format_seeds(off, '{:.0f}')}"
            f"件です（偶然なら{chance:.0f}件）。F=0 はアテンションだけの場合です。幅128のFFNで増えた分は、FFNの数1つあ"
            f"たり{bits:.2f}ビットです。",
        ),
        when=Words(
            "training is long enough; it is not true in every seed",
            "学習が十分に長いとき（示さないシードもあります）",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, height=3.6, width=6.4)[0]
    runs, places = outcome.numbers["runs"], list(range(len(WIDTHS)))
    series = {
        "recalled  思い出せた": [[one["recalled"] for one in seed] for seed in runs],
        "feed-forward switched off  FFNを切った": [[one["switched_off"] for one in seed] for seed in runs],
    }
    plot_curves(axis, places, series, marker="o", colors=(BLUE, RED))
    axis.axhline(outcome.numbers["chance"], color=GRAY, linewidth=0.9, linestyle="--")
    axis.set_xticks(places, [str(width) for width in WIDTHS])
    axis.set(xlabel="width F of the feed-forward layer", ylabel=f"facts of {outcome.numbers['facts']:,}")
