"""Head h: Q_h = X W_h with all of X [T, D] and W_h [D, K], not X[:, slice h]"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, RED, make_panels, plot_heatmap
from chumoku.nn.attention import Attention

WIDTH, HEADS = 48, 6
HEAD = WIDTH // HEADS


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    whole, cut = Attention(WIDTH, HEADS, bias=False), Attention(WIDTH, HEADS, bias=False)
    blocks = torch.block_diag(*[torch.ones(HEAD, HEAD)] * HEADS)  # type: ignore[no-untyped-call]
    x = torch.randn(WIDTH, generator=generator)
    with torch.no_grad():
        for ours, theirs in zip(whole.parameters(), cut.parameters(), strict=True):
            torch.nn.init.normal_(ours, std=WIDTH**-0.5, generator=generator)
            theirs.copy_(ours)
        for part in (cut.query, cut.key, cut.value):
            part.weight.mul_(blocks)
    seen = {"whole": count_features(whole, x), "sliced": count_features(cut, x)}
    weights = WIDTH * WIDTH
    numbers: dict[str, Any] = {
        "features_seen": seen,
        "parameters": {"whole": 4 * weights, "sliced": 3 * weights // HEADS + weights},
        "query_weights": {"whole": whole.query.weight.abs().tolist(), "sliced": cut.query.weight.abs().tolist()},
        "seeds": [0],
    }
    sizes: Any = numbers["parameters"]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"Every head depends on all {min(seen['whole'])} of {WIDTH} features; with slices it would be "
            f"{max(seen['sliced'])}. Slices would need {sizes['sliced']:,} parameters instead of {sizes['whole']:,}, "
            "which is the saving that the note describes. The projection is split into heads, not the input.",
            f"どのヘッドも {WIDTH} 個中 {min(seen['whole'])} 個すべての特徴に依存します。スライスなら "
            f"{max(seen['sliced'])} 個だけです。スライス版のパラメータは {sizes['whole']:,} 個ではなく "
            f"{sizes['sliced']:,} 個で、ノートの言う節約はここから来ます。ヘッドに分けられるのは入力ではなく、射影した"
            "後のベクトルです。",
        ),
        correction=Correction(
            "ヘッド h が見るのは X[:, slice h] (head h sees a slice)",
            "ヘッド h が見るのは X W_h、X のすべて (all of X)",
            Words(
                f"W_h is {WIDTH} × {HEAD}: every feature enters every head",
                f"W_h は {WIDTH} × {HEAD} で、すべての特徴がすべてのヘッドに入ります",
            ),
        ),
    )


def count_features(attention: Attention, x: Tensor) -> list[int]:
    """For each head, how many input features its queries depend on."""
    slopes = torch.autograd.functional.jacobian(attention.query, x)  # type: ignore[no-untyped-call]
    return [int((head.abs().amax(0) > 0).sum()) for head in slopes.view(HEADS, HEAD, WIDTH)]


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if all(seen <= HEAD for seen in numbers["features_seen"]["whole"]) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    titles = {"whole": ("X W_Q  (real 実際)", BLUE), "sliced": ("slices スライス (note)", RED)}
    for axis, (kind, (title, color)) in zip(make_panels(figure, 2, height=3.6), titles.items(), strict=True):
        plot_heatmap(axis, outcome.numbers["query_weights"][kind], high=0.4, low=0)
        axis.set_title(title, fontsize=10, color=color)
        axis.set(xlabel="input features 入力の特徴", ylabel=f"query numbers, {HEADS} heads")
        for edge in range(1, HEADS):
            axis.axhline(edge * HEAD - 0.5, color="#8a949e", linewidth=0.5)
