"""contextual: the word マウス has one vector in the embedding, but different vectors after the encoder.

In sentences of the built-in corpus, 猫, 犬, うさぎ (animals) and パソコン, カメラ, 自転車 (machines) are replaced by
マウス: one token with two senses. An encoder is trained to predict masked tokens; then, for マウス in unseen sentences,

within    mean cosine of two vectors of the same sense         across   of two vectors of different senses
told      share of sentences whose sense is that of the nearer center of the other sentences
control   the same for the untrained encoder, which mixes words but does not know the senses
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.data.batches import IGNORE
from chumoku.data.grammar.sentence import Sentence
from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels, plot_curves
from chumoku.lab.sentence_data import (
    END,
    MASK,
    PAD,
    Vocabulary,
    generate_sentences,
    load_sentences,
    pad_rows,
    take_rows,
)
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import fit
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import EncoderModel
from chumoku.nn import record

MOUSE = "マウス"
SENSES = (("猫", "犬", "うさぎ"), ("パソコン", "カメラ", "自転車"))
LAYERS, TEST_PER_SENSE = 2, 60


class Corpus(NamedTuple):
    train: Tensor
    test: Tensor  # sentences with マウス that are not in `train`
    sense: Tensor
    texts: list[str]
    vocabulary: Vocabulary


@functools.cache
def load_corpus() -> Corpus:
    common = set(load_sentences().source.units) | {word for sense in SENSES for word in sense}
    kept = [replace_with_mouse(one) for one in generate_sentences() if common.issuperset(one.units)]
    senses_by_event: dict[str, set[int]] = {}
    for _, sense, event in kept:
        if sense is not None:
            senses_by_event.setdefault(event, set()).add(sense)
    # Test only sentences whose verb or adjective fits one sense; 好き fits both.
    clear = [row for row in kept if row[1] is not None and len(senses_by_event[row[2]]) == 1]
    test = [row for sense in (0, 1) for row in [row for row in clear if row[1] == sense][:TEST_PER_SENSE]]
    hidden = {units for units, _, _ in test}
    words = Vocabulary(unit for units, _, _ in kept for unit in units)
    encoded = [words.encode(units) for units, _, _ in kept if units not in hidden]
    return Corpus(
        pad_rows(encoded, after=END),
        pad_rows([words.encode(units) for units, _, _ in test], after=END),
        torch.tensor([sense for _, sense, _ in test]),
        ["".join(units) for units, _, _ in test],
        words,
    )


def replace_with_mouse(one: Sentence) -> tuple[tuple[str, ...], int | None, str]:
    """The sentence with マウス in it, its sense (None if it has none or both), and its verb or adjective."""
    found = [number for number, sense in enumerate(SENSES) if set(sense) & set(one.units)]
    if len(found) != 1:
        return one.units, None, one.combination[0]
    mice = SENSES[found[0]]
    return tuple(MOUSE if unit in mice else unit for unit in one.units), found[0], one.combination[0]


def build_encoder(seed: int) -> EncoderModel:
    """The untrained encoder."""
    shape: dict[str, Any] = {"width": 32, "layers": LAYERS, "heads": 4, "context": 32, "initialization": "xavier"}
    config = ModelConfig(kind="encoder", vocabulary=len(load_corpus().vocabulary), **shape)
    return build(config, seed=seed).eval()  # type: ignore[return-value]


def train_model(seed: int, steps: int) -> EncoderModel:
    known, model = load_corpus(), build_encoder(seed)

    def loss(generator: torch.Generator) -> Tensor:
        tokens = take_rows(known.train, torch.randint(len(known.train), (32,), generator=generator))
        hidden = (torch.rand(tokens.shape, generator=generator) < 0.25) & (tokens > MASK)
        logits = model(tokens.masked_fill(hidden, MASK), mask=tokens != PAD).logits
        return F.cross_entropy(logits.flatten(0, 1), tokens.masked_fill(~hidden, IGNORE).flatten(), ignore_index=IGNORE)

    fit(model, loss, steps=steps, seed=seed, rate=5e-3, warmup=steps // 10, cosine=True, clip=1.0)
    return model


@torch.no_grad()
def mouse_vectors(model: EncoderModel) -> list[Tensor]:
    """Vectors of マウス in every test sentence: in the embedding and after each block."""
    known = load_corpus()
    with record(model, "encoder.embedding", "encoder.blocks.*.output") as tape:
        model(known.test, mask=known.test != PAD)
    here = known.test == known.vocabulary.ids[MOUSE]
    place = here.int().argmax(1)
    return [layer[torch.arange(len(place)), place] for layer in tape.values()]


def compare_senses(layer: Tensor) -> dict[str, float]:
    sense, unit = load_corpus().sense, F.normalize(layer, dim=-1)
    table = unit @ unit.T
    same = sense[:, None] == sense
    others = ~torch.eye(len(sense), dtype=torch.bool)
    # The center of each sense, without the sentence itself.
    centers = torch.stack([(same & others).float(), (~same).float()]) @ unit
    nearer = (F.normalize(centers, dim=-1) * unit).sum(-1)
    return {
        "within": table[same & others].mean().item(),
        "across": table[~same].mean().item(),
        "told": (nearer[0] > nearer[1]).float().mean().item(),
    }


def judge(numbers: dict[str, Any]) -> str:
    runs = numbers["layers"]
    different = [run[0]["across"] > 1 - 1e-5 and run[-1]["within"] < 0.9 for run in runs]
    if not any(different):
        return FAILS
    pairs = zip(runs, numbers["untrained"], strict=True)
    separated = [run[-1]["across"] < run[-1]["within"] and run[-1]["told"] > start["told"] for run, start in pairs]
    return HOLDS if all(different) and all(separated) else PARTLY


def run(budget: Budget) -> Outcome:
    seeds, steps = list(range(budget.seeds)), budget.steps(300, 100)
    found = [mouse_vectors(train_model(seed, steps)) for seed in seeds]
    layers = [[compare_senses(layer) for layer in model] for model in found]
    last = F.normalize(found[0][-1], dim=-1)
    numbers: dict[str, Any] = {
        "seeds": seeds,
        "steps": steps,
        "sentences": load_corpus().texts,
        "layers": layers,
        "untrained": [compare_senses(mouse_vectors(build_encoder(seed))[-1]) for seed in seeds],
        "cosines_seed_0": (last @ last.T).tolist(),
    }
    end = {key: [run[-1][key] for run in layers] for key in ("within", "across", "told")}
    start = {key: [one[key] for one in numbers["untrained"]] for key in end}
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"In the embedding マウス is one vector (cosine {layers[0][0]['across']:.2f}). After the last layer the "
            f"mean cosine is {format_seeds(end['within'])} within a sense and {format_seeds(end['across'])} across "
            f"senses; before training {format_seeds(start['within'])} and {format_seeds(start['across'])}. The nearer "
            f"center gives the correct sense in {format_seeds(end['told'], '{:.0%}')} of {len(numbers['sentences'])} "
            f"unseen sentences, before training in {format_seeds(start['told'], '{:.0%}')} (chance 50%).",
            f"埋め込み表では「マウス」は1つのベクトルです（コサイン{layers[0][0]['across']:.2f}）。最終層では、同じ意味"
            f"どうしのコサインが{format_seeds(end['within'])}、違う意味では{format_seeds(end['across'])}です（学習前は"
            f"{format_seeds(start['within'])}と{format_seeds(start['across'])}）。見ていない{len(numbers['sentences'])}"
            f"文のうち{format_seeds(end['told'], '{:.0%}')}で、近い方の中心から意味を見分けられます。学習前は"
            f"{format_seeds(start['told'], '{:.0%}')}です（偶然なら50%）。",
        ),
        when=Words(
            "only different vectors are required; they do not separate by sense more than before training in every "
            "seed",
            "文ごとに違うベクトルになることだけを問うとき（学習前より意味で分かれることは、すべてのシードでは見られ"
            "ません）",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    left, right = make_panels(figure, 2, height=3.6, width=8.4)
    layers, depth = outcome.numbers["layers"], list(range(LAYERS + 1))
    names = {"within": "same sense  同じ意味", "across": "different senses  違う意味"}
    plot_curves(
        left,
        depth,
        {names[key]: [[at[key] for at in run] for run in layers] for key in names},
        marker="o",
        colors=(BLUE, RED),
    )
    left.set_xticks(depth, ["table\n埋め込み表", *(f"block {number}" for number in range(LAYERS))])
    left.set_ylabel("mean cosine of マウス")
    picture = right.imshow(outcome.numbers["cosines_seed_0"], cmap="Blues", vmin=0, vmax=1)
    right.grid(visible=False)
    right.axhline(TEST_PER_SENSE - 0.5, color=GRAY, linewidth=0.6)
    right.axvline(TEST_PER_SENSE - 0.5, color=GRAY, linewidth=0.6)
    right.set_xticks([TEST_PER_SENSE / 2, 1.5 * TEST_PER_SENSE], ["動物 animal", "機械 machine"])
    right.set_yticks([TEST_PER_SENSE / 2, 1.5 * TEST_PER_SENSE], ["動物", "機械"])
    figure.colorbar(picture, ax=right, label="cosine", shrink=0.85)
