"""A step moves everything that learns:  ∂loss/∂w ≠ 0 ⇒ w changes, in one step of the recipe's own optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient
from chumoku.doctor.tools import borrowed, check_trainable, learning, named, sample, size
from chumoku.nn.lora import Adapted
from chumoku.training.objectives import count_labels
from chumoku.training.optimizer import Optimizer
from chumoku.training.settings import OptimizerSettings

LARGEST, RATE = 60_000_000, 1e-3
SMALL = 1e-9  # of the largest gradient: what is below may be rounding


def run(patient: Patient) -> Iterator[Finding]:
    model, objective = patient.the_model(), patient.the_objective()
    check_trainable(model)
    if size(model) > LARGEST:
        raise Skip("this model is too large to be trained here, even for one step")
    batch = sample(patient)
    settings = OptimizerSettings() if patient.recipe is None else patient.recipe.optimizer
    adapted = any(isinstance(module, Adapted) for module in model.modules())
    with borrowed(model), learning(model):
        if not adapted:
            for parameter in model.parameters():
                parameter.requires_grad_(parameter.is_floating_point())
        optimizer = Optimizer(model, settings)
        (objective(batch) / max(1, count_labels(batch))).backward()
        moving = {name: (p, float(p.grad.abs().max())) for name, p in model.named_parameters() if p.grad is not None}
        before = {name: parameter.detach().clone() for name, (parameter, _) in moving.items()}
        optimizer.step(RATE)
        largest = max((gradient for _, gradient in moving.values()), default=0.0)
        left = [
            name
            for name, (parameter, gradient) in moving.items()
            if gradient > SMALL * largest and bool((parameter.detach() == before[name]).all())
        ]
    if left:
        yield Finding(
            "optimizer",
            f"{len(left)} of {len(moving)} parameters have a gradient, and a step of {settings.kind} leaves them as "
            "they were.",
            named(left),
            0.97,
            "Give the optimizer every parameter: look at how they are sorted into groups.",
        )


CHECK = Check("optimizer", "a step moves every parameter", cheap=False, run=run)
