"""softmax(Q Kᵀ/√d + M), M = −∞ above the diagonal: row i and its denominator are sums over j ≤ i only"""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels
from chumoku.models.build import build
from chumoku.models.presets import preset
from chumoku.nn.attention import attend
from chumoku.nn.masks import causal
from chumoku.nn.plain import plain

LENGTH, UNCHANGED, TRIES = 11, 6, 20


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    kinds = ("mask", "column", "none")
    moved = {kind: torch.zeros(LENGTH, dtype=torch.float64) for kind in kinds}
    weights_moved = 0.0
    for _ in range(TRIES):
        x = torch.randn(1, 1, LENGTH, 7, generator=generator)
        y = x.clone()
        y[:, :, UNCHANGED:] = torch.randn(1, 1, LENGTH - UNCHANGED, 7, generator=generator)
        for kind in kinds:
            change = (self_attention(x, kind) - self_attention(y, kind)).abs().amax((0, 1, 3)).double()
            moved[kind] = torch.maximum(moved[kind], change)
        before, after = (attend(z, z, z, causal=True)[1][:, :, :UNCHANGED] for z in (x, y))
        weights_moved = max(weights_moved, float((before - after).abs().max()))
    numbers: dict[str, Any] = {
        "change_by_position": {kind: change.tolist() for kind, change in moved.items()},
        "weights": weights_moved,
        "outputs": float(moved["mask"][:UNCHANGED].max()),
        "logits": logit_change(generator, masked=True),
        "logits_without_mask": logit_change(generator, masked=False),
        "kept": UNCHANGED,
        "seeds": [0],
    }
    column, none = (float(moved[kind][:UNCHANGED].max()) for kind in ("column", "none"))
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"With the mask, earlier weights, outputs and logits change by {numbers['weights']:g}, "
            f"{numbers['outputs']:g} and {numbers['logits']:g}: not one bit. Without the mask, outputs change by up to "
            f"{none:.2f}; with a softmax over columns, as the note writes it, by {column:.2f}: only then would the "
            "note be right.",
            f"マスクがあれば、過去の重み・出力・ロジットの変化は {numbers['weights']:g}、{numbers['outputs']:g}、"
            f"{numbers['logits']:g} で、一ビットも動きません。マスクなしでは最大 {none:.2f}、ノートの書き方のように列方"
            f"向に softmax をとると {column:.2f} 動きます。その場合に限り、ノートの指摘は正しくなります。",
        ),
        correction=Correction(
            "もちろん未来からの影響がある (the future has an influence)",
            "未来からの影響はまったくない (none at all)",
            Words(
                "e^{−∞} = 0 in both the numerator and the denominator of the row",
                "e^{−∞} = 0 は分子にも、その行の分母にも効きます",
            ),
        ),
    )


def self_attention(x: Tensor, kind: str) -> Tensor:
    """Self-attention of x: with mask, without mask, or with mask and the softmax over each column."""
    if kind != "column":
        return attend(x, x, x, causal=kind == "mask")[0]
    scores = x @ x.transpose(-2, -1) / math.sqrt(x.shape[-1])
    return scores.masked_fill(~causal(x.shape[2]), -math.inf).softmax(-2) @ x


def logit_change(generator: torch.Generator, *, masked: bool) -> float:
    """Largest change of a decoder's earlier logits when the later tokens are replaced."""
    model = build(preset("tiny-decoder"), seed=0).eval()
    model.decoder.causal = masked  # type: ignore[union-attr]
    first = torch.randint(512, (3, LENGTH), generator=generator)
    second = first.clone()
    second[:, UNCHANGED:] = torch.randint(512, (3, LENGTH - UNCHANGED), generator=generator)
    with torch.no_grad(), plain():
        before, after = (model(tokens).logits[:, :UNCHANGED] for tokens in (first, second))
    return float((before - after).abs().max())


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if max(numbers["weights"], numbers["outputs"], numbers["logits"]) > 0 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.4, height=3.2)[0]
    names = {
        "none": "no mask マスクなし",
        "column": "mask, softmax over columns 列方向",
        "mask": "mask, softmax over rows 行方向",
    }
    for (kind, name), color in zip(names.items(), (GRAY, RED, BLUE), strict=True):
        axis.plot(outcome.numbers["change_by_position"][kind], color=color, marker="o", markersize=4, label=name)
    axis.axvline(UNCHANGED - 0.5, color=GRAY, linestyle=":", linewidth=0.9)
    axis.set(xlabel="position 位置", ylabel="largest change 最大の変化", xticks=range(LENGTH))
    axis.legend(frameon=False, fontsize=8)
