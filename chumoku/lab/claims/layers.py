"""layers: what a linear probe reads from each layer of the translator's encoder.

surface   the unit at this position                                at all positions
grammar   the role of a noun: the particle after it                は を で に が, for nouns with several roles
meaning   the verb or adjective of the sentence                    at the nouns

probe     ridge regression from the vectors of a layer to the labels; accuracy on unseen sentences
depth     Σ l·g_l / Σ g_l, g_l the gain of block l over all layers below; 0 if the embedding is best

The embedding encodes the unit by construction, so the depth of the surface would be 0. For the surface, the question is
therefore whether the blocks lose it from the first to the last.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.data.grammar.sentence import Sentence
from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, OCHRE, RED, make_panels, plot_curves
from chumoku.lab.sentence_data import PAD
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import mean
from chumoku.lab.translator import Translator, get_translators, training_steps
from chumoku.nn import record

KINDS = {"surface": "表層 surface", "grammar": "文法 grammar", "meaning": "意味 meaning"}
PARTICLES = ("は", "を", "で", "に", "が")
DEPTH, SENTENCES = 3, 1600


def ambiguous_nouns(chosen: tuple[Sentence, ...]) -> set[str]:
    """Nouns that no particle follows more than 60 % of the time, so that the noun alone does not give its role."""
    behind: dict[str, Counter[str]] = {}
    for one in chosen:
        for unit, after in itertools.pairwise(one.units):
            if after in PARTICLES and unit not in PARTICLES:
                behind.setdefault(unit, Counter())[after] += 1
    return {unit for unit, found in behind.items() if max(found.values()) <= 0.6 * found.total()}


def probe_labels(chosen: tuple[Sentence, ...], names: dict[str, int]) -> dict[str, list[tuple[int, int, int]]]:
    """(sentence, position, label) for each kind of probe."""
    several = ambiguous_nouns(chosen)
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
    """Test accuracy of a ridge regression that is trained on the first three quarters of the sentences."""
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
def probe_layers(translator: Translator) -> dict[str, list[float]]:
    chosen = translator.data.train[:SENTENCES]
    source = translator.encode_sources(chosen)
    with record(translator.model, "encoder.embedding", "encoder.blocks.*.output") as tape:
        translator.model.encode(source, mask=source != PAD)
    asked = probe_labels(chosen, translator.data.source.ids)
    return {kind: [probe(layer, asked[kind], len(chosen)) for layer in tape.values()] for kind in KINDS}


def depth(right: list[float]) -> float:
    """The mean block at which accuracy is gained over the embedding."""
    best, weighted, gained = right[0], 0.0, 0.0
    for layer, share in enumerate(right):
        gain = max(0.0, share - best)
        best, weighted, gained = max(best, share), weighted + layer * gain, gained + gain
    return weighted / gained if gained else 0.0


def judge(numbers: dict[str, Any]) -> str:
    parts = (surface_fades(numbers["runs"]), grammar_before_meaning(numbers["runs"]))
    return HOLDS if all(parts) else PARTLY if any(parts) else FAILS


def surface_fades(runs: list[dict[str, list[float]]]) -> bool:
    """Whether the surface is predicted less well after the last block than after the first, in every seed."""
    return all(run["surface"][-1] < run["surface"][1] for run in runs)


def grammar_before_meaning(runs: list[dict[str, list[float]]]) -> bool:
    return all(depth(run["grammar"]) < depth(run["meaning"]) for run in runs)


def run(budget: Budget) -> Outcome:
    found = get_translators(budget)
    runs = [probe_layers(translator) for translator in found]
    depths = {kind: [depth(run[kind]) for run in runs] for kind in ("grammar", "meaning")}
    numbers: dict[str, Any] = {
        "seeds": [translator.seed for translator in found],
        "model": "trained here",
        "steps": training_steps(budget),
        "runs": runs,
        "depth": depths,
    }
    deep = ", ".join(f"{kind} {format_seeds(values)}" for kind, values in depths.items())
    deep_ja = "、".join(f"{KINDS[kind].split()[0]} {format_seeds(values)}" for kind, values in depths.items())
    last = {kind: f"{format_seeds([100 * run[kind][-1] for run in runs], '{:.0f}')} %" for kind in KINDS}
    first = f"{format_seeds([100 * run['surface'][1] for run in runs], '{:.0f}')} %"
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"Accuracy for the surface is {first} after the first block and {last['surface']} after the last. Depth (0 "
            f"is the embedding, 3 the last block): {deep}. After the last block, accuracy is {last['grammar']} for "
            f"grammar and {last['meaning']} for meaning.",
            f"表層の正解率は、最初のブロックの後で{first}、最終ブロックの後で{last['surface']}です。深さ（0は埋め込み"
            f"表、3は最終ブロック）は、{deep_ja}です。最終ブロックの後の正解率は、文法が{last['grammar']}、意味が"
            f"{last['meaning']}です。",
        ),
        when=Words(
            "only the surface is considered: it fades in higher layers, but meaning does not come later than "
            "grammar in every seed",
            "表層だけを問うとき（上るほど薄れますが、意味が文法より後とは限りません）",
        )
        if surface_fades(runs)
        else Words(
            "only grammar and meaning are considered: they come in this order, but the surface does not fade",
            "文法と意味だけを問うとき（この順に得られますが、表層は薄れません）",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, height=3.6, width=6.8)[0]
    layers, depths = list(range(DEPTH + 1)), outcome.numbers["depth"]
    shown = {
        name + (f", depth {mean(depths[kind]):.2f}" if kind in depths else ""): [
            run[kind] for run in outcome.numbers["runs"]
        ]
        for kind, name in KINDS.items()
    }
    plot_curves(axis, layers, shown, marker="o", colors=(OCHRE, BLUE, RED))
    axis.set_xticks(layers, ["table\n埋め込み表", *(f"block {number}" for number in range(DEPTH))])
    axis.set(ylim=(0, 1.05), ylabel="accuracy of the probe")
