"""word-vectors: skip-gram with negative sampling on real text, and the neighbors of words before and after training.

L = −log σ(u_c · v_w) − Σ_k log σ(−u_k · v_w)        c within 4 words of w, k sampled by frequency^0.75

text     the Python manual, which is part of every Python: 65,000 words of prose
groups   words with related meanings, chosen before any training
alike    P(cosine of two words of one group > cosine of two words of different groups): 0.5 for random vectors
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from chumoku.lab.experiment import HOLDS, PARTLY, Budget, Outcome, Words, refute
from chumoku.lab.figures import BLUE, GRAY, make_panels, plot_heatmap
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import fit, fixed_seed, mean

GROUPS = {
    "containers": ("list", "tuple", "dictionary", "set", "string"),
    "numbers": ("integer", "float", "complex", "decimal", "numeric"),
    "may": ("can", "may", "must", "should", "cannot"),
    "order": ("first", "second", "last", "next", "previous"),
    "statements": ("try", "except", "finally", "else", "raise"),
    "names": ("module", "package", "import", "imported", "modules"),
}
SHOWN = ("tuple", "must", "integer", "except", "module")
WIDTH, NEAR, MIN_COUNT, NEGATIVES, PAIRS = 24, 4, 8, 5, 1024
STEPS = 1500


@functools.cache
def load_text() -> tuple[list[str], Tensor]:
    """The vocabulary and the text as ids, without rare words."""
    from pydoc_data.topics import topics

    words = re.findall(r"[a-z]+", " ".join(topics.values()).lower())
    times = Counter(words)
    known = sorted((word for word, count in times.items() if count >= MIN_COUNT), key=lambda word: (-times[word], word))
    ids = {word: number for number, word in enumerate(known)}
    return known, torch.tensor([ids[word] for word in words if word in ids])


class SkipGram(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.inside, self.outside = nn.Embedding(words, WIDTH), nn.Embedding(words, WIDTH)
        nn.init.zeros_(self.outside.weight)

    def forward(self, word: Tensor, near: Tensor, others: Tensor) -> Tensor:
        v = self.inside(word)
        beside = (self.outside(near) * v).sum(-1)
        apart = (self.outside(others) @ v[..., None]).squeeze(-1)
        return -(F.logsigmoid(beside) + F.logsigmoid(-apart).sum(-1)).mean()


def train_model(seed: int, steps: int) -> tuple[Tensor, Tensor]:
    """The vectors before and after training."""
    known, stream = load_text()
    with fixed_seed(seed):
        model = SkipGram(len(known))
    before = model.inside.weight.detach().clone()
    share = torch.bincount(stream, minlength=len(known)).float()
    negative_weights = share**0.75
    # Frequent words such as "the" carry little information and are sampled less often.
    sample_weights = (1e-3 * share.sum() / share).sqrt().clamp(max=1)[stream]

    def loss(generator: torch.Generator) -> Tensor:
        place = torch.multinomial(sample_weights, PAIRS, replacement=True, generator=generator)
        away = torch.randint(1, NEAR + 1, (PAIRS,), generator=generator)
        side = torch.randint(2, (PAIRS,), generator=generator) * 2 - 1
        near = stream[(place + side * away).clamp(0, len(stream) - 1)]
        others = torch.multinomial(negative_weights, PAIRS * NEGATIVES, replacement=True, generator=generator)
        return model(stream[place], near, others.view(PAIRS, NEGATIVES))  # type: ignore[no-any-return]

    fit(model, loss, steps=steps, seed=seed, rate=2e-2, cosine=True)
    return before, model.inside.weight.detach()


def known_groups() -> list[tuple[str, ...]]:
    known = set(load_text()[0])
    return [tuple(word for word in group if word in known) for group in GROUPS.values()]


def cosines(vectors: Tensor) -> Tensor:
    """Cosines between all words of all groups, in their order."""
    ids = {word: number for number, word in enumerate(load_text()[0])}
    chosen = F.normalize(vectors[[ids[word] for group in known_groups() for word in group]] - vectors.mean(0), dim=-1)
    return chosen @ chosen.T


def same_group_share(table: Tensor) -> float:
    """How often two words of one group are closer than two words of different groups."""
    owner = [number for number, group in enumerate(known_groups()) for _ in group]
    pairs = list(itertools.combinations(range(len(owner)), 2))
    same, other = (
        torch.tensor([float(table[a, b]) for a, b in pairs if (owner[a] == owner[b]) is wanted])
        for wanted in (True, False)
    )
    return (same[:, None] > other).float().mean().item()


def nearest_words(vectors: Tensor, word: str, number: int = 5) -> list[str]:
    known = load_text()[0]
    normalized = F.normalize(vectors - vectors.mean(0), dim=-1)
    near = (normalized @ normalized[known.index(word)]).topk(number + 1).indices.tolist()
    return [known[other] for other in near if known[other] != word][:number]


def judge(numbers: dict[str, Any]) -> str:
    apart, closer = [0.6 - one for one in numbers["alike_before"]], [one - 0.75 for one in numbers["alike_after"]]
    shown = [before > 0 and after >= 0 for before, after in zip(apart, closer, strict=True)]
    return HOLDS if all(shown) else PARTLY if any(shown) else refute(apart, closer)


def run(budget: Budget) -> Outcome:
    seeds, steps = list(range(budget.seeds)), budget.steps(STEPS, 400)
    found = [train_model(seed, steps) for seed in seeds]
    tables = [[cosines(vectors) for vectors in pair] for pair in found]
    before, after = ([same_group_share(pair[turn]) for pair in tables] for turn in (0, 1))
    near = {
        word: {"before": nearest_words(found[0][0], word), "after": nearest_words(found[0][1], word)} for word in SHOWN
    }
    numbers: dict[str, Any] = {
        "seeds": seeds,
        "steps": steps,
        "words_in_text": len(load_text()[1]),
        "vocabulary": len(load_text()[0]),
        "alike_before": before,
        "alike_after": after,
        "neighbors_seed_0": near,
        "groups": [list(group) for group in known_groups()],
        "cosines_seed_0": [table.tolist() for table in tables[0]],
    }
    first, last = near["tuple"]["before"], near["tuple"]["after"]
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"Two words of one group are closer than two words of different groups in {format_seeds(before)} of the "
            f"comparisons before training and {format_seeds(after)} after. Nearest to “tuple” after training: "
            f"{', '.join(last)} (before: {', '.join(first)}).",
            f"同じグループの2語の方が近い割合は、学習前{format_seeds(before)}、学習後{format_seeds(after)}です。学習"
            f"後、「tuple」に最も近いのは{'、'.join(last)}です（学習前は{'、'.join(first)}）。",
        ),
        when=Words("training is long enough", "学習が十分に長いとき"),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axes = make_panels(figure, 2, height=4.6, width=9.4)
    words = [word for group in outcome.numbers["groups"] for word in group]
    for axis, table, title, share in zip(
        axes,
        outcome.numbers["cosines_seed_0"],
        ("before  学習前", "after  学習後"),
        ("alike_before", "alike_after"),
        strict=True,
    ):
        plot_heatmap(axis, table, rows=words, cmap="RdBu_r", low=-1, high=1)
        axis.tick_params(labelsize=6)
        axis.set_title(f"{title}: {mean(outcome.numbers[share]):.2f} closer within a group", fontsize=9, color=BLUE)
        edge = -0.5
        for group in outcome.numbers["groups"]:
            edge += len(group)
            axis.axhline(edge, color=GRAY, linewidth=0.4)
            axis.axvline(edge, color=GRAY, linewidth=0.4)
