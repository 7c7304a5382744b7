"""What a comparison has measured: a table of arms × seeds.

arm    one choice of overrides of a recipe, with the size or the number of steps that makes its cost equal
seed   decides initialization, data order and dropout; the same for all arms, so runs with one seed are a pair
"""

from __future__ import annotations

from dataclasses import dataclass

from chumoku.probe.bilingual import Words


@dataclass(frozen=True)
class Arm:
    """One choice, as it is trained."""

    name: str  # the overrides that differ between the arms: "model.position=rotary model.placement=pre"
    overrides: tuple[str, ...]  # all overrides of the recipe, adjustments and learning rate included
    adjusted: tuple[str, ...]  # what was changed for equal cost, in words: "train.steps 500 → 431"
    parameters: int
    flops: float  # of the whole training
    tokens: int  # that one run is trained on
    learning_rate: float


@dataclass(frozen=True)
class RunResult:
    """One arm trained with one seed."""

    seed: int
    value: float | None  # final value of the metric; None if the run diverged
    curve: tuple[tuple[int, float], ...]  # (step, validation loss)
    seconds: float
    tokens_per_second: float
    peak_memory: int  # bytes

    @property
    def diverged(self) -> bool:
        return self.value is None


@dataclass(frozen=True)
class Metric:
    name: str  # "validation loss", "BLEU", "chrF", "recall@1"
    unit: str  # "nats", "BLEU", "%"
    lower_is_better: bool


@dataclass(frozen=True)
class Comparison:
    """All arms and what has been measured so far."""

    recipe: str
    equal: str  # "flops", "parameters", "tokens", "seconds" or "steps"
    metric: Metric
    arms: tuple[Arm, ...]
    runs: dict[str, tuple[RunResult, ...]]  # by the arm's name, in order of seeds
    dropped: dict[str, int]  # arms that were stopped early, with the number of seeds they had then
    seconds: float  # of computation spent, learning-rate search included
    stopped: str  # why it ended: "decided", "budget", "seeds"
    notes: tuple[Words, ...] = ()  # sentences about the runs: ignored keys, learning rates at the edge of the search
