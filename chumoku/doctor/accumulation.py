"""Gradient accumulation: a step over batches (a, b) changes the weights as a step over one batch (a + b).

The step is the training loop's own (`Run.train_step`) with plain SGD, so the change of a weight is its gradient. The
parts have different numbers of tokens; otherwise a mean of means would not be noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Subject, batch_norms
from chumoku.doctor.tools import check_trainable, restore_after, sample_batch, train_mode
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

LEARNING_RATE, TOLERANCE = 1e-3, 1e-3


def run(subject: Subject) -> Iterator[Finding]:
    model, objective = subject.require_model(), subject.require_objective()
    check_trainable(model)
    if batch_norms(model):
        raise Skip("batch norm depends on the batch")
    batch = sample_batch(subject)
    rows = len(batch["labels"])
    if rows < 2:
        raise Skip("a batch has one row")
    parts = [{name: table[part] for name, table in batch.items()} for part in (slice(0, 1), slice(1, rows))]
    if not all(map(count_labels, parts)):
        raise Skip("one of the parts has no labels")
    with restore_after(model), train_mode(model):
        at_once, in_parts = weight_change(model, objective, [batch]), weight_change(model, objective, parts)
    largest = max(float(moved.abs().max()) for moved in at_once.values())
    differences = {
        name: float((moved - in_parts[name]).abs().max()) / max(largest, 1e-30) for name, moved in at_once.items()
    }
    name = max(differences, key=differences.__getitem__)
    if differences[name] > TOLERANCE:
        yield Finding(
            "accumulation",
            f"Two batches of {count_labels(parts[0])} and {count_labels(parts[1])} tokens change the weights "
            f"differently than one batch of both: by {differences[name]:.1%} of the largest change.",
            f"the training step, first in {name}",
            0.97,
            "Divide the sum of all losses by the number of all tokens; a mean of means favors short batches.",
        )


def weight_change(model: Model, objective: Objective, batches: list[Batch]) -> dict[str, Tensor]:
    """The change of each weight in one training step; the weights are restored afterwards."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    minimal_run(model, objective).train_step(batches, sum(map(count_labels, batches)))
    moved = {name: parameter.detach() - before[name] for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    return moved


def minimal_run(model: Model, objective: Objective) -> Run:
    """A run with only the parts that `train_step` uses."""
    settings = TrainSettings(steps=1, max_grad_norm=0.0)
    recipe = Recipe(
        {},
        TokenizerSettings(),
        DataSettings(kind="embedded"),
        settings,
        OptimizerSettings(kind="sgd", learning_rate=LEARNING_RATE, momentum=0.0, weight_decay=0.0),
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


CHECK = Check("accumulation", "accumulated small batches equal one large batch", cheap=False, run=run)
