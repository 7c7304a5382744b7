"""Learning rate schedules: the learning rate divided by its peak, as a pure function of the step.

    inverse_sqrt   min(s / w, √(w / s)) with w warm-up steps, as in the 2017 paper, whose peak is D^{-1/2} · w^{-1/2}
    cosine         linear warm-up over w steps, then a half cosine down to `min_ratio` at the last step
    wsd            linear warm-up over w steps, constant, then linear down to `min_ratio` over the last `decay` steps
    constant       linear warm-up over w steps, then constant

Steps count from 1, so the learning rate of the first step is not 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from chumoku.errors import UsageError

Kind = Literal["inverse_sqrt", "cosine", "wsd", "constant"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Schedule:
    kind: Kind = "cosine"
    warmup: int = 0
    steps: int = 1  # of the whole run; not used by inverse_sqrt and constant
    decay: int = 0  # wsd: steps of the final decrease
    min_ratio: float = 0.0  # cosine and wsd: final learning rate divided by the peak

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"There is no schedule '{self.kind}'; choose {', '.join(KINDS)}.")
        if self.steps < 1 or self.warmup < 0 or self.decay < 0 or not 0 <= self.min_ratio <= 1:
            raise UsageError("A schedule needs at least 1 step, warmup and decay from 0, and min_ratio from 0 to 1.")
        if self.kind in ("cosine", "wsd") and self.warmup + self.decay > self.steps:
            raise UsageError(
                f"{self.warmup} warm-up steps and {self.decay} decay steps do not fit into a run of {self.steps} "
                "steps. Shorten them, or train longer."
            )

    def __call__(self, step: int) -> float:
        """The learning rate of a step (from 1 on) divided by the peak."""
        if step < 1:
            raise UsageError(f"Steps count from 1; step {step} does not exist.")
        if self.kind == "inverse_sqrt":
            warmup = max(1, self.warmup)
            return min(step / warmup, math.sqrt(warmup / step))
        if step <= self.warmup:
            return step / self.warmup
        if self.kind == "constant":
            return 1.0
        if self.kind == "cosine":
            done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
            return self.min_ratio + (1 - self.min_ratio) * (1 + math.cos(math.pi * done)) / 2
        left = min(1.0, max(0, self.steps - step) / max(1, self.decay))
        return self.min_ratio + (1 - self.min_ratio) * left


def paper_peak(width: int, warmup: int) -> float:
    """The peak of the 2017 paper's learning rate D^{-1/2} · min(s^{-1/2}, s · w^{-3/2}), reached at s = w."""
    return 1 / math.sqrt(width * warmup)
