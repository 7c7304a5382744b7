"""softmax(q Kᵀ / √2) for 猫 in 猫 が 魚 を 食べる"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Claim, Correction, Outcome, Words, as_printed, listed
from chumoku.lab.figures import BLUE, RED, bars, panels
from chumoku.nn.attention import attend

WORDS = ("猫", "が", "魚", "を", "食べる")
VECTORS = ((1.0, 0.1), (0.1, 0.2), (0.9, 0.2), (0.2, 0.1), (0.5, 0.8))
SAID_SCORES = (0.72, 0.09, 0.65, 0.15, 0.42)
SAID = (0.35, 0.19, 0.33, 0.20, 0.27)

CLAIM = Claim(
    id="attention-cat",
    notes=("002",),
    title=Words("What 猫 looks at", "「猫」の注目先"),
    stated=Words(
        f"In 猫 が 魚 を 食べる, with the note's vectors, 猫 attends with the weights {list(SAID)}.",
        f"「猫 が 魚 を 食べる」で、ノートのベクトルによる「猫」の注目重みは {list(SAID)} です。",
    ),
    tried=Words(
        "The note's five vectors as queries, keys and values of this project's attention.",
        "ノートの五つのベクトルを、本プロジェクトのアテンションにクエリ・キー・バリューとして与えます。",
    ),
    refutes=Words(
        "Weights that round to other numbers, or that do not sum to 1.",
        "丸めた値が異なる、または合計が 1 にならないこと。",
    ),
    rule=Words(
        "Holds when every weight rounds to the note's two digits.",
        "すべての重みが小数二桁でノートと一致すれば「成り立つ」。",
    ),
)


def run(budget: Budget) -> Outcome:
    x = torch.tensor(VECTORS, dtype=torch.float64)[None, None]
    output, weights = attend(x, x, x)
    scores = (x[0, 0] @ x[0, 0, 0] / 2**0.5).tolist()
    found = weights[0, 0, 0].tolist()
    from_theirs = torch.tensor(SAID_SCORES, dtype=torch.float64).softmax(0).tolist()
    numbers: dict[str, Any] = {
        "said": list(SAID),
        "said_sum": sum(SAID),
        "scores": scores,
        "weights": found,
        "softmax_of_the_notes_scores": from_theirs,
        "output": output[0, 0, 0].tolist(),
    }
    return Outcome(
        verdict(numbers),
        numbers,
        Words(
            f"The scores are {listed(scores)} and the weights {listed(found)}. The note's weights sum to "
            f"{sum(SAID):.2f}, and "
            f"weights must sum to 1; the note's own rounded scores give {listed(from_theirs)} too. The order is right: "
            "猫, 魚, "
            "食べる, を, が.",
            f"スコアは {listed(scores)}、重みは {listed(found)} です。ノートの重みは合計 {sum(SAID):.2f} ですが、"
            "合計は 1 でなければ"
            f"なりません。ノートの丸めたスコアからも {listed(from_theirs)} になります。猫・魚・食べる・を・が "
            "という順序は正しいです。",
        ),
        correction=Correction(
            listed(SAID, 2),
            listed(found),
            Words(
                f"e^score / Σ e^score with the scores {listed(scores)}",
                f"スコア {listed(scores)} による e^score / Σ e^score",
            ),
        ),
        reading=Words(
            "The note's weights are all too large; together they make 1.34.",
            "ノートの重みはすべて大きすぎ、合計が 1.34 になります。",
        ),
    )


def verdict(numbers: dict[str, Any]) -> str:
    return HOLDS if as_printed(numbers["said"], numbers["weights"], 2) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = panels(figure, 1, width=6.2, height=3.2)[0]
    said, found = outcome.numbers["said"], outcome.numbers["weights"]
    bars(
        axis,
        WORDS,
        {f"note ノート (Σ = {sum(said):.2f})": said, f"true 正 (Σ = {sum(found):.2f})": found},
        colors=(RED, BLUE),
        form="{:.2f}",
    )
    axis.set_ylabel("attention of 猫 注目重み")
