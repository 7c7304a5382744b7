"""Where a run is, in numbers: what a checkpoint holds beside tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class State:
    """Where a run is, in numbers."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # spent training
    best: float | None = None  # the lowest validation loss
    waited: int = 0  # validations since then
    bad: int = 0  # steps in a row that were not applied
    scale: float = 1.0  # of the loss, in fp16
    scale_good: int = 0
    origin: dict[str, Any] = field(default_factory=dict)  # what the run was made of; see `differences`
