"""softmax(q Kᵀ / √2) for 猫 in 猫 が 魚 を 食べる"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words, format_list, matches_rounded
from chumoku.lab.figures import BLUE, RED, make_panels, plot_bars
from chumoku.nn.attention import attend

WORDS = ("猫", "が", "魚", "を", "食べる")
VECTORS = ((1.0, 0.1), (0.1, 0.2), (0.9, 0.2), (0.2, 0.1), (0.5, 0.8))
NOTE_SCORES = (0.72, 0.09, 0.65, 0.15, 0.42)
NOTE_VALUES = (0.35, 0.19, 0.33, 0.20, 0.27)


def run(budget: Budget) -> Outcome:
    x = torch.tensor(VECTORS, dtype=torch.float64)[None, None]
    output, weights = attend(x, x, x)
    scores = (x[0, 0] @ x[0, 0, 0] / 2**0.5).tolist()
    found = weights[0, 0, 0].tolist()
    from_note_scores = torch.tensor(NOTE_SCORES, dtype=torch.float64).softmax(0).tolist()
    numbers: dict[str, Any] = {
        "note": list(NOTE_VALUES),
        "note_sum": sum(NOTE_VALUES),
        "scores": scores,
        "weights": found,
        "softmax_of_the_notes_scores": from_note_scores,
        "output": output[0, 0, 0].tolist(),
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The scores are {format_list(scores)} and the weights {format_list(found)}. The note's weights sum to "
            f"{sum(NOTE_VALUES):.2f}, but weights must sum to 1; the softmax of the note's rounded scores is "
            f"{format_list(from_note_scores)}. The order is correct: 猫, 魚, 食べる, を, が.",
            f"スコアは {format_list(scores)}、重みは {format_list(found)} です。ノートの重みは合計 "
            f"{sum(NOTE_VALUES):.2f} ですが、合計は 1 でなければなりません。ノートの丸めたスコアからも "
            f"{format_list(from_note_scores)} になります。猫・魚・食べる・を・が という順序は正しいです。",
        ),
        correction=Correction(
            format_list(NOTE_VALUES, 2),
            format_list(found),
            Words(
                f"e^score / Σ e^score with the scores {format_list(scores)}",
                f"スコア {format_list(scores)} による e^score / Σ e^score",
            ),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if matches_rounded(numbers["note"], numbers["weights"], 2) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.2, height=3.2)[0]
    note, found = outcome.numbers["note"], outcome.numbers["weights"]
    plot_bars(
        axis,
        WORDS,
        {f"note ノート (Σ = {sum(note):.2f})": note, f"true 正 (Σ = {sum(found):.2f})": found},
        colors=(RED, BLUE),
        form="{:.2f}",
    )
    axis.set_ylabel("attention of 猫 注目重み")
