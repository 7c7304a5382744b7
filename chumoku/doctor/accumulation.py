"""Small batches add up to a large one:  a step over (a, b) moves the weights as a step over (a and b together).

The step is the training loop's own (`Run.learn`), with plain gradient descent: what a weight moves by is its gradient.
The parts have different numbers of tokens, since a mean of means would otherwise go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Patient, batch_norms
from chumoku.doctor.tools import borrowed, check_trainable, learning, sample
from chumoku.models.model import Model
from chumoku.training.average import Average
from chumoku.training.distributed import World
from chumoku.training.log import Log
from chumoku.training.loop import Run
from chumoku.training.objectives import Objective, count_labels
from chumoku.training.optimizer import Optimizer
from chumoku.training.recipe import Recipe
from chumoku.training.settings import (
    DataSettings,
    OptimizerSettings,
    ScheduleSettings,
    TokenizerSettings,
    TrainSettings,
)
from chumoku.training.state import State

RATE, APART = 1e-3, 1e-3


def run(patient: Patient) -> Iterator[Finding]:
    model, objective = patient.the_model(), patient.the_objective()
    check_trainable(model)
    if batch_norms(model):
        raise Skip("a batch norm sees each batch by itself")
    batch = sample(patient)
    rows = len(batch["labels"])
    if rows < 2:
        raise Skip("a batch has one row")
    parts = [{name: table[part] for name, table in batch.items()} for part in (slice(0, 1), slice(1, rows))]
    if not all(map(count_labels, parts)):
        raise Skip("there is nothing to learn in one of the parts")
    with borrowed(model), learning(model):
        at_once, in_parts = change(model, objective, [batch]), change(model, objective, parts)
    largest = max(float(moved.abs().max()) for moved in at_once.values())
    apart = {name: float((moved - in_parts[name]).abs().max()) / max(largest, 1e-30) for name, moved in at_once.items()}
    name = max(apart, key=apart.__getitem__)
    if apart[name] > APART:
        yield Finding(
            "accumulation",
            f"Two batches of {count_labels(parts[0])} and {count_labels(parts[1])} tokens move the weights otherwise than both "
            f"together: by {apart[name]:.1%} of the largest change.",
            f"the training step, first in {name}",
            0.97,
            "Divide the sum of all losses once, by the number of all tokens; a mean of means favors short batches.",
        )


def change(model: Model, objective: Objective, batches: list[Batch]) -> dict[str, Tensor]:
    """What one step of the training loop does to each weight, which is then put back."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    step(model, objective).train_step(batches, sum(map(count_labels, batches)))
    moved = {name: parameter.detach() - before[name] for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    return moved


def step(model: Model, objective: Objective) -> Run:
    """A run of one step, of which only what `learn` touches is there."""
    settings = TrainSettings(steps=1, max_grad_norm=0.0)
    recipe = Recipe(
        {},
        TokenizerSettings(),
        DataSettings(kind="embedded"),
        settings,
        OptimizerSettings(kind="sgd", learning_rate=RATE, momentum=0.0, weight_decay=0.0),
        ScheduleSettings(kind="constant"),
    )
    nothing = cast(Any, None)
    return Run(
        recipe,
        nothing,
        model,
        objective,
        objective,
        Optimizer(model, recipe.optimizer),
        Average(model, 0.0),
        nothing,
        state=State(),
        world=World(model.device),
        log=Log(Path(), settings, None),
        checkpoints=nothing,
        result=nothing,
        keep_best=lambda: None,
        samples=list,
    )


CHECK = Check("accumulation", "several small batches add up to a large one", cheap=False, run=run)
