"""rank(W_Q W_Kᵀ) ≤ min(l, d)"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Correction, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, OCHRE, RED, make_panels

WIDTH, HEAD = 48, 7


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)

    def random_matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, dtype=torch.float64, generator=generator)

    query, key = random_matrix(WIDTH, HEAD), random_matrix(WIDTH, HEAD)
    twin = key.clone()
    twin[:, 1] = twin[:, 0]
    wide = random_matrix(WIDTH, 2 * WIDTH), random_matrix(WIDTH, 2 * WIDTH)
    products = {"d": query @ key.T, "equal_columns": query @ twin.T, "wide": wide[0] @ wide[1].T}
    values = {name: torch.linalg.svdvals(product).tolist() for name, product in products.items()}
    gap = 0.0
    for rank in range(1, HEAD + 1):
        wanted = random_matrix(WIDTH, rank) @ random_matrix(rank, WIDTH)
        u, s, v = torch.linalg.svd(wanted)
        gap = max(gap, float(((u[:, :HEAD] * s[:HEAD]) @ v[:HEAD] - wanted).abs().max()))
    numbers: dict[str, Any] = {
        "width": WIDTH,
        "head": HEAD,
        "ranks": {name: numerical_rank(found) for name, found in values.items()},
        "singular_values": values,
        "gap_taken_apart": gap,
        "seeds": [0],
    }
    ranks = numbers["ranks"]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"Rank {ranks['d']} at d = {HEAD}, rank {ranks['equal_columns']} when two columns are equal, rank "
            f"{ranks['wide']} at d = {2 * WIDTH}. Every matrix of rank 1 to {HEAD} is such a product (error "
            f"{format_number(gap)}). So the rank is at most d, and the conclusion that d > l is useless is correct.",
            f"d = {HEAD} でランク {ranks['d']}、二列が等しいとランク {ranks['equal_columns']}、d = {2 * WIDTH} ではラン"
            f"ク {ranks['wide']} でした。ランク 1〜{HEAD} の行列はすべてこの積で書けます(誤差 {format_number(gap)})。正"
            "しくは「ランク d 以下」で、d > l に意味がないという結論は正しいです。",
        ),
        when=Words("“of rank d” means “of rank at most d”", "「ランク d」を「ランク d 以下」と読むとき"),
        correction=Correction(
            "rank d",
            "rank ≤ min(l, d)",
            Words(
                f"{HEAD} columns, two of them equal, give rank {ranks['equal_columns']}",
                f"{HEAD} 列のうち二列が等しければランク {ranks['equal_columns']} です",
            ),
        ),
    )


def numerical_rank(values: list[float]) -> int:
    return sum(value > 1e-9 * values[0] for value in values)


def judge(numbers: dict[str, Any]) -> str:
    ranks, head, width = numbers["ranks"], numbers["head"], numbers["width"]
    exact = ranks["d"] == head and ranks["equal_columns"] == head
    at_most = max(ranks["d"], ranks["equal_columns"]) <= head and ranks["wide"] <= width
    if not at_most or numbers["gap_taken_apart"] > 1e-9:
        return FAILS
    return HOLDS if exact else PARTLY


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.4, height=3.3)[0]
    names = {
        "wide": f"d = {2 * WIDTH}",
        "d": f"d = {HEAD}",
        "equal_columns": f"d = {HEAD}, two equal columns 二列が等しい",
    }
    for (name, label), color in zip(names.items(), (OCHRE, BLUE, RED), strict=True):
        values, rank = outcome.numbers["singular_values"][name], outcome.numbers["ranks"][name]
        axis.plot(range(1, len(values) + 1), values, "o-", color=color, markersize=3, label=f"{label}: rank {rank}")
    axis.set(yscale="log", ylim=(1e-16, 1e4), xlabel="number 番号", ylabel="singular value 特異値")
    axis.legend(frameon=False, fontsize=8, loc="center right")
