"""dropout: the gap between training and validation, with dropout in each of its three places and in none.

embedding   after token and position are added        attention   on the attention weights
sublayer    on what each sub-layer adds to the stream             all three at p = 0.2

gap = validation loss − training loss, both measured in eval mode, after 200 lines were read again and again
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Claim, Outcome, Words
from chumoku.lab.figures import INK, LIGHT, RED, panels
from chumoku.lab.sentences import sentences
from chumoku.lab.toys import judged, language_model, learnt_and_unseen, line_loss, lines, only_when, told
from chumoku.lab.training import fit, mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    id="dropout",
    notes=("004",),
    title=Words("Dropout in three places", "3か所のドロップアウト"),
    stated=Words(
        "Dropout stands in three places, each against an overfitting of its own: of the input, of the attention "
        "weights, of what each sub-layer puts out.",
        "ドロップアウトは3か所（埋め込み、アテンション重み、各サブ層の出力）にあり、それぞれの過学習を防ぎます。",
    ),
    tried=Words(
        "A small language model reads 200 lines again and again, with dropout 0.2 nowhere, in one place, or in all "
        "three; losses on those lines and on unseen ones are measured without dropout.",
        "小さな言語モデルに200文を繰り返し読ませます。ドロップアウト0.2を、なし・1か所だけ・3か所すべて、で比べ、"
        "学習した文と見ていない文の損失を（ドロップアウトを切って）測ります。",
    ),
    refutes=Words(
        "Some place alone does not narrow the gap between training and validation.",
        "1か所だけのドロップアウトで、学習と検証の差が縮まらない場所があること。",
    ),
    rule=Words(
        "Holds when dropout in each place alone narrows the gap (validation − training loss) in every seed; does "
        "not hold when no place does; otherwise it holds only for the places named.",
        "どの場所でも単独で、すべてのシードで差（検証損失−学習損失）が縮まれば「成り立つ」、どの場所でも縮まらなけれ"
        "ば「成り立たない」、それ以外は縮まった場所についてだけ成り立つとします。",
    ),
)
PLACES = {"embedding": "埋め込み\nembedding", "attention": "注意の重み\nattention", "sublayer": "サブ層\nsublayer"}
RATE, LINES = 0.2, 200


def tried(places: tuple[str, ...], seed: int, steps: int) -> dict[str, float]:
    data = sentences()
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed)).tolist()
    train = lines([data.train[place] for place in order[:LINES]])
    model = language_model(seed, layers=1, dropout=dict.fromkeys(places, RATE))

    def loss(generator: torch.Generator) -> Tensor:
        return line_loss(model, train.drawn(generator))

    fit(model, loss, steps=steps, seed=seed, rate=5e-3, warmup=steps // 10, clip=1.0)
    return {"train": judged(model, train), "validation": judged(model, learnt_and_unseen()[1])}


def gaps(numbers: dict[str, Any], kind: str) -> list[float]:
    return [one["validation"] - one["train"] for one in numbers["runs"][kind]]


def narrowing(numbers: dict[str, Any]) -> list[str]:
    """The places where dropout alone narrows the gap in every seed."""
    none = gaps(numbers, "none")
    return [place for place in PLACES if all(a < b for a, b in zip(gaps(numbers, place), none, strict=True))]


def judge(numbers: dict[str, Any]) -> str:
    found = narrowing(numbers)
    return HOLDS if len(found) == len(PLACES) else PARTLY if found else FAILS


def run(budget: Budget) -> Outcome:
    seeds, steps = list(range(budget.seeds)), budget.steps(240, 40)
    kinds: dict[str, tuple[str, ...]] = {"none": (), **{place: (place,) for place in PLACES}, "all": tuple(PLACES)}
    runs = {kind: [tried(places, seed, steps) for seed in seeds] for kind, places in kinds.items()}
    numbers: dict[str, Any] = {"seeds": seeds, "steps": steps, "rate": RATE, "lines": LINES, "runs": runs}
    gap = ", ".join(f"{kind} {told(gaps(numbers, kind))}" for kind in kinds)
    judged_by = ", ".join(f"{kind} {told([one['validation'] for one in runs[kind]])}" for kind in kinds)
    found = narrowing(numbers)
    return Outcome(
        verdict=judge(numbers),
        numbers={**numbers, "narrowing": found},
        summary=Words(
            f"Gap in nats a word: {gap}. Validation loss: {judged_by}.",
            f"学習と検証の差（1語あたりナット）：{gap}。検証損失：{judged_by}。"
            "（none：なし、embedding：埋め込み、attention：注意の重み、sublayer：サブ層、all：すべて）",
        ),
        when=only_when(
            judge(numbers), Words(f"it stands at: {', '.join(found)}", f"場所が「{'、'.join(found)}」のとき")
        ),
        reading=Words(
            "Pale: lines that were learnt; red: unseen ones; the distance is overfitting. Vertical lines: least to "
            "greatest seed.",
            "淡い色は学習した文、赤は見ていない文の損失で、その差が過学習です。縦線はシードの最小から最大までです。",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = panels(figure, 1, height=3.6, width=7.4)[0]
    names = {"none": "なし\nnone", **PLACES, "all": "すべて\nall"}
    for place, kind in enumerate(names):
        for side, (part, colour) in enumerate((("train", LIGHT), ("validation", RED))):
            values = [one[part] for one in outcome.numbers["runs"][kind]]
            at = place + 0.38 * side - 0.19
            axis.bar(at, mean(values), 0.36, color=colour, label=part if place == 0 else None)
            axis.vlines(at, min(values), max(values), color=INK, linewidth=1.0)
        axis.annotate(
            f"gap {mean(gaps(outcome.numbers, kind)):.2f}",
            (place, mean(values)),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axis.set_xticks(range(len(names)), list(names.values()))
    axis.set_ylabel("loss (nats a word)")
    axis.grid(visible=False, axis="x")
    axis.margins(y=0.24)
    axis.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
