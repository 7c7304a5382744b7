"""Equal cost: the steps or the size of each arm are changed until its cost is that of the recipe.

    FLOPs       3 · forward FLOPs per token (models/count.py) · tokens per step · steps
    tokens      tokens per step · steps
    seconds     measured seconds per step · steps
    parameters  of the model

Steps change in proportion, and warm-up and decay with them. A width changes to the nearest one that the model allows, a
feed-forward width to the nearest number. Nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from chumoku.config import parse_settings, settings_to_dict
from chumoku.errors import ConfigError, UsageError
from chumoku.models.config import ModelConfig
from chumoku.models.count import count
from chumoku.training.recipe import Recipe, apply_changes, read_recipe

if TYPE_CHECKING:
    from chumoku.training.datasets import TrainingData

Equal = Literal["flops", "parameters", "tokens", "seconds", "steps"]
Adjust = Literal["steps", "width", "feedforward"]
ADJUSTABLE: dict[Equal, tuple[Adjust, ...]] = {  # what can be changed for it, the default first
    "flops": ("steps", "width", "feedforward"),
    "parameters": ("feedforward", "width"),
    "tokens": ("steps",),
    "seconds": ("steps",),
    "steps": ("steps",),
}
SIZE_KEYS = {"width": "width", "feedforward": "feedforward_width"}  # in [model]
TOKEN_KEYS = ("tokens", "source", "target", "anchor", "positive", "negative")  # of a batch: what a model reads
COUNTED_BATCHES = 16
LARGEST_FACTOR = 8  # by which a width may grow
LARGEST_ERROR = 0.1  # relative; a larger remaining difference is refused


@dataclass(frozen=True)
class BatchSize:
    tokens: int  # of a step
    length: int  # of a row


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a model."""

    config: ModelConfig
    batch: BatchSize
    steps: int
    seconds_a_step: float = 0.0  # 0 unless measured

    @property
    def parameters(self) -> int:
        return count(self.config).parameters

    @property
    def tokens(self) -> int:
        return self.batch.tokens * self.steps

    @property
    def flops(self) -> float:
        return float(count(self.config, length=self.batch.length).training_flops * self.tokens)

    def value(self, equal: Equal) -> float:
        if equal == "seconds":
            return self.seconds_a_step * self.steps
        return float(getattr(self, equal))


@dataclass(frozen=True)
class Adjusted:
    """A recipe at equal cost, and what was changed: as overrides and in words."""

    recipe: Recipe
    cost: Cost
    overrides: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def measure_batches(recipe: Recipe, data: TrainingData) -> BatchSize:
    """The mean number of tokens of a step, padding included, and of a row, in batches spread over the first epoch."""
    total = len(data.train)
    places = sorted({index * total // COUNTED_BATCHES for index in range(COUNTED_BATCHES)})
    batches = [data.train.batch(0, place) for place in places]
    sides = [batch[key] for batch in batches for key in TOKEN_KEYS if key in batch]
    stacks = 2 if data.config.kind == "encoder-decoder" else 1  # source and target are one token of `count`
    tokens = sum(side.numel() for side in sides) / stacks / len(places)
    rows = sum(side.numel() // side.shape[-1] for side in sides) / stacks / len(places)
    return BatchSize(round(recipe.train.gradient_accumulation * tokens), max(1, round(tokens / rows)))


def choose_adjust(equal: Equal, adjust: Adjust | None) -> Adjust:
    """What is changed for equal cost; UsageError if it has no influence on it."""
    if equal not in ADJUSTABLE:
        raise UsageError(f"--equal {equal} is unknown; choose {', '.join(ADJUSTABLE)}.")
    if adjust is not None and adjust not in get_args(Adjust):
        raise UsageError(f"--adjust {adjust} is unknown; choose {', '.join(get_args(Adjust))}.")
    fits = ADJUSTABLE[equal]
    if adjust is not None and adjust not in fits:
        raise UsageError(f"--equal {equal} is reached with --adjust {' or '.join(fits)}, not with {adjust}.")
    return adjust or fits[0]


def adjust_cost(recipe: Recipe, cost: Cost, *, target: Cost, equal: Equal, by: Adjust) -> Adjusted:
    """Change an arm's steps or size until its cost is that of `target`, as nearly as its sizes allow."""
    if cost.value(equal) == target.value(equal):
        return Adjusted(recipe, cost)
    if by == "steps":
        return set_steps(recipe, cost, round(cost.steps * target.value(equal) / cost.value(equal)))
    key = SIZE_KEYS[by]
    if recipe.init is not None:
        raise UsageError(f"model.{key} is that of model.init and cannot change. Use --equal flops --adjust steps.")
    before = cost.config.width if by == "width" else cost.config.hidden
    sizes = _widths(cost.config) if by == "width" else _feedforward_widths(cost, target, equal)
    costs = {size: changed for size in sizes if (changed := _with_size(cost, key, size)) is not None}
    best = min(costs, key=lambda size: abs(costs[size].value(equal) - target.value(equal)))
    error = costs[best].value(equal) / target.value(equal) - 1
    if abs(error) > LARGEST_ERROR:
        other = "feedforward" if by == "width" else "width"
        raise UsageError(
            f"model.{key} {best:,} is the nearest that is possible, and the {equal} still differ by {error:+.0%}. Try "
            f"--adjust {other}."
        )
    if best == before:
        return Adjusted(recipe, cost)
    changes = (f"model.{key}={best}",)
    rest = f" ({equal} {error:+.1%})" if abs(error) >= 5e-4 else ""
    words = f"model.{key} {before:,} → {best:,}{rest}"
    return Adjusted(read_recipe(apply_changes(recipe.as_dict(), changes)), costs[best], changes, (words,))


def set_steps(recipe: Recipe, cost: Cost, steps: int) -> Adjusted:
    """The recipe with another number of steps; warm-up and decay change in proportion."""
    steps = max(1, steps)
    before = {"train.steps": recipe.train.steps}
    before |= {f"schedule.{key}": getattr(recipe.schedule, key) for key in ("warmup", "decay")}
    after = {key: value * steps // recipe.train.steps for key, value in before.items()}
    changed = [key for key in before if before[key] != after[key]]
    changes = tuple(f"{key}={after[key]}" for key in changed)
    words = tuple(f"{key} {before[key]:,} → {after[key]:,}" for key in changed)
    read = read_recipe(apply_changes(recipe.as_dict(), changes)) if changes else recipe
    return Adjusted(read, replace(cost, steps=steps), changes, words)


def _with_size(cost: Cost, key: str, size: int) -> Cost | None:
    """The cost with another size; None if the model does not allow it."""
    try:
        return replace(cost, config=parse_settings(ModelConfig, {**settings_to_dict(cost.config), key: size}))
    except ConfigError:
        return None


def _widths(config: ModelConfig) -> Iterable[int]:
    step = 1 if config.head_width is not None else config.heads
    return range(step, LARGEST_FACTOR * config.width + 1, step)


def _feedforward_widths(cost: Cost, target: Cost, equal: Equal) -> Iterable[int]:
    """The two numbers around the exact solution: parameters and FLOPs are linear in the feed-forward width."""
    here, more = cost.config.hidden, _with_size(cost, "feedforward_width", cost.config.hidden + 1)
    slope = 0.0 if more is None else more.value(equal) - cost.value(equal)
    exact = here + (target.value(equal) - cost.value(equal)) / slope if slope else here
    return sorted({max(1, int(exact)), max(1, int(exact) + 1)})
