"""Where a run is, in numbers: what a checkpoint holds beside tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chumoku.training.settings import TrainSettings


@dataclass
class State:
    """Where a run is, in numbers."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # spent training
    best: float | None = None  # the validation loss of what best/ holds
    judged: int = 0  # the last step that was validated
    waited: int = 0  # validations since then
    bad: int = 0  # steps in a row that were not applied
    scale: float = 1.0  # of the loss, in fp16
    scale_good: int = 0
    origin: dict[str, Any] = field(default_factory=dict)  # what the run was made of; see `differences`

    def validation_due(self, settings: TrainSettings) -> bool:
        """Whether this step is to be validated and was not."""
        last = self.step == settings.steps
        return self.judged < self.step and (last or self.step % settings.validate_every == 0)

    def out_of_patience(self, settings: TrainSettings) -> bool:
        """Whether validations have brought nothing better for too long."""
        return settings.patience is not None and self.waited >= settings.patience
