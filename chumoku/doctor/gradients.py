"""Everything learns:  ∂loss/∂w ≠ 0 for some number of every parameter.

A key's bias moves all scores of a query alike, which softmax does not notice: its gradient is 0 by nature. So is that
of a LoRA's A while its B is 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Batch, Patient
from chumoku.doctor.tools import borrowed, learning, named, sample
from chumoku.models.model import Model
from chumoku.nn.lora import Adapted
from chumoku.nn.tap import matches
from chumoku.training.objectives import Objective, forward

NATURALLY_ZERO = ("**.key.bias", "**.key.base.bias", "**.adapters.*.a")


def run(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    adapted = any(isinstance(module, Adapted) for module in model.modules())
    parameters = dict(model.named_parameters())
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    # A model that was opened to be asked may be frozen whole, and one beside an adapter is meant to be.
    if frozen and not adapted and len(frozen) < len(parameters):
        yield Finding(
            "gradients",
            f"{len(frozen)} of {len(parameters)} parameters are frozen: they will never change.",
            named(frozen),
            0.9,
            "Call requires_grad_(True), unless it is meant so.",
        )
    batch = sample(patient, rows=6)
    with borrowed(model), learning(model):
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        loss(model, patient.objective, batch).backward()  # type: ignore[no-untyped-call]
        largest = {name: 0.0 if p.grad is None else float(p.grad.abs().max()) for name, p in parameters.items()}
    idle = [
        name
        for name, moved in largest.items()
        if moved == 0 and name not in frozen and not any(matches(pattern, name) for pattern in NATURALLY_ZERO)
    ]
    if idle:
        yield Finding(
            "gradients",
            f"{len(idle)} of {len(parameters)} parameters get no gradient: nothing that they do reaches the loss.",
            named(idle),
            0.9,
            "Look for a detach(), a no_grad(), a tensor made anew from numbers, or a part that is never used.",
        )


def loss(model: Model, objective: Objective | None, batch: Batch) -> torch.Tensor:
    if model.config.head_kind != "vector":
        total: torch.Tensor = (objective or Objective(model, balance_loss=0.01))(batch)
        return total
    hidden = forward(model, batch).hidden
    random = torch.Generator().manual_seed(3)
    return (hidden * torch.randn(hidden.shape, generator=random).to(hidden)).sum()


CHECK = Check("gradients", "every parameter gets a gradient", cheap=True, run=run)
