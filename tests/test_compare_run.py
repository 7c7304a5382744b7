"""Runs of a comparison: rounds, kill and resume, runs that diverge, equal batches, processes, Ray and Slurm."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rich.console import Console

from chumoku.compare import jobs
from chumoku.compare.results import Comparison
from chumoku.compare.run import Options, compare_choices
from chumoku.errors import UsageError
from chumoku.training.datasets import prepare
from chumoku.training.run import train

POSITIONS = ["model.position=none,learned"]
OPTIONS = Options(seeds=3, rates=1)


class Decision(NamedTuple):
    active: tuple[str, ...]
    finished: bool


def never_decided(comparison: Comparison, **_: Any) -> Decision:
    return Decision(tuple(arm.name for arm in comparison.arms), False)


@pytest.fixture(scope="module", autouse=True)
def fast_runs() -> Iterator[None]:
    """Runs without a picture of the loss and without a measured peak, which take longer than the training here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chumoku.training.run.draw_loss_curve", lambda *_: None)
        patch.setattr("chumoku.training.run.measure_matmul_flops", lambda *_: 1e9)
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{n} times {n + 2} is {n * (n + 2)}.\n" for n in range(101)), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def recipe(text: str) -> dict[str, Any]:
    return {
        "model": {
            "kind": "decoder",
            "width": 26,
            "layers": 1,
            "heads": 2,
            "context": 19,
            "position": "learned",
            "dropout": {"sublayer": 0.1},
        },
        "tokenizer": {"kind": "character"},
        "data": {"files": text, "documents": "file", "validation_share": 0.1},
        "train": {"steps": 7, "batch_size": 3, "validate_every": 5, "save_every": 2, "device": "cpu"},
        "optimizer": {"learning_rate": 0.01},
    }


def compare(
    recipe: dict[str, Any], choices: list[str], out: Path, decide: Any = never_decided, **changes: Any
) -> Comparison:
    arguments = {"options": OPTIONS, "processes": 1, **changes}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chumoku.compare.rounds.decide", decide)
        patch.setattr("chumoku.compare.rounds.FIRST_LOOK", 1)
        return compare_choices(recipe, choices, out=out, **arguments).comparison


def values(comparison: Comparison) -> dict[str, list[float | None]]:
    return {name: [result.value for result in results] for name, results in comparison.runs.items()}


@pytest.fixture(scope="module")
def finished(recipe: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    """The folder and the result of a comparison that nothing interrupted."""
    out = tmp_path_factory.mktemp("compare")
    return out, compare(recipe, POSITIONS, out)


def test_a_comparison_has_a_run_for_every_arm_and_seed(
    finished: tuple[Path, Comparison], recipe: dict[str, Any], tmp_path: Path
) -> None:
    out, found = finished
    assert [arm.name for arm in found.arms] == ["model.position=none", "model.position=learned"]
    assert [[result.seed for result in results] for results in found.runs.values()] == [[0, 1, 2]] * 2
    assert found.stopped == "seeds"
    result = found.runs["model.position=learned"][1]
    assert [step for step, _ in result.curve] == [5, 7]
    assert result.curve[-1][1] == result.value
    assert result.tokens_per_second > 0
    assert result.peak_memory > 1 << 20
    assert not list((out / "work").iterdir())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = train(recipe, [*found.arms[1].overrides, "train.seed=1", f"train.out={tmp_path}"], console=quiet(tmp_path))
    torch.set_num_threads(threads)
    assert alone.best_loss == result.value  # the overrides of the table give the same run


def quiet(folder: Path) -> Console:
    return Console(file=(folder / "console.txt").open("w", encoding="utf-8"))


class KilledError(BaseException):
    """Ends a process at once, without its own clean-up."""


def test_killed_anywhere_the_same_call_gives_the_same_answer(
    finished: tuple[Path, Comparison], recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    limit = 2 * (7 + 2) + 4  # events: the third run is killed after its second checkpoint

    def train_until_killed(*arguments: Any, **options: Any) -> Any:
        def count(event: Any) -> None:
            steps.append(event.step)
            if event.loss is not None and len(steps) > limit:
                raise KilledError

        options["callbacks"] = [*options["callbacks"], count]
        return train(*arguments, **options)

    monkeypatch.setattr(jobs, "train", train_until_killed)
    with pytest.raises(KilledError):
        compare(recipe, POSITIONS, tmp_path)
    done = {path.name for path in (tmp_path / "results").iterdir()}
    assert 0 < len(done) < 6
    steps.clear()
    limit = 1000
    again = compare(recipe, POSITIONS, tmp_path)
    assert values(again) == values(finished[1])
    assert [[one.curve for one in results] for results in again.runs.values()] == [
        [one.curve for one in results] for results in finished[1].runs.values()
    ]
    remaining = 6 - len(done)
    assert steps.count(1) == remaining - 1  # finished runs are not repeated, and the killed one continues
    assert steps.count(7) >= remaining


def test_a_run_that_always_diverges_is_a_result(recipe: dict[str, Any], tmp_path: Path) -> None:
    arms = ["", "optimizer.learning_rate=1000 optimizer.weight_decay=1e12"]
    found = compare(recipe, [], tmp_path, arms=arms, options=Options(seeds=2))
    healthy, diverged = found.runs.values()
    assert [one.diverged for one in diverged] == [True, True]
    assert not any(one.diverged for one in healthy)
    assert "diverged" in (tmp_path / "log.txt").read_text(encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()}
    assert values(compare(recipe, [], tmp_path, arms=arms, options=Options(seeds=2))) == values(found)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()}


def test_arms_of_one_seed_see_the_same_batches(recipe: dict[str, Any], tmp_path: Path) -> None:
    def batches(seed: int, **model: Any) -> list[torch.Tensor]:
        tables = {**recipe, "model": {**recipe["model"], **model}, "train": {**recipe["train"], "seed": seed}}
        data = prepare(run_recipe(tables), folder=tmp_path)
        return [data.train.batch(epoch, 3)["tokens"] for epoch in (0, 1)]

    same, other = batches(5, position="none"), batches(5, position="rotary", width=44, layers=2)
    assert all(torch.equal(a, b) for a, b in zip(same, other, strict=True))
    assert not torch.equal(same[0], batches(6, position="none")[0])


def run_recipe(tables: dict[str, Any]) -> Any:
    from chumoku.training.recipe import read_recipe

    return read_recipe(tables)


def test_arms_are_dropped_and_rounds_end_when_all_is_decided(
    finished: tuple[Path, Comparison], recipe: dict[str, Any]
) -> None:
    seen: list[int] = []

    def decide(comparison: Comparison, *, planned_seeds: int, confidence: float) -> Decision:
        assert (planned_seeds, confidence) == (3, 0.95)
        seen.append(len(comparison.runs["model.position=none"]))
        return Decision(("model.position=none",), len(seen) == 2)

    found = compare(recipe, POSITIONS, finished[0], decide=decide)
    assert (seen, found.stopped, found.dropped) == ([1, 2], "decided", {"model.position=learned": 1})
    assert [len(results) for results in found.runs.values()] == [2, 1]


def test_a_budget_ends_the_rounds(finished: tuple[Path, Comparison], recipe: dict[str, Any]) -> None:
    runs = finished[1].runs
    first = sum(results[0].seconds for results in runs.values())
    found = compare(recipe, POSITIONS, finished[0], options=dataclasses.replace(OPTIONS, budget=1.5 * first))
    assert (found.stopped, [len(results) for results in found.runs.values()]) == ("budget", [1, 1])
    assert found.seconds == pytest.approx(first)


def test_wrong_options_are_refused(recipe: dict[str, Any], tmp_path: Path) -> None:
    for wrong in ({"seeds": 0}, {"rates": 2}, {"search_steps": 0.0}, {"budget": 0.0}, {"confidence": 1.0}):
        with pytest.raises(UsageError, match="--"):
            Options(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="decides the steps"):
        compare(recipe, ["train.steps=5,7"], tmp_path)
    with pytest.raises(UsageError, match="different tokenizers"):
        compare(recipe, ["tokenizer.kind=character,byte"], tmp_path)
    with pytest.raises(UsageError, match="choose local, ray or slurm"):
        compare(recipe, POSITIONS, tmp_path, launcher="cloud")
