"""ffn-needed: models with feed-forward layers, without them, and without them but with as many parameters.

with             x + attention(norm(x)), then x + FFN(norm(x))            12 D² parameters per block
without          only the first of the two                                 4 D²
as large         three blocks without for each block with                 12 D²

alone            one position reads 8 signs and predicts which of 4 pairs are equal: attention has one key only
table            a random f(a, b) for 16 × 16 pairs of tokens, to be memorized
language         English lines of the built-in corpus, tested on unseen combinations

lost = (loss without − loss with) / (loss of guessing − loss with)        1: everything learned is lost
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from chumoku.lab.experiment import FAILS, HOLDS, NOT_JUDGED, PARTLY, Budget, Outcome, Words, is_refuted
from chumoku.lab.figures import BLUE, GRAY, OCHRE, RED, make_panels, plot_seed_bars
from chumoku.lab.toy_models import (
    ZeroLayer,
    build_language_model,
    evaluate_loss,
    fit_lines,
    format_seeds,
    train_and_test_lines,
    unigram_loss,
)
from chumoku.lab.training import Loss, fit, fixed_seed, mean
from chumoku.models.model import DecoderModel
from chumoku.nn import Attention, Block, FeedForward, LayerNorm

NAMES = {"with": "FFNあり\nwith", "without": "なし\nwithout", "as large": "なし・同じ大きさ\nas large"}
TASKS = {
    "alone": Words("within one position", "1つの位置の中の計算"),
    "table": Words("a random table of two tokens", "2トークンのでたらめな表"),
    "language": Words("English lines", "英文"),
}
WIDTH, SIZE, SIGNS = 32, 16, 8


class Reader(nn.Module):
    """Some blocks over a sequence of vectors, and a linear output from the last one."""

    def __init__(self, kind: str, answers: int) -> None:
        super().__init__()

        def block() -> Block:
            feeding: Any = FeedForward(WIDTH, 4 * WIDTH) if kind == "with" else ZeroLayer()
            return Block(Attention(WIDTH, 4), feeding, norm=lambda: LayerNorm(WIDTH))

        self.blocks = nn.ModuleList(block() for _ in range(3 if kind == "as large" else 1))
        self.answer = nn.Linear(WIDTH, answers)
        self.words = nn.Embedding(2 * SIZE, WIDTH)
        self.signs = nn.Linear(SIGNS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.answer(x[:, -1])  # type: ignore[no-any-return]


def build_reader(kind: str, answers: int, seed: int) -> Reader:
    with fixed_seed(seed):
        return Reader(kind, answers)


def train_and_evaluate(model: nn.Module, loss: Loss, steps: int, seed: int, rate: float = 5e-3) -> float:
    fit(model, loss, steps=steps, seed=seed, rate=rate, warmup=steps // 10, cosine=True, clip=1.0)
    with torch.no_grad():
        return loss(torch.Generator().manual_seed(seed + 1000)).item()


def sign_task(kind: str, seed: int, budget: Budget) -> float:
    """Test loss of predicting which neighboring signs are equal, from a sequence of one vector."""
    model = build_reader(kind, SIGNS // 2, seed)

    def loss(generator: torch.Generator) -> Tensor:
        signs = torch.randint(2, (128, SIGNS), generator=generator).float() * 2 - 1
        equal = signs[:, 0::2] * signs[:, 1::2] > 0
        return F.binary_cross_entropy_with_logits(model(model.signs(signs)[:, None]), equal.float())

    return train_and_evaluate(model, loss, budget.steps(250, 60), seed)


def table_task(kind: str, seed: int, budget: Budget) -> float:
    """Loss of memorizing a random answer for each pair of tokens; every step uses the full table."""
    answers = torch.randint(SIZE, (SIZE * SIZE,), generator=torch.Generator().manual_seed(seed))
    pairs = torch.cartesian_prod(torch.arange(SIZE), torch.arange(SIZE, 2 * SIZE))
    model = build_reader(kind, SIZE, seed)
    steps = budget.steps(250, 60)
    return train_and_evaluate(
        model, lambda _: F.cross_entropy(model(model.words(pairs)), answers), steps, seed, rate=1e-2
    )


def language_task(kind: str, seed: int, budget: Budget) -> float:
    train, test = train_and_test_lines()
    model = build_language_model(seed, layers=3 if kind == "as large" else 1)
    if kind != "with":
        remove_feedforwards(model)
    fit_lines(model, train, steps=budget.steps(150, 25), seed=seed)
    return evaluate_loss(model, test)


def remove_feedforwards(model: DecoderModel) -> None:
    """Remove the feed-forward layers, in place."""
    for block in model.decoder.blocks:
        block.feedforward = ZeroLayer()


def lost_share(found: dict[str, list[float]], guess: float, kind: str = "without") -> float:
    """The share of what was learned with feed-forward layers that is lost without them."""
    full = mean(found["with"])
    return (mean(found[kind]) - full) / (guess - full)


def judge(numbers: dict[str, Any]) -> str:
    gone = [numbers[task]["lost"] > 0.5 for task in TASKS]
    if any(gone):
        return HOLDS if all(gone) else PARTLY
    return FAILS if all(is_refuted(margins(numbers[task])) for task in TASKS) else NOT_JUDGED


def margins(found: dict[str, Any]) -> list[float]:
    """By how much more than half of what was learned is lost, in each seed, in nats."""
    pairs = zip(found["loss"]["with"], found["loss"]["without"], strict=True)
    return [without - (full + found["guessing"]) / 2 for full, without in pairs]


def run(budget: Budget) -> Outcome:
    seeds = list(range(budget.seeds))
    guess = {"alone": math.log(2), "table": math.log(SIZE), "language": unigram_loss(train_and_test_lines()[1])}
    numbers: dict[str, Any] = {"seeds": seeds}
    for task, run_task in (("alone", sign_task), ("table", table_task), ("language", language_task)):
        found = {kind: [run_task(kind, seed, budget) for seed in seeds] for kind in NAMES}
        gone, still = lost_share(found, guess[task]), lost_share(found, guess[task], "as large")
        numbers[task] = {"loss": found, "guessing": guess[task], "lost": gone, "lost_as_large": still}
    shown = {task: " / ".join(format_seeds(numbers[task]["loss"][kind]) for kind in NAMES) for task in TASKS}
    share = {task: f"{numbers[task]['lost']:.0%}" for task in TASKS}
    lost_in = [task for task in TASKS if numbers[task]["lost"] > 0.5]
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            "Loss with / without / without but as large: "
            + "; ".join(f"{TASKS[t].en} {shown[t]}, lost {share[t]}" for t in TASKS)
            + ".",
            "損失（あり／なし／なし・同じ大きさ）："
            + "、".join(f"{TASKS[t].ja} {shown[t]}（失われた割合{share[t]}）" for t in TASKS)
            + "。",
        ),
        when=Words(
            f"the task is {' or '.join(TASKS[task].en for task in lost_in)}. In the other tasks, the products "
            "inside the softmax, which compare positions, do much of the work",
            f"課題が「{'」「'.join(TASKS[task].ja for task in lost_in)}」のとき。ほかの課題では、位置どうしを比べ"
            "るsoftmaxの中の積がかなりの仕事をします",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    for axis, task in zip(make_panels(figure, 3, height=3.2, width=9.4), TASKS, strict=True):
        found = outcome.numbers[task]
        axis.axhline(found["guessing"], color=GRAY, linewidth=0.9, linestyle="--")
        plot_seed_bars(axis, {NAMES[kind]: found["loss"][kind] for kind in NAMES}, colors=(BLUE, RED, OCHRE))
        axis.tick_params(axis="x", labelsize=7)
        axis.set_title(f"{TASKS[task].en}\n{TASKS[task].ja}", fontsize=9)
        axis.set_ylabel("loss (nats)")
