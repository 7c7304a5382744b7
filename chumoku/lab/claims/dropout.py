"""dropout: the gap between training and validation loss, with dropout in none, some or all of its three places.

embedding   after token and position are added        attention   on the attention weights
sublayer    on the output of each sub-layer                       all three with p = 0.2

gap = validation loss − training loss, both in eval mode, after many epochs on 200 lines
own   what a place adds to the other two: all three compared with the other two
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, NOT_JUDGED, PARTLY, Budget, Outcome, Words, is_refuted
from chumoku.lab.figures import INK, LIGHT, RED, make_panels
from chumoku.lab.sentence_data import load_sentences
from chumoku.lab.toy_models import (
    build_language_model,
    evaluate_loss,
    fit_lines,
    format_seeds,
    make_lines,
    train_and_test_lines,
)
from chumoku.lab.training import mean

PLACES = {
    "embedding": "埋め込み\nembedding",
    "attention": "アテンション重み\nattention",
    "sublayer": "サブ層\nsublayer",
}
ALL = "all"
JA = {"none": "なし", ALL: "すべて", **{place: name.split("\n")[0] for place, name in PLACES.items()}}
RATE, LINES = 0.2, 200


def run_trial(places: tuple[str, ...], seed: int, steps: int) -> dict[str, float]:
    data = load_sentences()
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed)).tolist()
    train = make_lines([data.train[place] for place in order[:LINES]])
    model = build_language_model(seed, layers=1, dropout=dict.fromkeys(places, RATE))
    fit_lines(model, train, steps=steps, seed=seed, cosine=False)
    return {"train": evaluate_loss(model, train), "validation": evaluate_loss(model, train_and_test_lines()[1])}


def gaps(numbers: dict[str, Any], kind: str) -> list[float]:
    return [one["validation"] - one["train"] for one in numbers["runs"][kind]]


def helps(numbers: dict[str, Any], after: str, before: str) -> bool:
    """Whether in every seed the gap is smaller and the validation loss is not higher."""
    narrower, better = gains(numbers, after, before)
    return min(narrower) > 0 and min(better) >= 0


def gains(numbers: dict[str, Any], after: str, before: str) -> tuple[list[float], list[float]]:
    """By how much the gap and the validation loss are smaller, in each seed."""
    narrower = [b - a for a, b in zip(gaps(numbers, after), gaps(numbers, before), strict=True)]
    pairs = zip(numbers["runs"][after], numbers["runs"][before], strict=True)
    return narrower, [b["validation"] - a["validation"] for a, b in pairs]


def helpful_alone(numbers: dict[str, Any]) -> list[str]:
    """Places that help by themselves."""
    return [place for place in PLACES if helps(numbers, place, "none")]


def helpful_beside_others(numbers: dict[str, Any]) -> list[str]:
    """Places that also help in addition to the other two."""
    return [place for place in helpful_alone(numbers) if helps(numbers, ALL, all_but(place))]


def all_but(place: str) -> str:
    return f"all but {place}"


def judge(numbers: dict[str, Any]) -> str:
    if not helpful_alone(numbers):
        useless = (any(map(is_refuted, gains(numbers, place, "none"))) for place in PLACES)
        return FAILS if all(useless) else NOT_JUDGED
    return HOLDS if len(helpful_beside_others(numbers)) == len(PLACES) else PARTLY


def run(budget: Budget) -> Outcome:
    seeds, steps = list(range(budget.seeds)), budget.steps(240, 40)
    kinds: dict[str, tuple[str, ...]] = {"none": (), **{place: (place,) for place in PLACES}, ALL: tuple(PLACES)}
    pairs = {all_but(place): tuple(other for other in PLACES if other != place) for place in PLACES}
    runs = {kind: [run_trial(places, seed, steps) for seed in seeds] for kind, places in {**kinds, **pairs}.items()}
    numbers: dict[str, Any] = {"seeds": seeds, "steps": steps, "rate": RATE, "lines": LINES, "runs": runs}
    shown = {
        kind: (format_seeds(gaps(numbers, kind)), format_seeds([one["validation"] for one in runs[kind]]))
        for kind in runs
    }
    losses = "; ".join(f"{kind} {gap}, {loss}" for kind, (gap, loss) in shown.items())
    losses_ja = "、".join(f"{in_japanese(kind)} {gap}・{loss}" for kind, (gap, loss) in shown.items())
    found, places = helpful_beside_others(numbers), helpful_alone(numbers)
    return Outcome(
        verdict=judge(numbers),
        numbers={**numbers, "alone": places, "own": found},
        summary=Words(
            f"Gap and validation loss, in nats per word: {losses}.",
            f"学習と検証の差・検証損失（1語あたりナット）：{losses_ja}。",
        ),
        when=Words(
            f"it helps alone at: {', '.join(places)}; it adds to the other two at: {', '.join(found) or 'none'}",
            f"単独で効くのは「{'、'.join(JA[place] for place in places)}」、ほかの2か所に加えても効くのは"
            f"「{'、'.join(JA[place] for place in found) or 'なし'}」です",
        ),
    )


def in_japanese(kind: str) -> str:
    place = kind.removeprefix("all but ")
    return JA[kind] if place == kind else f"{JA[place]}以外"


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, height=3.6, width=9.0)[0]
    beside = {all_but(place): f"{JA[place]}以外\nall but {place}" for place in PLACES}
    names = {"none": "なし\nnone", **PLACES, **beside, ALL: "すべて\nall"}
    for place, kind in enumerate(names):
        for side, (part, color) in enumerate((("train", LIGHT), ("validation", RED))):
            values = [one[part] for one in outcome.numbers["runs"][kind]]
            at = place + 0.38 * side - 0.19
            axis.bar(at, mean(values), 0.36, color=color, label=part if place == 0 else None)
            axis.vlines(at, min(values), max(values), color=INK, linewidth=1.0)
        axis.annotate(
            f"gap {mean(gaps(outcome.numbers, kind)):.2f}",
            (place, mean(values)),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axis.set_xticks(range(len(names)), list(names.values()), fontsize=7)
    axis.set_ylabel("loss (nats per word)")
    axis.grid(visible=False, axis="x")
    axis.margins(y=0.24)
    axis.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
