"""heads: four questions answered at once by attention with 1, 2, 4 and 8 heads of the same total width.

    each position i predicts   x_{i−1}    x_0    x_7    and the token marked with a star        chance 1/8 each
    mass[h, r]   mean attention weight of head h on the position that answers question r

A head has one set of attention weights for everything it reads. With one head, four positions share them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, LIGHT, make_panels, plot_curves, plot_heatmap
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import fit, fixed_seed, mean
from chumoku.nn import Attention, Block, FeedForward, LayerNorm, record

HEADS = (1, 2, 4, 8)
QUESTIONS = ("1つ前 previous", "先頭 first", "末尾 last", "印 starred")
WIDTH, TOKENS, LENGTH, ROWS = 64, 8, 8, 32
MIN_ATTENTION = 0.5


class QuestionModel(nn.Module):
    """Token, position and star → four answers at every position."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.token, self.star = nn.Embedding(TOKENS, WIDTH), nn.Embedding(2, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.block = Block(Attention(WIDTH, heads), FeedForward(WIDTH, 2 * WIDTH), norm=lambda: LayerNorm(WIDTH))
        self.answers = nn.Linear(WIDTH, len(QUESTIONS) * TOKENS)

    def forward(self, tokens: Tensor, star: Tensor) -> Tensor:
        starred = F.one_hot(star, LENGTH)
        x = self.token(tokens) + self.star(starred) + self.place.weight
        return self.answers(self.block(x)).unflatten(-1, (len(QUESTIONS), TOKENS))  # type: ignore[no-any-return]


def sample_batch(generator: torch.Generator, number: int = ROWS) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(TOKENS, (number, LENGTH), generator=generator)
    return tokens, torch.randint(LENGTH, (number,), generator=generator)


def answer_positions(star: Tensor) -> Tensor:
    """Position of the answer to each question [B, T − 1, questions], from the second position on."""
    here = torch.arange(1, LENGTH).expand(len(star), -1)
    first = torch.zeros_like(here)
    return torch.stack([here - 1, first, first + LENGTH - 1, star[:, None].expand_as(here)], -1)


def predict(model: QuestionModel, tokens: Tensor, star: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and correct answers, from the second position on."""
    asked = answer_positions(star)
    right = tokens[:, None].expand(-1, LENGTH - 1, -1).gather(2, asked)
    return model(tokens, star)[:, 1:], right


def run_trial(heads: int, seed: int, steps: int) -> dict[str, Any]:
    with fixed_seed(seed):
        model = QuestionModel(heads)

    def loss(generator: torch.Generator) -> Tensor:
        logits, right = predict(model, *sample_batch(generator))
        return F.cross_entropy(logits.flatten(0, 2), right.flatten())

    fit(model, loss, steps=steps, seed=seed, rate=2e-2, warmup=steps // 10, cosine=True)
    tokens, star = sample_batch(torch.Generator().manual_seed(1000 + seed), 256)
    with torch.no_grad(), record(model, "block.attention.weights") as tape:
        logits, right = predict(model, tokens, star)
    looks = tape["block.attention.weights"][:, :, 1:]
    asked = answer_positions(star)[:, None].expand(-1, heads, -1, -1)
    correct = (logits.argmax(-1) == right).float().mean((0, 1))
    return {"right": correct.tolist(), "mass": looks.gather(3, asked).mean((0, 2)).tolist()}


def has_own_heads(mass: list[list[float]]) -> bool:
    """Whether each question has its own head that gives it at least half of its attention."""
    best = [max(range(len(mass)), key=lambda head: mass[head][question]) for question in range(len(QUESTIONS))]
    return len(set(best)) == len(best) and all(mass[head][q] >= MIN_ATTENTION for q, head in enumerate(best))


def judge(numbers: dict[str, Any]) -> str:
    shown = [
        has_own_heads(many["mass"]) and mean(many["right"]) > mean(one["right"])
        for one, many in zip(numbers["heads"]["1"], numbers["heads"]["8"], strict=True)
    ]
    return HOLDS if all(shown) else PARTLY if any(shown) else FAILS


def run(budget: Budget) -> Outcome:
    steps, seeds = budget.steps(400, 160), list(range(budget.seeds))
    found = {str(heads): [run_trial(heads, seed, steps) for seed in seeds] for heads in HEADS}
    numbers: dict[str, Any] = {"seeds": seeds, "steps": steps, "questions": list(QUESTIONS), "heads": found}
    right = {heads: [mean(one["right"]) for one in runs] for heads, runs in found.items()}
    own = {heads: sum(has_own_heads(one["mass"]) for one in found[heads]) for heads in ("4", "8")}
    percent = {heads: format_seeds([100 * value for value in values], "{:.0f}") for heads, values in right.items()}
    shares = ", ".join(f"{heads}: {text} %" for heads, text in percent.items())
    numbers["seeds_with_heads_of_their_own"] = own
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"Accuracy by number of heads (mean and range over seeds): {shares}. Each question had its own head in "
            f"{own['8']} of {len(seeds)} seeds with eight heads, and in {own['4']} with four.",
            f"ヘッド数ごとの正解率（シードの平均と範囲）は {shares} です。4つの問いのそれぞれに専用のヘッドが現れたの"
            f"は、{len(seeds)}シード中、8ヘッドで{own['8']}、4ヘッドで{own['4']}でした。",
        ),
        when=Words(
            "training is long enough; in some seeds two questions still share a head",
            "学習が十分に進んだとき（シードによっては2つの問いが1つのヘッドを共有したままです）",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    left, right = make_panels(figure, 2, height=3.6, width=8.4)
    found = outcome.numbers["heads"]
    shown = {
        name: [[found[str(heads)][seed]["right"][question] for heads in HEADS] for seed in outcome.numbers["seeds"]]
        for question, name in enumerate(QUESTIONS)
    }
    plot_curves(left, list(range(len(HEADS))), shown, marker="o")
    left.set_xticks(range(len(HEADS)), [str(heads) for heads in HEADS])
    left.set(ylim=(0, 1.05), xlabel="heads of total width 64", ylabel="accuracy")
    left.axhline(1 / TOKENS, color=LIGHT, linewidth=0.8)
    left.annotate("chance", (0, 1 / TOKENS), color=BLUE, fontsize=7, xytext=(0, 2), textcoords="offset points")
    mass = found["8"][0]["mass"]
    names = [question.replace(" ", "\n", 1) for question in QUESTIONS]
    plot_heatmap(right, mass, rows=[f"head {head}" for head in range(8)], columns=names, form="{:.2f}", low=0, high=1)
    right.set_aspect("auto")
    right.tick_params(labelsize=7.5)
    right.set_title("attention of each head", fontsize=9)
