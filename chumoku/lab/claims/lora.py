"""lora: a language model of statements, and few questions, learns questions, whole or through adapters of rank 1 to 16.

W + (α / r) B A         A [r, D], B [D, r] train beside every matrix of the blocks; W stays as it is

kept = (loss before − loss with the adapter) / (loss before − loss of the whole fine-tune)        1: as good as whole
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chumoku import lora
from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Claim, Outcome, Words
from chumoku.lab.figures import BLUE, GREY, RED, make_panels, plot_curves
from chumoku.lab.sentence_data import load_sentences
from chumoku.lab.toy_models import (
    Lines,
    build_language_model,
    evaluate_loss,
    format_seeds,
    line_loss,
    make_lines,
    when_partly,
)
from chumoku.lab.training import fit, mean
from chumoku.models.count import count
from chumoku.models.model import DecoderModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    id="lora",
    notes=("004",),
    title=Words("LoRA trains few numbers and keeps performance", "LoRAは少ないパラメータで性能を保つ"),
    stated=Words(
        "LoRA leaves the weights as they are and trains small matrices beside them: far fewer trained parameters, and "
        "performance is kept.",
        "LoRAは元の重みに触らず小さな行列だけを学習し、更新するパラメータを大幅に減らしながら高い性能を維持します。",
    ),
    tried=Words(
        "A language model of statements, with a question now and then, is fine-tuned on questions: whole, and "
        "through adapters of rank 1, 2, 4, 8, 16 beside every matrix of its blocks. Test: questions of unseen "
        "combinations.",
        "平叙文（とわずかな疑問文）で訓練した言語モデルを、疑問文でファインチューニングします。全パラメータの場合と、"
        "ブロックの全行列に添えたランク1・2・4・8・16のアダプタの場合を、見ていない組み合わせの疑問文で比べます。",
    ),
    refutes=Words(
        "No rank with a quarter of the numbers or less keeps nine tenths of the whole fine-tune's gain.",
        "パラメータ数が4分の1以下のどのランクでも、全体を学習したときの改善の9割に届かないこと。",
    ),
    rule=Words(
        "kept = the adapter's gain / the whole fine-tune's. Holds when every rank keeps at least 0.9 in the mean "
        "over seeds, holds only when … when some ranks with at most a quarter of the numbers do, does not hold when "
        "none does.",
        "維持率＝アダプタによる改善÷全体を学習したときの改善（シードの平均）。すべてのランクで0.9以上なら「成り立つ」、"
        "パラメータが4分の1以下の一部のランクだけなら「条件つきで成り立つ」、1つもなければ「成り立たない」。",
    ),
)
RANKS = (1, 2, 4, 8, 16)
TARGETS = ["**.attention.{query,key,value,output}", "**.feedforward.{up,down}"]


@functools.cache
def load_parts() -> tuple[Lines, Lines, Lines]:
    """Statements and a few questions to begin with, questions to learn, questions to be judged by."""
    data = load_sentences()
    asks = [one for one in data.train if one.target.endswith("?")]
    tells = [one for one in data.train if not one.target.endswith("?")]
    # A few, so that no word is new: a table that never saw a word cannot be helped beside the matrices.
    return (
        make_lines([*tells, *asks[::20]]),
        make_lines(asks),
        make_lines([one for one in data.test if one.target.endswith("?")]),
    )


def train_model(model: DecoderModel, part: Lines, steps: int, seed: int, rate: float) -> None:
    def loss(generator: torch.Generator) -> Tensor:
        return line_loss(model, part.sample(generator))

    fit(model, loss, steps=steps, seed=seed, rate=rate, warmup=steps // 10, cosine=True, clip=1.0)


def run_trial(seed: int, budget: Budget) -> dict[str, Any]:
    tells, asks, test = load_parts()
    base, steps = build_language_model(seed, width=64), budget.steps(80, 15)
    train_model(base, tells, budget.steps(250, 40), seed, 5e-3)
    whole = copy.deepcopy(base)
    train_model(whole, asks, steps, seed, 2e-3)
    found: dict[str, Any] = {
        "before": evaluate_loss(base, test),
        "whole": evaluate_loss(whole, test),
        "ranks": {},
        "trained": {},
    }
    for rank in RANKS:
        lora.attach(base, lora.LoraSettings(rank=rank, alpha=2.0 * rank, targets=TARGETS), seed=seed)
        train_model(base, asks, steps, seed, 1e-2)
        found["ranks"][str(rank)] = evaluate_loss(base, test)
        found["trained"][str(rank)] = lora.saving(base).trained
        lora.detach(base)
    return {**found, "after_detaching": evaluate_loss(base, test), "total": count(base.config).parameters}


def kept_share(numbers: dict[str, Any], rank: int) -> list[float]:
    return [(one["before"] - one["ranks"][str(rank)]) / (one["before"] - one["whole"]) for one in numbers["runs"]]


def sufficient_ranks(numbers: dict[str, Any]) -> list[int]:
    """Ranks that train a quarter of the numbers at most and keep nine tenths."""
    first = numbers["runs"][0]
    few = [rank for rank in RANKS if first["trained"][str(rank)] <= first["total"] / 4]
    return [rank for rank in few if mean(kept_share(numbers, rank)) >= 0.9]


def judge(numbers: dict[str, Any]) -> str:
    good = [rank for rank in RANKS if mean(kept_share(numbers, rank)) >= 0.9]
    return HOLDS if len(good) == len(RANKS) else PARTLY if sufficient_ranks(numbers) else FAILS


def run(budget: Budget) -> Outcome:
    seeds = list(range(budget.seeds))
    runs = [run_trial(seed, budget) for seed in seeds]
    numbers: dict[str, Any] = {"seeds": seeds, "runs": runs}
    total, trained = runs[0]["total"], runs[0]["trained"]
    shares = ", ".join(
        f"r={rank}: {format_seeds([100 * value for value in kept_share(numbers, rank)], '{:.0f}')} % "
        f"[{trained[str(rank)] / total:.1%}]"
        for rank in RANKS
    )
    before, whole = ([one[key] for one in runs] for key in ("before", "whole"))
    least = min(sufficient_ranks(numbers), default=0)
    return Outcome(
        verdict=judge(numbers),
        numbers={**numbers, "kept": {str(rank): kept_share(numbers, rank) for rank in RANKS}},
        summary=Words(
            f"Loss on questions {format_seeds(before)} before, {format_seeds(whole)} after training all {total:,} numbers. Of that "
            f"gain the adapters keep (and train of the numbers): {shares}. Taken off, they leave the model as it was.",
            f"疑問文の損失は学習前{format_seeds(before)}、全{total:,}個の数を学習した後{format_seeds(whole)}です。その改善のうちアダ"
            f"プタが保った割合（と学習した数の割合）は {shares} です。外せばモデルは元のままです。",
        ),
        when=when_partly(
            judge(numbers),
            Words(
                f"the rank is {least} or more (of those tried here)", f"ランクが{least}以上のとき（ここで試した範囲で）"
            ),
        ),
        reading=Words(
            "The share of the whole fine-tune's gain by rank; the dashed line is nine tenths.",
            "全体を学習したときの改善に対する割合をランクごとに示します。破線は9割です。",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, height=3.4, width=6.4)[0]
    shares, first = outcome.numbers["kept"], outcome.numbers["runs"][0]
    runs = [[shares[str(rank)][seed] for rank in RANKS] for seed in range(len(outcome.numbers["seeds"]))]
    plot_curves(axis, list(range(len(RANKS))), {"kept  維持率": runs}, marker="o", colors=(BLUE,), legend=False)
    axis.axhline(1.0, color=RED, linewidth=0.9)
    axis.annotate(
        "whole fine-tune  全パラメータ", (0, 1.0), xytext=(0, 3), textcoords="offset points", color=RED, fontsize=8
    )
    axis.axhline(0.9, color=GREY, linewidth=0.9, linestyle="--")
    names = [f"{rank}\n{first['trained'][str(rank)] / first['total']:.1%}" for rank in RANKS]
    axis.set_xticks(range(len(RANKS)), names)
    axis.set_xlabel("rank, and the share of the numbers that train")
    axis.set_ylabel("share of the gain kept")
