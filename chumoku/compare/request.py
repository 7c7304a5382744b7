"""What a comparison was asked for: arms, cost, metric and options, checked before anything is written or trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chumoku.compare.arms import Choices, read_arms, read_reference
from chumoku.compare.equal_cost import SIZE_KEYS, Adjust, Equal, choose_adjust
from chumoku.compare.metrics import choose_test_files
from chumoku.errors import UsageError
from chumoku.training.recipe import Recipe

LOSS_TABLES = ("contrastive", "preference")  # their keys change the loss itself, in validation, too
MAX_SEEDS = 1000


@dataclass(frozen=True)
class Options:
    """How choices are compared."""

    seeds: int = 5  # most seeds of each arm
    budget: float | None = None  # seconds of computation of all jobs together, search included
    confidence: float = 0.95
    rates: int = 3  # learning rates of the search; 1: no search
    search_steps: float = 0.5  # share of the steps that the search trains for
    seeds_per_round: int | None = None  # default: 1, or 3 on a GPU, where seeds of an arm train together

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= MAX_SEEDS:
            raise UsageError(f"--seeds {self.seeds} is not from 1 to {MAX_SEEDS:,}.")
        if self.rates not in (1, 3, 5, 7, 9):
            raise UsageError(f"--rates {self.rates} is not 1, 3, 5, 7 or 9: as many below the recipe's as above it.")
        if not 0 < self.search_steps <= 1:
            raise UsageError(f"--search-steps {self.search_steps:g} is not a share above 0, up to 1.")
        if self.budget is not None and not self.budget > 0:
            raise UsageError("--budget must be more than 0 seconds.")
        if not 0.5 <= self.confidence < 1:
            raise UsageError(f"--confidence {self.confidence:g} is not from 0.5 to below 1.")


@dataclass(frozen=True)
class Request:
    """A comparison whose arms and options were checked. Nothing has been written to disk yet."""

    recipe: str  # its name, for people
    choices: Choices
    recipes: Mapping[str, Recipe]  # by the arm's name
    reference: Recipe | None  # whose cost all arms get; None: that of the first arm
    equal: Equal
    adjust: Adjust
    metric: str
    test_files: tuple[str, ...]


def check_request(
    recipe: Recipe | Mapping[str, Any] | Path | str,
    choices: Choices,
    *,
    equal: Equal = "flops",
    adjust: Adjust | None = None,
    metric: str = "loss",
    test_files: Sequence[str] = (),
) -> Request:
    """Check every arm and option; UsageError if something is wrong."""
    by = choose_adjust(equal, adjust)
    recipes = read_arms(recipe, choices)
    if by == "steps" and len({one.train.steps for one in recipes.values()}) > 1:
        raise UsageError(f"train.steps cannot be compared with --equal {equal}, which decides the steps of each arm.")
    key = SIZE_KEYS.get(by)
    if key is not None and len({getattr(one.config(), key) for one in recipes.values()}) > 1:
        raise UsageError(f"model.{key} cannot be compared with --adjust {by}, which decides it for each arm.")
    _check_losses(recipes, metric)
    files = choose_test_files(metric, next(iter(recipes.values())), test_files)
    name = str(recipe) if isinstance(recipe, (str, Path)) else "recipe"
    return Request(name, choices, recipes, read_reference(recipe, choices), equal, by, metric, tuple(files))


def _check_losses(recipes: Mapping[str, Recipe], metric: str) -> None:
    for table in LOSS_TABLES:
        if metric == "loss" and len({json.dumps(one.as_dict().get(table)) for one in recipes.values()}) > 1:
            raise UsageError(
                "[contrastive] changes the loss itself, so losses of these arms cannot be compared. Use "
                "--metric recall."
                if table == "contrastive"
                else f"[{table}] changes the loss itself, so losses of these arms cannot be compared."
            )
