"""The feed-forward layer has 8 D² of the 12 D² parameters of a block: 2/3. Embeddings are not included."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, LIGHT, OCHRE, RED, make_panels
from chumoku.models.count import count
from chumoku.models.presets import preset

NOTE_VALUES = {"parameters": 117e6, "feedforward": 80e6, "attention": 37e6}
MODELS = ("gpt2", "transformer-base")


def run(budget: Budget) -> Outcome:
    counts = {name: count(preset(name)) for name in MODELS}
    numbers: dict[str, Any] = {
        name: {
            "parameters": found.parameters,
            "parts": {part: entry.parameters for part, entry in found.parts.items()},
            "of_all": found.parts["feedforward"].parameters / found.parameters,
            "of_blocks": found.parts["feedforward"].parameters
            / (found.parts["feedforward"].parameters + found.parts["attention"].parameters),
        }
        for name, found in counts.items()
    }
    small, base = numbers["gpt2"], numbers["transformer-base"]
    parts: dict[str, int] = small["parts"]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"GPT-2 small has {small['parameters']:,}: FFN {parts['feedforward']:,} ({small['of_all']:.1%}), attention "
            f"{parts['attention']:,}, embeddings {parts['embeddings']:,}, positions {parts['positions']:,}. The FFN is "
            f"{small['of_blocks']:.1%} of the blocks alone. In the Transformer of 2017 it is {base['of_all']:.1%} of "
            f"the total and {base['of_blocks']:.1%} of the blocks, including cross-attention.",
            f"GPT-2 Small は {small['parameters']:,} 個で、FFN {parts['feedforward']:,}({small['of_all']:.1%})、アテン"
            f"ション {parts['attention']:,}、埋め込み {parts['embeddings']:,}、位置 {parts['positions']:,} です。ブロッ"
            f"クだけなら FFN は {small['of_blocks']:.1%} です。2017 年の Transformer では全体の {base['of_all']:.1%}、"
            f"交差アテンションを含むブロックの {base['of_blocks']:.1%} です。",
        ),
        when=Words(
            "only the blocks are counted, without embeddings and cross-attention",
            "埋め込みと交差アテンションを除き、ブロックだけを数えるとき",
        ),
        correction=Correction(
            "117M = FFN 80M + attention 37M",
            f"{small['parameters']:,} = FFN {parts['feedforward']:,} + attention {parts['attention']:,} + embeddings "
            f"{parts['embeddings']:,} + positions {parts['positions']:,} + norms {parts['norms']:,}",
            Words(
                f"FFN: {counts['gpt2'].parts['feedforward'].arithmetic}",
                f"FFN: {counts['gpt2'].parts['feedforward'].arithmetic}",
            ),
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    def two_thirds(share: float) -> bool:
        return 0.60 <= share <= 0.73

    if two_thirds(numbers["gpt2"]["of_all"]):
        return HOLDS
    return PARTLY if two_thirds(numbers["gpt2"]["of_blocks"]) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=7.4, height=2.9)[0]
    parts = {name: outcome.numbers[name]["parts"] for name in MODELS}
    rows = {
        "GPT-2 small\nnote ノート": {"feedforward": NOTE_VALUES["feedforward"], "attention": NOTE_VALUES["attention"]},
        "GPT-2 small\ntrue 正": parts["gpt2"],
        "Transformer\n2017": parts["transformer-base"],
    }
    colors = {"feedforward": RED, "attention": BLUE, "embeddings": OCHRE, "positions": GRAY, "norms": LIGHT}
    names = {"feedforward": "FFN", "attention": "attention アテンション", "embeddings": "embeddings 埋め込み"}
    for row, (_, sizes) in enumerate(rows.items()):
        left = 0.0
        for name, color in colors.items():
            size = sizes.get(name, 0) / 1e6
            axis.barh(row, size, 0.6, left=left, color=color, label=names.get(name, name) if row == 1 else None)
            if size > 8:
                axis.text(left + size / 2, row, f"{size:.1f}", ha="center", va="center", color="white", fontsize=8.5)
            left += size
    axis.set_yticks(range(len(rows)), list(rows))
    axis.invert_yaxis()
    axis.set_xlabel("million parameters 百万個")
    figure.legend(frameon=False, fontsize=8, ncols=5, loc="outside upper center")
