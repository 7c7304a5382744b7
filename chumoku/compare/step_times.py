"""Seconds of a training step of each arm, measured in turns, so that a slow moment of the machine hits all of them.

arm 1, arm 2, …, arm 1, arm 2, …    →    the median of each arm's steps, without its first
"""

from __future__ import annotations

import functools
import hashlib
import json
import statistics
from collections.abc import Mapping
from pathlib import Path

from chumoku.compare.equal_cost import BatchSize, Cost
from chumoku.compare.jobs import one_thread, write_json
from chumoku.errors import DamagedError
from chumoku.safe_files import read_json
from chumoku.training.distributed import choose_device
from chumoku.training.plan import TimedStep
from chumoku.training.recipe import Recipe

TURNS = 8  # steps of each arm; the first only warms up


def measure_step_seconds(recipes: Mapping[str, Recipe], costs: Mapping[str, Cost]) -> dict[str, float]:
    """The seconds of one step of each arm, on random tokens, by its name."""
    steps, times = {}, {}
    device = choose_device(next(iter(recipes.values())).train.device)
    with one_thread(device):
        for name, recipe in recipes.items():
            size: BatchSize = costs[name].batch
            rows = max(1, size.tokens // (size.length * recipe.train.gradient_accumulation))
            step = TimedStep(recipe, costs[name].config, device, length=size.length)
            steps[name] = functools.partial(step, rows)
            times[name] = list[float]()
        for _ in range(TURNS):
            for name, run_step in steps.items():
                passes, update = run_step()
                times[name].append(passes * recipes[name].train.gradient_accumulation + update)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def read_or_measure(folder: Path, recipes: Mapping[str, Recipe], costs: Mapping[str, Cost]) -> dict[str, float]:
    """The seconds of one step of each arm; measured once and then stored, so that the same command gets the same."""
    settings = {name: recipe.as_dict() | {"batch": vars(costs[name].batch)} for name, recipe in recipes.items()}
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    path = folder / "step-times" / f"{key}.json"
    if not path.exists():
        write_json(path, measure_step_seconds(recipes, costs))
    try:
        stored = {name: float(seconds) for name, seconds in read_json(path).items()}
    except (TypeError, ValueError) as error:
        raise DamagedError(f"{path} has no seconds. Remove it; they are then measured again.") from error
    if stored.keys() != recipes.keys() or not all(seconds > 0 for seconds in stored.values()):
        raise DamagedError(f"{path} does not have the seconds of these arms. Remove it; they are then measured again.")
    return stored
