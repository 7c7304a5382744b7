"""pretrain-shift: the decoder inputs are the outputs shifted right, and step-by-step decoding equals one pass.

taught        teacher forcing: inputs (begin) I eat a …, targets I eat a mandarin …, all positions at once
free          free running: inputs (begin) and its own words, one at a time with a cache

same words    one pass over the free-running translation predicts exactly the same words
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.data.batches import IGNORE
from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words
from chumoku.lab.figures import make_panels
from chumoku.lab.sentence_data import BEGIN, END, PAD, join_words, shift_right, split_english
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.translator import Translator, get_translators, training_steps

SENTENCES, SHOWN = 150, 4


@torch.no_grad()
def compare_modes(translator: Translator) -> dict[str, Any]:
    chosen = translator.data.test[:SENTENCES]
    source = translator.encode_sources(chosen)
    inputs, targets = translator.encode_targets(chosen)
    labels = torch.where(targets == IGNORE, PAD, targets).where(targets != END, PAD)
    moved = bool((inputs[:, 1:] == labels[:, :-1]).all())
    taught = translator.model(source, inputs, source_mask=source != PAD).logits.argmax(-1)
    real = targets != IGNORE
    free = [best.tokens for best in translator.translate(source)]
    right = [words == row[row > END].tolist() for words, row in zip(free, targets, strict=True)]
    return {
        "fed_is_output_shifted": moved and bool((inputs[:, 0] == BEGIN).all()),
        "one_pass_repeats": count_repeated(translator, source, free),
        "sentences": len(free),
        "taught_words_right": (taught == targets)[real].float().mean().item(),
        "taught_sentences_right": ((taught == targets) | ~real).all(1).float().mean().item(),
        "free_sentences_right": sum(right) / len(right),
        "shown": select_examples(translator, taught, free, right),
    }


def count_repeated(translator: Translator, source: Tensor, free: list[list[int]]) -> int:
    """Number of sentences for which one pass over the generated words predicts each of them again."""
    inputs, targets = shift_right(free)
    predicted = translator.model(source, inputs, source_mask=source != PAD).logits.argmax(-1)
    return int(((predicted == targets) | (targets <= END)).all(1).sum())


def select_examples(
    translator: Translator, taught: Tensor, free: list[list[int]], right: list[bool]
) -> list[dict[str, Any]]:
    """Up to two correct and two wrong sentences."""
    good, bad = ([n for n, correct in enumerate(right) if correct is expected] for expected in (True, False))
    names, found = translator.data.target, []
    for number in sorted((good[: SHOWN - min(2, len(bad))] + bad[:2])[:SHOWN]):
        one = translator.data.test[number]
        length = len(split_english(one.target))
        words = [names.units[token] for token in taught[number, :length].tolist()]
        found.append(
            {
                "source": one.source,
                "right": one.target,
                "taught": join_words(words),
                "free": join_words(names.decode(free[number])),
            }
        )
    return found


def judge(numbers: dict[str, Any]) -> str:
    exact = all(one["fed_is_output_shifted"] and one["one_pass_repeats"] == one["sentences"] for one in numbers["runs"])
    return HOLDS if exact else FAILS


def run(budget: Budget) -> Outcome:
    found = get_translators(budget)
    runs = [compare_modes(translator) for translator in found]
    numbers: dict[str, Any] = {
        "seeds": [translator.seed for translator in found],
        "model": "trained here",
        "steps": training_steps(budget),
        "runs": runs,
    }
    repeated, total = (sum(one[key] for one in runs) for key in ("one_pass_repeats", "sentences"))
    words, taught, free = (
        format_seeds([100 * one[key] for one in runs], "{:.0f}")
        for key in ("taught_words_right", "taught_sentences_right", "free_sentences_right")
    )
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            "The inputs are the targets shifted right by one. One pass over its own words predicts the same words in "
            f"{repeated} of {total} sentences. With teacher forcing, {words} % of words and {taught} % of sentences "
            f"are correct; with free running, {free} % of sentences; one wrong word makes a sentence wrong in both "
            "cases.",
            f"入力は正解を1つ右へずらしたものです。自走の出力を一度に与え直すと、{total}文中{repeated}文で同じ語になり"
            f"ました。教師強制では語の{words}％、文の{taught}％が正解で、自走では文の{free}％が正解です。最初の誤りで文"
            "が崩れるのはどちらも同じです。",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, height=3.8, width=6.8)[0]
    axis.axis("off")
    lines = outcome.numbers["runs"][0]["shown"]
    step = 1 / max(1, len(lines))
    for number, one in enumerate(lines):
        top = 1 - number * step
        axis.text(0, top, one["source"], fontsize=10, va="top", transform=axis.transAxes)
        for row, (name, key) in enumerate(
            (("正解 reference", "right"), ("教師強制 teacher forcing", "taught"), ("自走 free running", "free"))
        ):
            color = "#1c2733" if one[key] == one["right"] else "#b23a48"
            height = top - step * (0.27 + 0.2 * row)
            axis.text(0.02, height, name, fontsize=8, va="top", transform=axis.transAxes, color="#8a949e")
            axis.text(0.26, height, one[key], fontsize=8.5, va="top", transform=axis.transAxes, color=color)
