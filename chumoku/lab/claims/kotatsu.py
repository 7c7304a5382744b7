"""kotatsu: こたつでみかんを食べる, word by word, with the top five words of every step and the cross-attention.

    (begin)              → I          (begin) I          → eat          (begin) I eat      → a          …

The combination (食べる, みかん, こたつ) is not in the translator's training data.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import make_panels, plot_heatmap
from chumoku.lab.sentence_data import BEGIN, join_words
from chumoku.lab.translator import Translator, get_translators, training_steps
from chumoku.nn import record

EXPECTED = "I eat a mandarin at the kotatsu."
PAIRS = (("mandarin", "みかん"), ("kotatsu", "こたつ"), ("eat", "食べる"))
BEST = 5


@torch.no_grad()
def translate_example(translator: Translator) -> dict[str, Any]:
    """The steps of the translation: the most probable words and the cross-attention."""
    model, data = translator.model, translator.data
    source = translator.encode_sources(data.test[:1])
    best = translator.translate(source)[0]
    inputs = torch.tensor([[BEGIN, *best.tokens]])
    with record(model, "decoder.blocks.*.cross_attention.weights") as tape:
        probabilities = model(source, inputs).logits[0].softmax(-1)
    looks = list(tape.values())[-1][0].mean(0)
    units, words = data.source.decode(source[0].tolist()), data.target.decode(best.tokens)
    top = probabilities.topk(BEST)
    steps = [
        {"word": word, "best": [[data.target.units[i], p] for i, p in zip(ids, chances, strict=True)], "look": look}
        for word, ids, chances, look in zip(
            [*words, "(end)"], top.indices.tolist(), top.values.tolist(), looks.tolist(), strict=True
        )
    ]
    return {"seed": translator.seed, "units": units, "translation": join_words(words), "steps": steps}


def alignment_cells(run: dict[str, Any]) -> dict[str, list[float]]:
    """For each word and its unit: the attention weight and its rank in the row, 1 being the largest."""
    found = {}
    for word, unit in PAIRS:
        row = next((step["look"] for step in run["steps"] if step["word"] == word), None)
        if row is not None:
            weight = row[run["units"].index(unit)]
            found[f"{unit} – {word}"] = [weight, 1 + sum(other > weight for other in row)]
    return found


def judge(numbers: dict[str, Any]) -> str:
    right = [run["translation"] == EXPECTED for run in numbers["runs"]]
    return HOLDS if all(right) else PARTLY if any(right) else FAILS


def run(budget: Budget) -> Outcome:
    runs = [translate_example(translator) for translator in get_translators(budget)]
    found = [{**one, "cells": alignment_cells(one)} for one in runs]
    numbers: dict[str, Any] = {
        "model": "trained here",
        "seeds": [one["seed"] for one in runs],
        "steps": training_steps(budget),
        "runs": found,
    }
    text = ", ".join(f"“{one['translation']}”" for one in runs)
    text_ja = "".join(f"「{one['translation']}」" for one in runs)
    likely = min(step["best"][0][1] for step in runs[0]["steps"])
    looked = "; ".join(
        ", ".join(f"{name} {weight:.2f} (rank {rank:.0f})" for name, (weight, rank) in one["cells"].items())
        for one in found
    )
    looked_ja = re.sub(r" \(rank (\d+)\)", r"（\1位）", looked).replace(", ", "、").replace("; ", "。")
    right = sum(one["translation"] == EXPECTED for one in runs)
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"Translations by seed: {text}; correct in {right} of {len(runs)}. In seed 0 the probability of the chosen "
            f"word was at least {likely:.2f}. Cross-attention by seed, with weight and rank in its row: {looked}.",
            f"シードごとの訳は{text_ja}で、{len(runs)}のうち{right}が正解です。シード0では、選ばれた語の確率は最低でも"
            f"{likely:.2f}でした。交差アテンションの重みと行の中での順位：{looked_ja}。",
        ),
        when=Words(
            f"training succeeds: {right} of {len(runs)} seeds after {numbers['steps']} steps",
            f"学習がうまく進んだとき（{numbers['steps']}ステップで{len(runs)}シード中{right}）",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    run = outcome.numbers["runs"][0]
    left, right = make_panels(figure, 2, height=4.2, width=9.2)
    rows = [f"{step['word']}  {step['best'][0][1]:.2f}" for step in run["steps"]]
    plot_heatmap(
        left, [step["look"] for step in run["steps"]], rows=rows, columns=run["units"], form="{:.2f}", low=0, high=1
    )
    left.set_aspect("auto")
    left.tick_params(labelsize=8.5)
    left.set_title("cross-attention  交差アテンション (seed 0)", fontsize=9)
    table = [[choice[1] for choice in step["best"]] for step in run["steps"]]
    plot_heatmap(right, table, low=0, high=1)
    right.set_aspect("auto")
    for row, step in enumerate(run["steps"]):
        for column, (word, chance) in enumerate(step["best"]):
            color = "white" if chance > 0.6 else "#1c2733"
            right.text(column, row, f"{word}\n{chance:.3f}", ha="center", va="center", fontsize=6.5, color=color)
    right.set_xticks(range(BEST), [str(place + 1) for place in range(BEST)])
    right.set_xlabel("top five words  上位5語")
