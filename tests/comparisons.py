"""Tables of comparisons with given values, without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chumoku.compare.results import Arm, Comparison, Metric, RunResult

LOSS = Metric("validation loss", "nats", True)


def table(values: Mapping[str, Sequence[float | None]], *, metric: Metric = LOSS) -> Comparison:
    """Arms with these values in seeds 0, 1, 2 …; None is a diverged run."""
    arms = tuple(
        Arm(name, (name, "train.steps=431"), ("train.steps 500 → 431",), 7001 + number, 3e9, 13_001, 1e-3)
        for number, name in enumerate(values)
    )
    runs = {name: tuple(_run(seed, value) for seed, value in enumerate(row)) for name, row in values.items()}
    seconds = sum(run.seconds for row in runs.values() for run in row)
    return Comparison("recipes/tiny.toml", "flops", metric, arms, runs, {}, seconds, "seeds")


def _run(seed: int, value: float | None) -> RunResult:
    end = 9.0 if value is None else value
    curve = tuple((step, end + 2.0 / (1 + step)) for step in (0, 101, 211, 431))
    return RunResult(
        seed, None if value is None else float(value), curve[: 2 if value is None else 4], 1.7, 5003.0, 29 << 20
    )
