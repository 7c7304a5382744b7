"""Schedules: the learning rate as a pure function of the step, as a share of its peak.

    inverse_sqrt   min(s / w, √(w / s)), w steps of warm-up: the 2017 paper's, whose peak is D^{-1/2} · w^{-1/2}
    cosine         up over w steps, then down a half cosine to `min_ratio` at the last step
    wsd            up over w steps, level, then straight down to `min_ratio` over the last `decay` steps
    constant       up over w steps, then level

Steps count from 1: the rate of the first step is not 0.
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
    steps: int = 1  # of the whole run; inverse_sqrt and constant do not ask
    decay: int = 0  # wsd: steps of the descent
    min_ratio: float = 0.0  # the share of the peak at the end of cosine and wsd

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"There is no schedule '{self.kind}'; choose {', '.join(KINDS)}.")
        if self.steps < 1 or self.warmup < 0 or self.decay < 0 or not 0 <= self.min_ratio <= 1:
            raise UsageError("A schedule has 1 step or more, no negative warm-up or decay, and min_ratio from 0 to 1.")
        if self.kind in ("cosine", "wsd") and self.warmup + self.decay > self.steps:
            raise UsageError(
                f"{self.warmup} steps of warm-up and {self.decay} of decay do not fit into a run of {self.steps}. "
                "Shorten them, or train longer."
            )

    def __call__(self, step: int) -> float:
        """The share of the peak rate at a step, from 1 on."""
        if step < 1:
            raise UsageError(f"Steps count from 1, and {step} was asked for.")
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
    """The peak of the 2017 paper's rate D^{-1/2} · min(s^{-1/2}, s · w^{-3/2}), reached at s = w."""
    return 1 / math.sqrt(width * warmup)
