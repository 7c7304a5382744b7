"""lora: a language model trained on statements and few questions is fine-tuned on questions, fully or with LoRA.

W + (α / r) B A         A [r, D], B [D, r] are trained for every matrix of the blocks; W is frozen

kept = (loss before − loss with the adapter) / (loss before − loss of full fine-tuning)        1: as good as full
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from matplotlib.figure import Figure

from chumoku import lora
from chumoku.lab.experiment import FAILS, HOLDS, NOT_JUDGED, PARTLY, Budget, Outcome, Words, is_refuted
from chumoku.lab.figures import BLUE, GRAY, RED, make_panels, plot_curves
from chumoku.lab.sentence_data import load_sentences
from chumoku.lab.toy_models import Lines, build_language_model, evaluate_loss, fit_lines, format_seeds, make_lines
from chumoku.lab.training import mean
from chumoku.models.count import count

RANKS = (1, 2, 4, 8, 16)
TARGETS = ["**.attention.{query,key,value,output}", "**.feedforward.{up,down}"]


@functools.cache
def load_parts() -> tuple[Lines, Lines, Lines]:
    """Statements with a few questions for pretraining, questions for fine-tuning, questions for testing."""
    data = load_sentences()
    questions = [one for one in data.train if one.target.endswith("?")]
    statements = [one for one in data.train if not one.target.endswith("?")]
    # A few questions, so that no word is new: adapters on the matrices cannot learn an untrained embedding.
    return (
        make_lines([*statements, *questions[::20]]),
        make_lines(questions),
        make_lines([one for one in data.test if one.target.endswith("?")]),
    )


def run_trial(seed: int, budget: Budget) -> dict[str, Any]:
    statements, questions, test = load_parts()
    base, steps = build_language_model(seed, width=64), budget.steps(80, 15)
    fit_lines(base, statements, steps=budget.steps(250, 40), seed=seed)
    full = copy.deepcopy(base)
    fit_lines(full, questions, steps=steps, seed=seed, rate=2e-3)
    found: dict[str, Any] = {
        "before": evaluate_loss(base, test),
        "whole": evaluate_loss(full, test),
        "ranks": {},
        "trained": {},
    }
    for rank in RANKS:
        lora.attach(base, lora.LoraSettings(rank=rank, alpha=2.0 * rank, targets=TARGETS), seed=seed)
        fit_lines(base, questions, steps=steps, seed=seed, rate=1e-2)
        found["ranks"][str(rank)] = evaluate_loss(base, test)
        found["trained"][str(rank)] = lora.memory_savings(base).trained
        lora.detach(base)
    return {**found, "after_detaching": evaluate_loss(base, test), "total": count(base.config).parameters}


def kept_share(numbers: dict[str, Any], rank: int) -> list[float]:
    return [(one["before"] - one["ranks"][str(rank)]) / (one["before"] - one["whole"]) for one in numbers["runs"]]


def sufficient_ranks(numbers: dict[str, Any]) -> list[int]:
    """Ranks that train at most a quarter of the parameters and keep nine tenths of the gain."""
    return [rank for rank in small_ranks(numbers) if mean(kept_share(numbers, rank)) >= 0.9]


def small_ranks(numbers: dict[str, Any]) -> list[int]:
    first = numbers["runs"][0]
    return [rank for rank in RANKS if first["trained"][str(rank)] <= first["total"] / 4]


def judge(numbers: dict[str, Any]) -> str:
    good = [rank for rank in RANKS if mean(kept_share(numbers, rank)) >= 0.9]
    if len(good) == len(RANKS):
        return HOLDS
    if sufficient_ranks(numbers):
        return PARTLY
    missing = ([share - 0.9 for share in kept_share(numbers, rank)] for rank in small_ranks(numbers))
    return FAILS if all(map(is_refuted, missing)) else NOT_JUDGED


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
    before, full = ([one[key] for one in runs] for key in ("before", "whole"))
    least = min(sufficient_ranks(numbers), default=0)
    return Outcome(
        verdict=judge(numbers),
        numbers={**numbers, "kept": {str(rank): kept_share(numbers, rank) for rank in RANKS}},
        summary=Words(
            f"Loss on questions {format_seeds(before)} before, {format_seeds(full)} after training all {total:,} "
            f"parameters. The adapters keep this share of the gain [and train this share of the parameters]: {shares}. "
            "Without them the model is unchanged.",
            f"疑問文の損失は学習前{format_seeds(before)}、全{total:,}個の数を学習した後{format_seeds(full)}です。その改"
            f"善のうちアダプタが保った割合（と学習した数の割合）は {shares} です。外せばモデルは元のままです。",
        ),
        when=Words(
            f"the rank is at least {least} (of the ranks tried)", f"ランクが{least}以上のとき（ここで試した範囲で）"
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, height=3.4, width=6.4)[0]
    shares, first = outcome.numbers["kept"], outcome.numbers["runs"][0]
    runs = [[shares[str(rank)][seed] for rank in RANKS] for seed in range(len(outcome.numbers["seeds"]))]
    plot_curves(axis, list(range(len(RANKS))), {"kept  維持率": runs}, marker="o", colors=(BLUE,), legend=False)
    axis.axhline(1.0, color=RED, linewidth=0.9)
    axis.annotate(
        "full fine-tuning  全パラメータ", (0, 1.0), xytext=(0, 3), textcoords="offset points", color=RED, fontsize=8
    )
    axis.axhline(0.9, color=GRAY, linewidth=0.9, linestyle="--")
    names = [f"{rank}\n{first['trained'][str(rank)] / first['total']:.1%}" for rank in RANKS]
    axis.set_xticks(range(len(RANKS)), names)
    axis.set(xlabel="rank, and share of trained parameters", ylabel="share of the gain kept")
