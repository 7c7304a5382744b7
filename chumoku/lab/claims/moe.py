"""moe: a mixture of experts compared with feed-forward layers of the same compute and of the same size.

    mixture        8 experts of 32, each token uses 2        64 of 256 units active
    same compute   one feed-forward of 64
    same size      one feed-forward of 256                   four times the compute

All memorize random facts (`toy_models.make_facts`), so capacity decides. Specialization is measured by the mutual
information MI(relation; expert) and MI(subject; expert). Every token uses two different experts, so this is at most
the entropy of the choice minus one bit.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, GRAY, GREEN, OCHRE, make_panels, plot_seed_bars
from chumoku.lab.toy_models import WIDTH, FactModel, Facts, format_seeds, make_facts
from chumoku.lab.training import fit, fixed_seed, mean
from chumoku.nn import FeedForward, MixtureOfExperts, RouterLosses, record

EXPERTS, CHOSEN, HIDDEN = 8, 2, 32
SUBJECTS, RELATIONS, OBJECTS = 128, 32, 64
NAMES = {"same compute": "FFN 64\n同じ計算量", "mixture": "MoE 8×32, 2\n専門家", "same size": "FFN 256\n同じ大きさ"}


def build_feedforward(kind: str) -> FeedForward | MixtureOfExperts:
    if kind != "mixture":
        return FeedForward(WIDTH, CHOSEN * HIDDEN if kind == "same compute" else EXPERTS * HIDDEN, bias=False)
    mixture = MixtureOfExperts(WIDTH, HIDDEN, experts=EXPERTS, per_token=CHOSEN, kind="relu")
    for matrices, reads in ((mixture.experts.up, WIDTH), (mixture.experts.down, HIDDEN)):
        torch.nn.init.uniform_(matrices, -(reads**-0.5), reads**-0.5)  # like nn.Linear
    return mixture


def count_products(kind: str) -> int:
    """Multiplications per token: two matrices for the active units, and the router."""
    active = EXPERTS * HIDDEN if kind == "same size" else CHOSEN * HIDDEN
    return 2 * WIDTH * active + (EXPERTS * WIDTH if kind == "mixture" else 0)


def run_trial(kind: str, seed: int, steps: int) -> dict[str, Any]:
    known = make_facts(seed, subjects=SUBJECTS, relations=RELATIONS, objects=OBJECTS)
    with fixed_seed(seed):
        model = FactModel(known, build_feedforward(kind), seed)

    def loss(generator: torch.Generator) -> Tensor:
        part, losses = known.sample(generator), RouterLosses()
        value = F.cross_entropy(model(part, losses), part.answer)
        return value + 0.01 * losses.balance if kind == "mixture" else value

    before = expert_usage(model, known) if kind == "mixture" else {}
    began = time.process_time()
    fit(model, loss, steps=steps, seed=seed, rate=1e-2, warmup=steps // 10, cosine=True)
    seconds = time.process_time() - began
    found: dict[str, Any] = {"recalled": model.count_recalled(known), "milliseconds_a_step": 1000 * seconds / steps}
    return {**found, **expert_usage(model, known), "before": before["bits"]} if kind == "mixture" else found


def expert_usage(model: FactModel, known: Facts) -> dict[str, Any]:
    """Share of choices per expert, overall and by relation, and the mutual information with parts of the fact."""
    with torch.no_grad(), record(model, "block.feedforward.chosen") as tape:
        model(known)
    chosen = tape["block.feedforward.chosen"][:, 1]
    tables = {"relation": count_choices(known.relation, chosen), "subject": count_choices(known.subject, chosen)}
    table = tables["relation"]
    use = table.sum(0) / table.sum()
    return {
        "use": use.tolist(),
        "by_relation": (table / table.sum(1, keepdim=True)).tolist(),
        "bits": {name: mutual_information(found) for name, found in tables.items()},
        "most_bits": -(use * use.log2())[use > 0].sum().item() - math.log2(CHOSEN),
    }


def count_choices(part: Tensor, chosen: Tensor) -> Tensor:
    """How often each expert was chosen for each value of `part`."""
    table = torch.zeros(int(part.max()) + 1, EXPERTS)
    table.index_put_((part[:, None].expand_as(chosen), chosen), torch.ones(chosen.shape), accumulate=True)
    return table


def mutual_information(table: Tensor) -> float:
    """Mutual information of rows and columns, in bits."""
    joint = table / table.sum()
    apart = joint.sum(1, keepdim=True) * joint.sum(0)
    return (joint * (joint / apart).log2())[joint > 0].sum().item()


def judge(numbers: dict[str, Any]) -> str:
    size, cost, runs = numbers["size"], numbers["products"], numbers["runs"]
    cheap = cost["mixture"] <= 1.1 * cost["same compute"] and size["mixture"] >= 3 * size["same compute"]
    pairs = zip(runs["mixture"], runs["same compute"], strict=True)
    more = cheap and all(mixed["recalled"] > plain["recalled"] for mixed, plain in pairs)
    parts = (more, all(is_specialized(one) for one in runs["mixture"]))
    return HOLDS if all(parts) else PARTLY if any(parts) else FAILS


def is_specialized(one: dict[str, Any]) -> bool:
    """Whether a part of the fact has half of the possible information on the expert, and more than before training."""
    return any(bits >= 0.5 * one["most_bits"] and bits > one["before"][name] for name, bits in one["bits"].items())


def run(budget: Budget) -> Outcome:
    seeds, steps = list(range(budget.seeds)), budget.steps(300, 40)
    runs = {kind: [run_trial(kind, seed, steps) for seed in seeds] for kind in NAMES}
    with torch.device("meta"):
        size = {kind: sum(p.numel() for p in build_feedforward(kind).parameters()) for kind in NAMES}
    cost = {kind: count_products(kind) for kind in NAMES}
    total = SUBJECTS * RELATIONS
    numbers: dict[str, Any] = {
        "seeds": seeds,
        "steps": steps,
        "facts": total,
        "size": size,
        "products": cost,
        "runs": runs,
    }
    counts = {kind: format_seeds([one["recalled"] for one in found], "{:,.0f}") for kind, found in runs.items()}
    speed = {
        kind: format_seeds([one["milliseconds_a_step"] for one in found], "{:.1f}") for kind, found in runs.items()
    }
    bits, before = (
        {part: format_seeds([one[when][part] for one in runs["mixture"]]) for part in ("relation", "subject")}
        for when in ("bits", "before")
    )
    max_bits = mean([one["most_bits"] for one in runs["mixture"]])
    sizes = f"{size['mixture']:,} / {size['same compute']:,}", f"{cost['mixture']:,} / {cost['same compute']:,}"
    recalled = f"{counts['mixture']} / {counts['same compute']} / {counts['same size']}"
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"Parameters {sizes[0]}, multiplications per token {sizes[1]} (mixture / same compute). Recalled of "
            f"{total:,}: {recalled} (mixture / same compute / same size). Mutual information with the expert, of at "
            f"most {max_bits:.2f} bits: relation {bits['relation']} (before training {before['relation']}), subject "
            f"{bits['subject']} ({before['subject']}). On a CPU a step took {speed['mixture']} against "
            f"{speed['same compute']} ms, including the sorting of tokens by expert.",
            f"パラメータ数は{sizes[0]}、1トークンの乗算は{sizes[1]}（MoE／同じ計算量）。{total:,}件のうち思い出せたのは"
            f"{recalled}（MoE／同じ計算量／同じ大きさ）です。専門家について分かる最大{max_bits:.2f}ビットのうち、関係か"
            f"らは{bits['relation']}（学習前は{before['relation']}）、主語からは{bits['subject']}（学習前は"
            f"{before['subject']}）です。CPUでは1ステップ{speed['mixture']}ミリ秒対{speed['same compute']}ミリ秒で、乗"
            "算ではない振り分けの時間も含みます。",
        ),
        when=Words(
            "only parameters and compute are considered; by this rule, the experts do not specialize",
            "パラメータと計算量だけを問うとき（専門家ごとのタスクの分担は、この規則では認められません）",
        )
        if not all(is_specialized(one) for one in runs["mixture"])
        else Words(
            "only the specialization of experts is considered, not compute",
            "専門家ごとのタスクの分担だけを問うとき（計算量については言えません）",
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    left, right = make_panels(figure, 2, height=3.6, width=8.6)
    recalled = {NAMES[kind]: [one["recalled"] for one in outcome.numbers["runs"][kind]] for kind in NAMES}
    costs = [f"{outcome.numbers['products'][kind]:,} ×" for kind in NAMES]
    plot_seed_bars(left, recalled, colors=(OCHRE, BLUE, GREEN), notes=costs, note_color=GRAY)
    left.tick_params(axis="x", labelsize=8)
    left.set_ylabel(f"facts of {outcome.numbers['facts']:,} (above: multiplications per token)")
    shares = outcome.numbers["runs"]["mixture"][0]["by_relation"]
    picture = right.imshow(shares, cmap="Blues", vmin=0, aspect="auto")
    right.grid(visible=False)
    right.set(xlabel="expert  専門家", ylabel="relation  関係")
    right.set_xticks(
        range(EXPERTS),
        [f"{i}\n{share:.0%}" for i, share in enumerate(outcome.numbers["runs"]["mixture"][0]["use"])],
        fontsize=7,
    )
    figure.colorbar(picture, ax=right, label="share of choices", shrink=0.85)
