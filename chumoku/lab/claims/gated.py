"""gated: whether gates control the flow, and how gated and plain layers compare at equal compute.

plain   GELU(x W_up) W_down                       F = 192, 2·D·F parameters
gated   (GELU(x W₁) ⊙ x W_g) W₂                   F = 128, 3·D·F parameters: the same size and compute

The note calls x W_g the gate; in code this is `up`, and W₁ is `gate`, as in the literature.

held    each gate is fixed at its mean over all words, so it no longer depends on the current word. If gates control
        the flow, the loss must increase.
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from chumoku.lab.experiment import HOLDS, PARTLY, Budget, Outcome, Words, refute
from chumoku.lab.figures import BLUE, OCHRE, RED, make_panels, plot_seed_bars
from chumoku.lab.toy_models import (
    Lines,
    ZeroLayer,
    build_language_model,
    evaluate_loss,
    fit_lines,
    format_seeds,
    train_and_test_lines,
)
from chumoku.lab.training import mean
from chumoku.models.model import DecoderModel
from chumoku.nn import FeedForward

WIDTHS = {"gelu": 192, "geglu": 128, "swiglu": 128}
MIN_INCREASE = 0.1


class FixedFactor(nn.Module):
    """A gated feed-forward layer with one factor fixed: x W_g (the note's gate), or GELU(x W₁)."""

    def __init__(self, inner: FeedForward, *, gates: Tensor | None = None, activated: Tensor | None = None) -> None:
        super().__init__()
        self.inner, self.gates, self.activated = inner, gates, activated

    def forward(self, x: Tensor) -> Tensor:
        activated, gates = factors(self.inner, x)
        product = (activated if self.activated is None else self.activated) * (
            gates if self.gates is None else self.gates
        )
        return self.inner.down(product)  # type: ignore[no-any-return]


def factors(feedforward: FeedForward, x: Tensor) -> tuple[Tensor, Tensor]:
    """GELU(x W₁) and x W_g."""
    return feedforward.activation.function(feedforward.gate(x)), feedforward.up(x)  # type: ignore[misc]


def train_model(kind: str, seed: int, steps: int) -> DecoderModel:
    model = build_language_model(seed, feedforward=kind, feedforward_width=WIDTHS[kind])
    fit_lines(model, train_and_test_lines()[0], steps=steps, seed=seed)
    return model


@torch.no_grad()
def measure_fixed_factors(model: DecoderModel, test: Lines) -> dict[str, float]:
    """Losses with the gates fixed at their means, with the other factor fixed, and with zero output; and the share of
    closed gates."""
    feeding: list[FeedForward] = [block.feedforward for block in model.decoder.blocks]  # type: ignore[misc]
    inputs: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs.append(args[0])

    hooks = [one.register_forward_pre_hook(keep) for one in feeding]
    evaluate_loss(model, test)
    for hook in hooks:
        hook.remove()
    found = [factors(one, x) for one, x in zip(feeding, inputs, strict=True)]
    replacements: dict[str, list[nn.Module]] = {
        "held": [FixedFactor(one, gates=gates.mean((0, 1))) for one, (_, gates) in zip(feeding, found, strict=True)],
        "other_held": [
            FixedFactor(one, activated=activated.mean((0, 1)))
            for one, (activated, _) in zip(feeding, found, strict=True)
        ],
        "nothing": [ZeroLayer() for _ in feeding],
    }
    losses: dict[str, float] = {}
    for name, parts in replacements.items():
        for block, part in zip(model.decoder.blocks, parts, strict=True):
            block.feedforward = part
        losses[name] = evaluate_loss(model, test)
    return {**losses, "closed": mean([(gates.abs() < 0.05).float().mean().item() for _, gates in found])}


def judge(numbers: dict[str, Any]) -> str:
    pairs = zip(numbers["gates"], numbers["loss"]["geglu"], strict=True)
    margins = [one["held"] - loss - MIN_INCREASE for one, loss in pairs]
    rises = [margin >= 0 for margin in margins]
    return HOLDS if all(rises) else PARTLY if any(rises) else refute(margins)


def run(budget: Budget) -> Outcome:
    seeds, steps = list(range(budget.seeds)), budget.steps(200, 30)
    _, test = train_and_test_lines()
    models = {kind: [train_model(kind, seed, steps) for seed in seeds] for kind in WIDTHS}
    loss = {kind: [evaluate_loss(model, test) for model in found] for kind, found in models.items()}
    size = {kind: sum(p.numel() for p in found[0].decoder.blocks.parameters()) for kind, found in models.items()}
    gates = [measure_fixed_factors(model, test) for model in models["geglu"]]
    numbers: dict[str, Any] = {"seeds": seeds, "steps": steps, "loss": loss, "gates": gates, "numbers_in_blocks": size}
    rise, other, none = (
        format_seeds([one[name] - value for one, value in zip(gates, loss["geglu"], strict=True)])
        for name in ("held", "other_held", "nothing")
    )
    closed = [one["closed"] for one in gates]
    return Outcome(
        verdict=judge(numbers),
        numbers=numbers,
        summary=Words(
            f"Fixing the gates xW_g at their means costs {rise} nats per word (the other factor {other}, zero output "
            f"{none}); {format_seeds(closed, '{:.0%}')} of all gates are closed (|g| < 0.05). Loss at equal size: GELU "
            f"{format_seeds(loss['gelu'])}, GEGLU {format_seeds(loss['geglu'])}, SwiGLU "
            f"{format_seeds(loss['swiglu'])}.",
            f"ゲート xW_g を平均に固定すると、損失は1語あたり{rise}ナット増えます（もう一方の因子では{other}、何も流さ"
            f"ないと{none}）。ゲートの{format_seeds(closed, '{:.0%}')}は閉じています（|g|<0.05）。同じ大きさでの損失"
            f"は、GELU {format_seeds(loss['gelu'])}、GEGLU {format_seeds(loss['geglu'])}、SwiGLU "
            f"{format_seeds(loss['swiglu'])} です。",
        ),
        when=Words("only in some of the seeds", "一部のシードのとき"),
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    left, right = make_panels(figure, 2, height=3.3, width=7.8)
    loss, gates = outcome.numbers["loss"], outcome.numbers["gates"]
    kinds = {"GELU\nF=192": loss["gelu"], "GEGLU\nF=128": loss["geglu"], "SwiGLU\nF=128": loss["swiglu"]}
    fixed = {
        "gates free\nゲートあり": loss["geglu"],
        "xW_g fixed\nゲート固定": [one["held"] for one in gates],
        "GELU(xW₁) fixed\nもう一方": [one["other_held"] for one in gates],
    }
    for axis, shown in ((left, kinds), (right, fixed)):
        plot_seed_bars(axis, shown, colors=(BLUE, OCHRE, RED))
        axis.set_ylabel("test loss (nats per word)")
