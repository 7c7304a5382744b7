"""Every parameter gets a gradient:  ∂loss/∂w ≠ 0 for some element of every parameter.

Two exceptions: a key bias shifts all scores of a query equally, which softmax ignores; and LoRA's A while B is 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Batch, Subject
from chumoku.doctor.tools import join_names, restore_after, sample_batch, train_mode
from chumoku.models.model import Model
from chumoku.nn.lora import Adapted
from chumoku.nn.tap import matches
from chumoku.training.objectives import Objective, default_objective, forward

NATURALLY_ZERO = ("**.key.bias", "**.key.base.bias", "**.adapters.*.a")


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    adapted = any(isinstance(module, Adapted) for module in model.modules())
    parameters = dict(model.named_parameters())
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    # A model opened for inference may be completely frozen, and a model with an adapter should be.
    if frozen and not adapted and len(frozen) < len(parameters):
        yield Finding(
            "gradients",
            f"{len(frozen)} of {len(parameters)} parameters are frozen: they will not be trained.",
            join_names(frozen),
            0.9,
            "Call requires_grad_(True), unless this is intended.",
        )
    batch = sample_batch(subject, rows=6)
    with restore_after(model), train_mode(model):
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        loss(model, subject.objective, batch).backward()  # type: ignore[no-untyped-call]
        largest = {name: 0.0 if p.grad is None else float(p.grad.abs().max()) for name, p in parameters.items()}
    idle = [
        name
        for name, difference in largest.items()
        if difference == 0 and name not in frozen and not any(matches(pattern, name) for pattern in NATURALLY_ZERO)
    ]
    if idle:
        yield Finding(
            "gradients",
            f"{len(idle)} of {len(parameters)} parameters get no gradient: they have no effect on the loss.",
            join_names(idle),
            0.9,
            "Look for detach(), no_grad(), a tensor rebuilt from values, or a module that is never used.",
        )


def loss(model: Model, objective: Objective | None, batch: Batch) -> torch.Tensor:
    if model.config.head_kind != "vector":
        total: torch.Tensor = (objective or default_objective(model, balance_loss=0.01))(batch)
        return total
    hidden = forward(model, batch).hidden
    random = torch.Generator().manual_seed(3)
    return (hidden * torch.randn(hidden.shape, generator=random).to(hidden)).sum()


CHECK = Check("gradients", "every parameter gets a gradient", cheap=True, run=run)
