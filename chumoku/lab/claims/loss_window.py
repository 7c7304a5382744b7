"""Two losses of one sentence.

the note        −1/N Σᵢ Σ_{−p≤j≤p, j≠0} log P(w_{i+j} | w_i)      word2vec's skip-gram: one word, both directions
language model  −1/N Σᵢ log P(w_i | w_1 … w_{i−1})                 all earlier words, forward only
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Correction, Outcome, Words
from chumoku.lab.figures import BLUE, RED, make_panels, plot_bars

SENTENCES = (("サンディー", "が", "元気", "に", "走る"), ("ポチ", "が", "静か", "に", "眠る"))


def run(budget: Budget) -> Outcome:
    sentence = SENTENCES[0]
    window = {p: skip_gram(sentence, p) for p in (1, 2)}
    words = language_model(sentence)
    losses = {f"window_{p}": sum(terms.values()) / len(sentence) for p, terms in window.items()}
    numbers: dict[str, Any] = {
        **losses,
        "language_model": sum(words.values()) / len(sentence),
        "terms_window_1": window[1],
        "terms_language_model": words,
    }
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"The formula gives {numbers['window_1']:.3f} nats per word with p = 1 ({len(window[1])} terms, half of "
            f"them backward) and {numbers['window_2']:.3f} with p = 2. The loss of a language model is "
            f"{numbers['language_model']:.3f}: after サンディー it knows the rest, while に alone cannot distinguish 走"
            "る from 眠る.",
            f"ノートの式は p = 1 で一語あたり {numbers['window_1']:.3f} nat({len(window[1])} 項、半分は後ろ向き)、p = "
            f"2 で {numbers['window_2']:.3f} です。言語モデルなら {numbers['language_model']:.3f} で済みます。サンデ"
            "ィーが出れば残りは決まりますが、「に」だけからは「走る」か「眠る」か決められません。",
        ),
        correction=Correction(
            "−1/N Σᵢ Σⱼ log P(w_{i+j} | w_i)",
            "−1/N Σᵢ log P(w_i | w_1 … w_{i−1})",
            Words(
                "The first is word2vec's skip-gram loss; a language model conditions on all earlier words.",
                "前者は word2vec の skip-gram の損失です。言語モデルはそれまでの語すべてを条件にします。",
            ),
        ),
    )


def skip_gram(sentence: tuple[str, ...], p: int) -> dict[str, float]:
    """−log P(w_{i+j} | w_i) of every pair in the window, by counting over the corpus."""
    pairs = Counter((near, word) for world in SENTENCES for near, word, _, _ in neighbors(world, p))
    totals: Counter[str] = Counter()
    for (_, word), times in pairs.items():
        totals[word] += times
    return {
        f"{i}→{i + j} {word}→{near}": -math.log(pairs[near, word] / totals[word])
        for near, word, i, j in neighbors(sentence, p)
    }


def neighbors(sentence: tuple[str, ...], p: int) -> list[tuple[str, str, int, int]]:
    size = len(sentence)
    steps = [(i, j) for i in range(size) for j in range(-p, p + 1) if j and 0 <= i + j < size]
    return [(sentence[i + j], sentence[i], i, j) for i, j in steps]


def language_model(sentence: tuple[str, ...]) -> dict[str, float]:
    """−log P(w_i | all words before), by counting over the corpus."""
    costs = {}
    for i, word in enumerate(sentence):
        same = [world for world in SENTENCES if world[:i] == sentence[:i]]
        costs[word] = -math.log(sum(world[i] == word for world in same) / len(same))
    return costs


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if abs(numbers["window_1"] - numbers["language_model"]) < 1e-9 else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.4, height=3.2)[0]
    costs, words = outcome.numbers["terms_language_model"], list(SENTENCES[0])
    terms = outcome.numbers["terms_window_1"]
    forwards = [next(v for k, v in terms.items() if k.startswith(f"{i}→{i + 1} ")) for i in range(len(words) - 1)]
    series = {
        "P(w | all before それまでの全語)": [costs[w] for w in words],
        "P(w | one neighbor 隣の一語)": [math.nan, *forwards],
    }
    plot_bars(axis, words, series, colors=(BLUE, RED), form="{:.2f}")
    axis.set(ylabel="−log P (nats)", ylim=(0, 1.95))
