"""The progress of a run: what a checkpoint stores besides tensors. `training.resume` continues from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chumoku.training.settings import TrainSettings


@dataclass
class State:
    """The progress of a run, stored as state.json."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # spent training
    best: float | None = None  # validation loss of the weights in best/
    judged: int = 0  # the last validated step
    waited: int = 0  # validations since the best one
    bad: int = 0  # non-finite steps in a row
    scale: float = 1.0  # loss scale of fp16
    scale_good: int = 0  # finite steps since the scale changed
    origin: dict[str, Any] = field(default_factory=dict)  # settings and data that must not change; see resume.origin

    def validation_due(self, settings: TrainSettings) -> bool:
        """Whether this step should be validated and has not been."""
        last = self.step == settings.steps
        return self.judged < self.step and (last or self.step % settings.validate_every == 0)

    def is_last(self, settings: TrainSettings) -> bool:
        """Whether no step is left to train."""
        return self.step == settings.steps or self.out_of_patience(settings)

    def out_of_patience(self, settings: TrainSettings) -> bool:
        """Whether train.patience validations have passed without a new best."""
        return settings.patience is not None and self.waited >= settings.patience
