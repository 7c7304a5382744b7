"""A = softmax over j of q_i·k_j/√d: every row (the weights of one query) sums to 1"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words, format_number
from chumoku.lab.figures import INK, RED, make_panels, plot_heatmap
from chumoku.nn.attention import compute_attention_weights


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 1, 5, 7, generator=generator) for _ in range(3))
    scores, rows = compute_attention_weights(query, key)
    columns = scores.softmax(-2)
    theirs = F.scaled_dot_product_attention(query, key, value)
    numbers: dict[str, Any] = {
        "rows": rows[0, 0].tolist(),
        "columns": columns[0, 0].tolist(),
        "sums_rows": rows[0, 0].sum(-1).tolist(),
        "sums_columns": columns[0, 0].sum(-1).tolist(),
        "gap_rows": float((rows @ value - theirs).abs().max()),
        "gap_columns": float((columns @ value - theirs).abs().max()),
        "seeds": [1],
    }
    least, most = min(numbers["sums_columns"]), max(numbers["sums_columns"])
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            "Over rows every query's weights sum to 1 and the output is PyTorch's (to "
            f"{format_number(numbers['gap_rows'])}). Over columns the sums are between {least:.2f} and {most:.2f}, and "
            f"the output differs by {numbers['gap_columns']:.2f}. The note's first formula correctly says 各行.",
            "行方向なら各クエリの重みの合計は 1 で、出力も PyTorch と一致します(差 "
            f"{format_number(numbers['gap_rows'])})。列方向では合計が {least:.2f}〜{most:.2f} とばらつき、出力は "
            f"{numbers['gap_columns']:.2f} ずれます。ノートの最初の式では正しく「各行」です。",
        ),
        correction=Correction(
            "softmax 各列 (over each column)",
            "softmax 各行 (over each row)",
            Words("a row is a query, and its weights sum to 1", "行がクエリで、その重みの合計が 1 になります"),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    sums_to_one = all(abs(total - 1) < 1e-5 for total in numbers["sums_columns"])
    return HOLDS if sums_to_one and numbers["gap_columns"] < 1e-5 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    kinds = (("rows", "each row 各行"), ("columns", "each column 各列 (note)"))
    for axis, (kind, title) in zip(make_panels(figure, 2, height=3.5), kinds, strict=True):
        matrix, totals = outcome.numbers[kind], outcome.numbers[f"sums_{kind}"]
        names = [f"k{j}" for j in range(5)], [f"q{i}" for i in range(5)]
        plot_heatmap(axis, matrix, columns=names[0], rows=names[1], form="{:.2f}", low=0, high=1)
        for row, total in enumerate(totals):
            color = INK if abs(total - 1) < 1e-3 else RED
            axis.text(4.65, row, f"Σ {total:.2f}", va="center", fontsize=8.5, color=color)
        axis.set_title(title, fontsize=10)
