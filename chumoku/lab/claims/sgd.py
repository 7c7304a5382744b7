"""θ ← θ − α ∇L(θ)"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words, format_number
from chumoku.lab.figures import BLUE, make_panels
from chumoku.nn.feedforward import FeedForward

RATE, STEPS = 0.1, 50


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 64, 5, generator=generator)
    ours, theirs = _layer(1), _layer(1)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=RATE)
    losses, worst = [], 0.0
    for _ in range(STEPS):
        loss = F.mse_loss(ours(x), y)
        gradients = torch.autograd.grad(loss, list(ours.parameters()))
        with torch.no_grad():
            for theta, gradient in zip(ours.parameters(), gradients, strict=True):
                theta.copy_(theta - RATE * gradient)
        optimizer.zero_grad()
        F.mse_loss(theirs(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        pairs = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
        worst = max(worst, *(float((a - b).abs().max()) for a, b in pairs))
        losses.append(loss.item())
    numbers: dict[str, Any] = {"worst": worst, "losses": losses, "rate": RATE, "seeds": [0, 1]}
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"After {STEPS} steps the parameters differ by at most {format_number(worst)}; the loss decreased from "
            f"{losses[0]:.3f} to {losses[-1]:.3f}.",
            f"{STEPS} 歩後のパラメータの差は最大 {format_number(worst)} で、損失は {losses[0]:.3f} から "
            f"{losses[-1]:.3f} に減りました。",
        ),
    )


def _layer(seed: int) -> FeedForward:
    """A small feed-forward layer with seeded weights."""
    layer, generator = FeedForward(5, 7, kind="relu"), torch.Generator().manual_seed(seed)
    for theta in layer.parameters():
        torch.nn.init.normal_(theta, std=0.4, generator=generator)
    return layer


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if numbers["worst"] <= 1e-6 and numbers["losses"][-1] < numbers["losses"][0] else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=5.6, height=3.0)[0]
    axis.plot(outcome.numbers["losses"], color=BLUE, marker="o", markersize=2.5)
    axis.set(xlabel="step 更新回数", ylabel="L(θ)")
