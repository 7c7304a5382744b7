"""An optimizer step updates every parameter:  ∂loss/∂w ≠ 0 ⇒ w changes in one step of the recipe's optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject
from chumoku.doctor.tools import check_trainable, count_parameters, join_names, restore_after, sample_batch, train_mode
from chumoku.nn.lora import Adapted
from chumoku.training.objectives import count_labels
from chumoku.training.optimizer import Optimizer
from chumoku.training.settings import OptimizerSettings

LARGEST, LEARNING_RATE = 60_000_000, 1e-3
SMALL = 1e-9  # gradients below this share of the largest may be rounding errors


def run(subject: Subject) -> Iterator[Finding]:
    model, objective = subject.require_model(), subject.require_objective()
    check_trainable(model)
    if count_parameters(model) > LARGEST:
        raise Skip("this model is too large for a training step here")
    batch = sample_batch(subject)
    settings = OptimizerSettings() if subject.recipe is None else subject.recipe.optimizer
    adapted = any(isinstance(module, Adapted) for module in model.modules())
    with restore_after(model), train_mode(model):
        if not adapted:
            for parameter in model.parameters():
                parameter.requires_grad_(parameter.is_floating_point())
        optimizer = Optimizer(model, settings)
        (objective(batch) / max(1, count_labels(batch))).backward()
        trainable = {name: (p, float(p.grad.abs().max())) for name, p in model.named_parameters() if p.grad is not None}
        before = {name: parameter.detach().clone() for name, (parameter, _) in trainable.items()}
        optimizer.step(LEARNING_RATE)
        largest = max((gradient for _, gradient in trainable.values()), default=0.0)
        unchanged = [
            name
            for name, (parameter, gradient) in trainable.items()
            if gradient > SMALL * largest and bool((parameter.detach() == before[name]).all())
        ]
    if unchanged:
        yield Finding(
            "optimizer",
            f"{len(unchanged)} of {len(trainable)} parameters have a gradient, but a step of {settings.kind} does not "
            "change them.",
            join_names(unchanged),
            0.97,
            "Pass every parameter to the optimizer: check how the parameter groups are built.",
        )


CHECK = Check("optimizer", "an optimizer step updates every parameter", cheap=False, run=run)
