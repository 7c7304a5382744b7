"""leak: a language model trained with the causal mask, and one trained without.

with      position t sees 1 … t         and learns to predict t + 1
without   position t sees everything    and can copy t + 1

own loss      on unseen lines, as in training
honest loss   on the same lines with the mask, as in generation
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from chumoku.lab.experiment import HOLDS, PARTLY, Budget, Outcome, Words, refute
from chumoku.lab.figures import BLUE, RED, make_panels, plot_curves
from chumoku.lab.sentence_data import BEGIN, END, join_words, load_sentences
from chumoku.lab.toy_models import build_language_model, evaluate_loss, fit_lines, format_seeds, train_and_test_lines
from chumoku.lab.training import downsample
from chumoku.models.model import DecoderModel


def run_trial(seed: int, steps: int, *, masked: bool) -> dict[str, Any]:
    train, test = train_and_test_lines()
    model = build_language_model(seed, layers=1)
    model.decoder.causal = masked
    curve = fit_lines(model, train, steps=steps, seed=seed)
    own = evaluate_loss(model, test)
    model.decoder.causal = True
    honest = evaluate_loss(model, test)
    return {
        "own": own,
        "honest": honest,
        "writes": [generate_text(model, seed + n) for n in range(3)],
        "curve": downsample(curve),
    }


@torch.no_grad()
def generate_text(model: DecoderModel, seed: int, max_words: int = 12) -> str:
    """A sentence sampled at temperature 0.5."""
    generator, tokens = torch.Generator().manual_seed(seed), [BEGIN]
    while len(tokens) <= max_words and tokens[-1] != END:
        probabilities = model(torch.tensor([tokens])).logits[0, -1].div(0.5).softmax(-1)
        tokens.append(int(torch.multinomial(probabilities, 1, generator=generator)))
    return join_words(load_sentences().target.decode([token for token in tokens[1:] if token != END]))


def judge(numbers: dict[str, Any]) -> str:
    pairs = list(zip(numbers["runs"]["with"], numbers["runs"]["without"], strict=True))
    cheaper = [good["own"] / 2 - bare["own"] for good, bare in pairs]
    worse = [bare["honest"] - good["honest"] for good, bare in pairs]
    seen = [min(margins) > 0 for margins in zip(cheaper, worse, strict=True)]
    return HOLDS if all(seen) else PARTLY if any(seen) else refute(cheaper, worse)


def run(budget: Budget) -> Outcome:
    seeds, steps = list(range(budget.seeds)), budget.steps(250, 100)
    runs = {kind: [run_trial(seed, steps, masked=kind == "with") for seed in seeds] for kind in ("with", "without")}
    numbers: dict[str, Any] = {"seeds": seeds, "steps": steps, "runs": runs}
    shown = {(kind, key): format_seeds([one[key] for one in runs[kind]]) for kind in runs for key in ("own", "honest")}
    good, bad = runs["with"][0]["writes"][0], runs["without"][0]["writes"][0]
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"With the mask: loss {shown['with', 'own']} nats per word. Without: {shown['without', 'own']}, and "
            f"{shown['without', 'honest']} with the future hidden. With the mask, the model generates “{good}”; "
            f"without, “{bad}”.",
            f"マスクあり：損失は1語あたり{shown['with', 'own']}ナット。マスクなし：{shown['without', 'own']}、未来を隠"
            f"すと{shown['without', 'honest']}です。ありでは「{good}」、なしでは「{bad}」と書きました。",
        ),
        when=Words(
            "training is long enough for the model to find the leak", "答えの見つけ方を覚えるまで十分に学習したとき"
        ),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    left, right = make_panels(figure, 2, height=3.4, width=8.0)
    runs = outcome.numbers["runs"]
    points = len(runs["with"][0]["curve"])
    x = [(place + 0.5) * outcome.numbers["steps"] / points for place in range(points)]
    names = {"with": "with mask  マスクあり", "without": "without  マスクなし"}
    plot_curves(left, x, {names[kind]: [one["curve"] for one in runs[kind]] for kind in names}, colors=(BLUE, RED))
    left.set(xlabel="step", ylabel="training loss (nats per word)")
    for place, (kind, color) in enumerate(zip(names, (BLUE, RED), strict=True)):
        for side, key in enumerate(("own", "honest")):
            values = [one[key] for one in runs[kind]]
            at = place + 0.4 * side - 0.2
            right.bar(at, sum(values) / len(values), 0.36, color=color, alpha=1 - 0.45 * (1 - side))
            right.vlines(at, min(values), max(values), color="#1c2733", linewidth=1.0)
            note = f"{sum(values) / len(values):.2f}\n{'as trained' if key == 'own' else 'future hidden'}"
            right.annotate(
                note, (at, max(values)), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7.5
            )
    right.set_xticks(range(2), list(names.values()))
    right.set_ylabel("test loss")
    right.grid(visible=False, axis="x")
    right.margins(y=0.2)
