"""self-cross: one module, two uses.

    self    Attention(x)       Q = x W_Q    K = x W_K    V = x W_V
    cross   Attention(x, y)    Q = x W_Q    K = y W_K    V = y W_V

If y changes, the queries of cross-attention stay bit-identical, while keys and values change. With y = x,
cross-attention equals self-attention bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words
from chumoku.lab.figures import make_panels, plot_heatmap
from chumoku.lab.sentence_data import BEGIN
from chumoku.lab.translator import Translator, get_translators, training_steps
from chumoku.nn import Attention, record
from chumoku.nn.plain import plain

T, S, D, H = 5, 7, 12, 3
SEQUENCES = ("queries", "keys", "values", "weights")


@torch.no_grad()
def compare_uses(seed: int) -> dict[str, bool]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Attention(D, H).eval()
        x, y, z = torch.randn(1, T, D), torch.randn(1, S, D), torch.randn(1, S, D)
    tapes = {}
    for name, source in (("self", None), ("itself", x), ("y", y), ("z", z)):
        with plain(), record(module, *SEQUENCES, "output") as tape:
            module(x, source)
        tapes[name] = dict(tape)
    one, other = tapes["y"], tapes["z"]
    return {
        "queries_stay": torch.equal(one["queries"], other["queries"]),
        "keys_move": not torch.equal(one["keys"], other["keys"]),
        "values_move": not torch.equal(one["values"], other["values"]),
        "cross_to_itself_is_self": all(
            torch.equal(tapes["self"][name], tapes["itself"][name]) for name in tapes["self"]
        ),
        "weights_are_T_by_S": tuple(one["weights"].shape) == (1, H, T, S),
    }


@torch.no_grad()
def attention_maps(translator: Translator) -> dict[str, Any]:
    """Both attention maps of the last block for the example sentence, mean over heads."""
    source = translator.encode_sources(translator.data.test[:1])
    best = translator.translate(source)[0]
    patterns = [f"decoder.blocks.1.{kind}.weights" for kind in ("attention", "cross_attention")]
    with record(translator.model, *patterns) as tape:
        translator.model(source, torch.tensor([[BEGIN, *best.tokens]]))
    own, cross = (tape[pattern][0].mean(0).tolist() for pattern in patterns)
    output = translator.data.target.decode(best.tokens)
    units = translator.data.source.decode(source[0].tolist())
    return {"fed": ["(begin)", *output], "output": [*output, "(end)"], "units": units, "self": own, "cross": cross}


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if all(all(one.values()) for one in numbers["comparisons"]) else FAILS


def run(budget: Budget) -> Outcome:
    seeds = list(range(budget.seeds))
    comparisons = [compare_uses(seed) for seed in seeds]
    shown = attention_maps(get_translators(budget)[0])
    numbers: dict[str, Any] = {
        "seeds": seeds,
        "model": "trained here",
        "steps": training_steps(budget),
        "comparisons": comparisons,
        "maps_seed_0": shown,
    }
    exact = sum(sum(one.values()) for one in comparisons)
    total = sum(len(one) for one in comparisons)
    rows, columns = len(shown["output"]), len(shown["units"])
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"{exact} of {total} comparisons are exact. For the translation, the self-attention map is {rows} × {rows} "
            f"(lower triangle: the mask), the cross-attention map {rows} × {columns}. The notes' Q = K = V = X is an "
            "abbreviation for three different projections of X.",
            f"{total}件の比較のうち{exact}件が正確に一致しました。翻訳例では、自己アテンションの重みは{rows}×{rows}（マ"
            f"スクのため下三角）、交差アテンションは{rows}×{columns}です。ノートのQ=K=V=Xは、Xの3つの異なる射影を略した"
            "書き方です。",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    shown = outcome.numbers["maps_seed_0"]
    left, right = make_panels(figure, 2, height=4.4, width=9.2)
    plot_heatmap(left, shown["self"], rows=shown["output"], columns=shown["fed"], low=0, high=1)
    plot_heatmap(right, shown["cross"], rows=shown["output"], columns=shown["units"], low=0, high=1)
    left.tick_params(axis="x", labelrotation=60)
    left.set_title("self  自己アテンション", fontsize=9)
    right.set_title("cross  交差アテンション", fontsize=9)
    right.set_aspect("auto")
    left.set_aspect("auto")
