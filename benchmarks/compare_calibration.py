"""How often a comparison of really trained models is wrong, and how often it finds a planted difference.

    python benchmarks/compare_calibration.py [COMPARISONS]

    equal      two arms that differ only in the draw of their initial weights: "better" should be said in 5 % at most
    planted    the same runs, one arm made worse by the difference that the plan says is found with 80 %
    peeking    the same runs as `equal`, judged by an uncorrected t-test after each seed

Prints one JSON line. A model of width 8 trains for 10 steps; 200 comparisons of two arms with up to 7 seeds take
about five minutes on one core.
"""

from __future__ import annotations

import json
import math
import sys
import time

import numpy as np
import torch

from chumoku.compare.results import Arm, Comparison, Metric, RunResult
from chumoku.compare.verdicts import decide
from chumoku.evaluation.paired import paired_p_value
from chumoku.evaluation.sequential import FIRST_LOOK, detectable_effect, power
from chumoku.lab.toy_models import substitution_loss
from chumoku.lab.training import build_toy, final_loss, fit

SEEDS, STEPS = 7, 10
METRIC = Metric("training loss", "nats", True)


def train(seed: int, initial: int) -> float:
    """The final loss of a small encoder that learns a substitution of words."""
    model = build_toy(initial, kind="encoder", vocabulary=13, width=8, layers=1, heads=1, context=8)
    losses = fit(
        model,
        lambda generator: substitution_loss(model, torch.randint(13, (16, 5), generator=generator)),
        steps=STEPS,
        seed=seed,
        rate=1e-2,
    )
    return final_loss(losses)


def table(values: np.ndarray, seeds: int) -> Comparison:
    """Two arms and their first seeds."""
    arms = tuple(Arm(name, (), (), 0, 0.0, 0, 0.0) for name in ("a", "b"))
    runs = {
        arm.name: tuple(RunResult(seed, float(row[seed]), (), 0.0, 0.0, 0) for seed in range(seeds))
        for arm, row in zip(arms, values, strict=True)
    }
    return Comparison("", "steps", METRIC, arms, runs, {}, 0.0, "seeds")


def compare(values: np.ndarray) -> tuple[bool, int]:
    """Whether "better" is said, looking after each seed; and the seeds it took."""
    for seeds in range(1, SEEDS + 1):
        decision = decide(table(values, seeds), planned_seeds=SEEDS)
        if decision.finished:
            break
    return decision.pairs[0].verdict == "better", seeds


def peek(values: np.ndarray) -> bool:
    return any(paired_p_value(values[0, :n], values[1, :n]) <= 0.05 for n in range(FIRST_LOOK, SEEDS + 1))


def main(comparisons: int) -> None:
    started = time.perf_counter()
    runs = np.empty((comparisons, 2, SEEDS))
    for number in range(comparisons):
        for seed in range(SEEDS):
            for arm in range(2):
                runs[number, arm, seed] = train(1000 * number + seed, 1000 * number + 500 * arm + seed)
        print(f"{number + 1} of {comparisons}", end="\r", file=sys.stderr, flush=True)
    spread = float((runs[:, 0] - runs[:, 1]).std())
    effect = detectable_effect(SEEDS, alpha=0.05)
    planted = runs + spread * effect * np.array([0.0, 1.0])[:, None]
    equal_found, planted_found = ([compare(values) for values in table] for table in (runs, planted))
    result = {
        "benchmark": "compare_calibration",
        "comparisons": comparisons,
        "planned_seeds": SEEDS,
        "runs": runs.size,
        "seconds": round(time.perf_counter() - started, 1),
        "spread_of_differences": round(spread, 5),
        "equal_called_better": sum(found for found, _ in equal_found) / comparisons,
        "allowed": round(0.05 + 2 * math.sqrt(0.05 * 0.95 / comparisons), 4),
        "equal_called_better_by_peeking": sum(peek(values) for values in runs) / comparisons,
        "planted_difference": round(spread * effect, 5),
        "planned_power": round(power(effect, SEEDS, alpha=0.05), 3),
        "planted_found": sum(found for found, _ in planted_found) / comparisons,
        "mean_seeds_of_planted": round(sum(seeds for _, seeds in planted_found) / comparisons, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
