"""layers: what a linear probe reads from each layer of the translator's encoder.

surface   which unit stands here                                   すべての位置
grammar   which part a noun plays: the particle behind it          は を で に が, of nouns that play several
meaning   what happens in the sentence: its verb or adjective      asked at the nouns

probe     ridge regression from a layer's vectors to the labels; right answers on sentences it has not seen
depth     Σ l·g_l / Σ g_l, g_l the gain of block l over all layers below; 0 when the table knows best
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.data.embedded.sentence import Sentence
from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Claim, Outcome, Words
from chumoku.lab.figures import BLUE, OCHRE, RED, curves, panels
from chumoku.lab.sentences import PAD
from chumoku.lab.toys import only_when, told
from chumoku.lab.translator import Translator, steps_of, translators
from chumoku.nn import record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    id="layers",
    notes=("000",),
    title=Words("Surface, grammar, meaning by layer", "層ごとの情報：表層・文法・意味"),
    stated=Words(
        "Lower layers hold surface information, middle ones grammar, upper ones meaning.",
        "初段では表層的な情報、中段では文法的な情報、後段では意味的な情報が保持されると考えられています。",
    ),
    tried=Words(
        "Linear probes read three things from every layer of the trained translator's encoder (3 blocks): which "
        "unit stands here, which part a noun plays (of nouns that play several), and what happens in the sentence.",
        "訓練した翻訳モデルのEncoder（3ブロック）の各層から、線形プローブで「どの語か」「名詞の役割（後ろの助詞。複"
        "数の役割をとる名詞だけ）」「文の述語」の3つを読み取ります。",
    ),
    refutes=Words(
        "The three come from the same depth, or in another order.",
        "3つが同じ深さで得られる、または順序が違うこと。",
    ),
    rule=Words(
        "depth = mean block at which right answers are gained over the table. Holds when in every seed "
        "depth(surface) < depth(grammar) < depth(meaning); holds only when … when surface lies below both in every "
        "seed; else it does not hold.",
        "深さ＝埋め込み表より正解が増えたブロックの加重平均（増えなければ0）。すべてのシードで 表層＜文法＜意味 なら"
        "「成り立つ」、表層だけが常に他の2つより浅ければ「条件つきで成り立つ」、それ以外は「成り立たない」。",
    ),
)
KINDS = {"surface": "表層 surface", "grammar": "文法 grammar", "meaning": "意味 meaning"}
PARTICLES = ("は", "を", "で", "に", "が")
DEPTH, READ = 3, 1600


def torn(chosen: tuple[Sentence, ...]) -> set[str]:
    """Nouns that no particle follows more than 60 % of the time: they do not tell their part by themselves."""
    behind: dict[str, Counter[str]] = {}
    for one in chosen:
        for unit, after in itertools.pairwise(one.units):
            if after in PARTICLES and unit not in PARTICLES:
                behind.setdefault(unit, Counter())[after] += 1
    return {unit for unit, found in behind.items() if max(found.values()) <= 0.6 * found.total()}


def labels(chosen: tuple[Sentence, ...], names: dict[str, int]) -> dict[str, list[tuple[int, int, int]]]:
    """(sentence, place, answer) for each question."""
    several = torn(chosen)
    asked: dict[str, list[tuple[int, int, int]]] = {kind: [] for kind in KINDS}
    events = {event: n for n, event in enumerate(sorted({one.combination[0] for one in chosen}))}
    for number, one in enumerate(chosen):
        for place, unit in enumerate(one.units):
            asked["surface"].append((number, place, names[unit]))
            after = one.units[place + 1] if place + 1 < len(one.units) else ""
            if after in PARTICLES and unit not in PARTICLES:
                if unit in several:
                    asked["grammar"].append((number, place, PARTICLES.index(after)))
                asked["meaning"].append((number, place, events[one.combination[0]]))
    return asked


def probe(layer: Tensor, asked: list[tuple[int, int, int]], sentences: int) -> float:
    """Right answers of a ridge regression, learnt on the first three quarters of the sentences."""
    number, place, answer = torch.tensor(asked).unbind(1)
    x = layer[number, place]
    x = F.pad((x - x.mean(0)) / x.std(0).clamp(min=1e-6), (0, 1), value=1.0).double()
    known = number < 3 * sentences // 4
    y = F.one_hot(answer).double()
    a = x[known]
    weight = torch.linalg.solve(a.T @ a + 1.0 * torch.eye(a.shape[1]).double(), a.T @ y[known])
    right = (x[~known] @ weight).argmax(-1) == answer[~known]
    return float(right.double().mean())


@torch.no_grad()
def probed(translator: Translator) -> dict[str, list[float]]:
    chosen = translator.data.train[:READ]
    source = translator.sources(chosen)
    with record(translator.model, "encoder.embedding", "encoder.blocks.*.output") as tape:
        translator.model.encode(source, mask=source != PAD)
    asked = labels(chosen, translator.data.source.ids)
    return {kind: [probe(layer, asked[kind], len(chosen)) for layer in tape.values()] for kind in KINDS}


def depth(right: list[float]) -> float:
    """The mean block at which right answers are gained over what the table gives."""
    best, weighted, gained = right[0], 0.0, 0.0
    for layer, share in enumerate(right):
        gain = max(0.0, share - best)
        best, weighted, gained = max(best, share), weighted + layer * gain, gained + gain
    return weighted / gained if gained else 0.0


def judge(numbers: dict[str, Any]) -> str:
    depths = [[depth(run[kind]) for kind in KINDS] for run in numbers["runs"]]
    if all(surface < grammar < meaning for surface, grammar, meaning in depths):
        return HOLDS
    return PARTLY if all(surface < min(grammar, meaning) for surface, grammar, meaning in depths) else FAILS


def run(budget: Budget) -> Outcome:
    found = translators(budget)
    runs = [probed(translator) for translator in found]
    depths = {kind: [depth(run[kind]) for run in runs] for kind in KINDS}
    numbers: dict[str, Any] = {
        "seeds": [translator.seed for translator in found],
        "model": "trained here",
        "steps": steps_of(budget),
        "runs": runs,
        "depth": depths,
    }
    deep = ", ".join(f"{kind} {told(values)}" for kind, values in depths.items())
    last = ", ".join(f"{kind} {told([100 * run[kind][-1] for run in runs], '{:.0f}')} %" for kind in KINDS)
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"Depth (0 the table, 3 the last block): {deep}. Behind the last block the probes still read: {last}.",
            f"深さ（0は埋め込み表、3は最終ブロック）：{deep}。最終ブロックの後でも読み取れる割合：{last}。"
            "（surface：表層、grammar：文法、meaning：意味）",
        ),
        when=only_when(
            judge(numbers),
            Words(
                "only surface against the rest is asked: the surface lies lowest, grammar and meaning come from the "
                "same layers",
                "表層とそれ以外を比べるとき（表層は最も浅く、文法と意味は同じ層で得られます）",
            ),
        ),
        reading=Words(
            "What a linear probe reads behind each layer; bands run from the least to the greatest seed.",
            "各層から線形プローブで読み取れる割合です。帯はシードの最小から最大までを示します。",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = panels(figure, 1, height=3.6, width=6.8)[0]
    layers = list(range(DEPTH + 1))
    shown = {
        f"{name}, depth {sum(outcome.numbers['depth'][kind]) / len(outcome.numbers['seeds']):.2f}": [
            run[kind] for run in outcome.numbers["runs"]
        ]
        for kind, name in KINDS.items()
    }
    curves(axis, layers, shown, marker="o", colours=(OCHRE, BLUE, RED))
    axis.set_xticks(layers, ["table\n埋め込み表", *(f"block {number}" for number in range(DEPTH))])
    axis.set_ylim(0, 1.05)
    axis.set_ylabel("right answers of the probe")
