"""[B, T] → [B, T, D] → [B, T, H, K] → [B, H, T, K] → [B, H, T, T] → [B, T, D] → [B, T, V]"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch.overrides import TorchFunctionMode

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, INK, make_panels
from chumoku.models.build import build
from chumoku.models.presets import preset
from chumoku.nn.tap import record

FIRST = "decoder.blocks.0."
VIEWED = FIRST + "attention.queries, viewed"
NOTE_VALUES = {
    "decoder.embedding": [2, 4, 768],
    VIEWED: [2, 4, 12, 64],
    FIRST + "attention.queries": [2, 12, 4, 64],
    "logits": [2, 4, 50257],
}


class RecordTransposes(TorchFunctionMode):
    """Records the shape of every tensor before it is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[list[int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.transpose:
            self.shapes.append(list(args[0].shape))
        return func(*args, **(kwargs or {}))


def run(budget: Budget) -> Outcome:
    layers = 12 if budget.scale >= 1 else 1
    model = build(preset("gpt2", layers=layers), seed=0).eval()
    tokens = torch.randint(50257, (2, 4), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), record(model) as tape, RecordTransposes() as transposed:
        model(tokens)
        walk = {"tokens": [2, 4], **{address: list(tensor.shape) for address, tensor in tape.items()}}
    walk[VIEWED] = transposed.shapes[0]  # the first transpose is that of the first block's queries
    numbers: dict[str, Any] = {
        "note": NOTE_VALUES,
        "walk": walk,
        "layers": layers,
        "addresses": len(tape),
        "seeds": [0],
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"All stated shapes are found in the {layers}-layer pass, at {len(tape)} addresses and in the view before "
            f"the transpose; between them are the scores {walk[FIRST + 'attention.scores']} and the FFN's "
            f"{walk[FIRST + 'feedforward.hidden']}.",
            f"{layers} 層の順伝播で {len(tape)} 個のアドレスと転置前の view を記録し、述べられた形状はすべて一致しまし"
            f"た。途中にはスコア {walk[FIRST + 'attention.scores']} や FFN の中間層 "
            f"{walk[FIRST + 'feedforward.hidden']} があります。",
        ),
    )


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if all(numbers["walk"].get(name) == shape for name, shape in numbers["note"].items()) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    walk = outcome.numbers["walk"]
    shown = (FIRST, "tokens", "decoder.embedding", "decoder.norm", "logits")
    names = [name for name in walk if name.startswith(shown) and name != VIEWED]
    names.insert(names.index(FIRST + "attention.queries"), VIEWED)
    axis = make_panels(figure, 1, width=6.8, height=0.27 * len(names) + 0.3)[0]
    axis.axis("off")
    for row, name in enumerate(names):
        stated = name in outcome.numbers["note"]
        axis.text(0.0, -row, name, fontsize=9, color=BLUE if stated else INK)
        axis.text(0.66, -row, " × ".join(str(n) for n in walk[name]), fontsize=9, color=BLUE if stated else GRAY)
    axis.set(xlim=(-0.02, 1), ylim=(-len(names) + 0.3, 0.9))
