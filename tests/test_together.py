"""Runs trained as one batched model equal runs of their own."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from faults import recipe_for
from rich.console import Console
from torch import Tensor

from chumoku.compare.jobs import Job, run_job
from chumoku.compare.launchers import run_jobs
from chumoku.compare.together import SharedClock, Together, group_jobs
from chumoku.errors import DivergedError, UsageError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.training.average import Average
from chumoku.training.distributed import World, wrap
from chumoku.training.ensemble import Ensemble
from chumoku.training.log import read_metrics
from chumoku.training.loop import Batch, Run, TrainEvent
from chumoku.training.objectives import count_labels, default_objective
from chumoku.training.optimizer import Optimizer
from chumoku.training.recipe import Recipe, read_recipe
from chumoku.training.run import TrainResult, train
from chumoku.training.state import State
from chumoku.training.together import train_together, why_not_together
from chumoku.weights.bundle import load

pytestmark = pytest.mark.usefixtures("quick_runs")

SEEDS = (3, 5, 7)
DROPOUT = {"embedding": 0.1, "attention": 0.2, "sublayer": 0.3}
MODELS: dict[str, dict[str, Any]] = {
    "learned, post-norm, untied": {"position": "learned", "placement": "post", "tie_output": False},
    "rotary": {"position": "rotary", "width": 12, "heads": 3, "norm": "rms", "feedforward": "swiglu"},
    "rotary, shared keys, post-norm": {"position": "rotary", "placement": "post", "kv_heads": 1, "width": 12},
    "sinusoidal, dropout": {"position": "sinusoidal", "dropout": DROPOUT},
    "no positions, post-norm, dropout": {"position": "none", "placement": "post", "dropout": DROPOUT},
    "relative": {"position": "relative", "dropout": DROPOUT},
    "relative, post-norm": {"position": "relative", "placement": "post"},
    "relative bias": {"position": "relative_bias", "placement": "sandwich"},
    "alibi": {"position": "alibi", "score_cap": 3.0},
    "encoder": {"kind": "encoder", "dropout": DROPOUT},
    "encoder-decoder": {"kind": "encoder-decoder", "share_embeddings": True, "dropout": DROPOUT},
}
TRAIN: dict[str, Any] = {"steps": 11, "batch_size": 5, "save_every": 4, "validate_every": 6, "keep_checkpoints": 2}
CHANGES: dict[str, Any] = {
    "model": {"position": "rotary", "initialization": "xavier", "dropout": DROPOUT},
    "optimizer": {"learning_rate": 0.01},
}


class QuietLog:
    def step(self, state: State, **numbers: float) -> None:
        return


def make_runs(model: dict[str, Any], corpora: Path) -> list[Run]:
    """Runs without folders and without data, one for each seed."""
    sizes: dict[str, Any] = {
        "vocabulary": 17,
        "width": 10,
        "layers": 2,
        "heads": 2,
        "context": 13,
        "position": "learned",
    }
    config = ModelConfig(**{**sizes, "initialization": "xavier", **model})
    nothing, runs = cast(Any, None), []
    for seed in SEEDS:
        tables = recipe_for("decoder", corpora, corpora, train={"seed": seed}, optimizer={"kind": "sgd"})
        recipe = read_recipe({**tables, "optimizer": {"kind": "sgd", "learning_rate": 0.2}})
        built, world = build(config, seed=seed), World(torch.device("cpu"))
        objective = default_objective(built)
        module = wrap(objective, recipe.train, world)
        parts = (Optimizer(built, recipe.optimizer), Average(built, 0.0), nothing, State(), world, QuietLog())
        runs.append(Run(recipe, nothing, built, objective, module, *parts, nothing, nothing, nothing, nothing))  # type: ignore[arg-type]
    return runs


def random_batch(config: ModelConfig, random: torch.Generator) -> Batch:
    def tokens(length: int) -> Tensor:
        return torch.randint(17, (3, length), generator=random)

    if config.kind == "encoder-decoder":
        source_mask = torch.arange(7) < torch.tensor([[7], [5], [2]])
        return {"source": tokens(7), "source_mask": source_mask, "target": tokens(11), "labels": tokens(11)}
    return {"tokens": tokens(11), "labels": tokens(11)}


def give_batches(runs: Sequence[Run], step: int) -> None:
    for run in runs:
        random = torch.Generator().manual_seed(100 * run.recipe.train.seed + step)
        batches = [random_batch(run.model.config, random) for _ in range(2)]
        run.upcoming, run.next_batches = iter(()), (batches, sum(map(count_labels, batches)))


def largest_difference(model: dict[str, Any], corpora: Path, take_step: Callable[[Ensemble], Any]) -> float:
    """Of all weights, after two steps together and two steps alone."""
    alone, together = make_runs(model, corpora), make_runs(model, corpora)
    ensemble = Ensemble(together)
    for step in (1, 2):
        give_batches(alone, step)
        give_batches(together, step)
        for run in alone:
            assert run.next_batches is not None
            run.train_step(*run.next_batches)
        for run, (began, measured) in zip(together, take_step(ensemble), strict=True):
            run.end_step(began, [], measured.tolist(), seconds=1.0)
    weights = [[p.detach() for run in runs for p in run.model.parameters()] for runs in (alone, together)]
    return max(float((one - other).abs().max()) for one, other in zip(*weights, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_steps_together_are_the_steps_of_each_run(name: str, corpora: Path) -> None:
    assert largest_difference(MODELS[name], corpora, Ensemble.take_step) < 2e-6


def swap_seeds(ensemble: Ensemble) -> Any:
    """A broken twin: the runs get each other's batches or random numbers."""
    runs = ensemble.runs
    batches = [run.next_batches for run in runs]
    for run, other in zip(runs, batches[1:] + batches[:1], strict=True):
        run.next_batches = other
    return ensemble.take_step()


def share_masks(ensemble: Ensemble) -> Any:
    """A broken twin: every run has the dropout masks of one seed."""
    draw = ensemble._draw_masks

    def draw_same(batch: Batch) -> list[Tensor]:
        torch.manual_seed(1)
        return draw(batch)

    ensemble._draw_masks = draw_same  # type: ignore[method-assign]
    return ensemble.take_step()


@pytest.mark.parametrize("broken", [swap_seeds, share_masks])
def test_mixed_up_seeds_are_caught(broken: Callable[[Ensemble], Any], corpora: Path) -> None:
    assert largest_difference({"dropout": DROPOUT}, corpora, broken) > 1e-3


def recipes(corpora: Path, folder: Path, **changes: dict[str, Any]) -> list[Recipe]:
    found = []
    for seed in SEEDS:
        tables = {**CHANGES, **changes, "train": {**TRAIN, "seed": seed, **changes.get("train", {})}}
        found.append(read_recipe(recipe_for("decoder", corpora, folder / str(seed), **tables)))
    return found


def metrics(folder: Path) -> list[tuple[int, float]]:
    entries = read_metrics(folder / "metrics.jsonl")
    return [(entry["step"], entry[key]) for entry in entries for key in ("loss", "validation_loss") if key in entry]


def weights(folder: Path) -> list[Tensor]:
    return list(load(folder / "last").model.state_dict().values())


def test_runs_together_write_what_single_runs_write(corpora: Path, tmp_path: Path) -> None:
    changes = {"train": {"ema": 0.9, "log_every": 1, "gradient_accumulation": 2}}
    together = recipes(corpora, tmp_path / "together", **changes)
    ended: list[int] = []
    results = train_together(together, data_folder=tmp_path / "data", ended=lambda number, result: ended.append(number))
    assert ended == [0, 1, 2]
    alone = recipes(corpora, tmp_path / "alone", **changes)[1]
    train(alone, console=Console(quiet=True), data_folder=tmp_path / "data")
    result = results[1]
    assert isinstance(result, TrainResult)
    assert result.ended == "finished"
    assert sorted(path.name for path in result.folder.iterdir()) == sorted(
        path.name for path in Path(alone.train.out).iterdir()
    )
    assert metrics(result.folder) == [
        (step, pytest.approx(loss, abs=1e-5)) for step, loss in metrics(tmp_path / "alone/5")
    ]
    assert len({tuple(metrics(Path(one.train.out))) for one in together}) == 3

    # Killed between the checkpoints of two runs: the runs continue from the step that both have.
    killed = recipes(corpora, tmp_path / "killed", **changes)

    def kill(event: TrainEvent) -> None:
        if event.step == 10:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train_together(killed, data_folder=tmp_path / "data", callbacks=[(), (kill,), ()])
    (tmp_path / "killed/5/checkpoints/step-00000008").rename(tmp_path / "gone")
    consoles = [Console(file=io.StringIO(), width=300) for _ in killed]
    train_together(killed, data_folder=tmp_path / "data", resume=True, consoles=consoles)
    assert all("/step-00000004." in console.file.getvalue() for console in consoles)  # type: ignore[attr-defined]
    for one, other in zip(killed, together, strict=True):
        assert metrics(Path(one.train.out)) == metrics(Path(other.train.out))
        assert all(map(torch.equal, weights(Path(one.train.out)), weights(Path(other.train.out))))


def test_a_run_that_diverges_does_not_touch_the_others(corpora: Path, tmp_path: Path) -> None:
    rates = (0.1, 1e3, 0.1)
    changes = {"optimizer": {"kind": "sgd"}, "train": {"max_bad_steps": 2, "max_grad_norm": 0.0, "log_every": 1}}
    groups = {}
    for name, seeds in (("all", (0, 1, 2)), ("two", (0, 2))):
        found = recipes(corpora, tmp_path / name, **changes)
        changed = [
            read_recipe({**one.as_dict(), "optimizer": {**one.as_dict()["optimizer"], "learning_rate": rate}})
            for one, rate in zip(found, rates, strict=True)
        ]
        groups[name] = train_together([changed[seed] for seed in seeds], data_folder=tmp_path / "data")
    assert [type(one).__name__ for one in groups["all"]] == ["TrainResult", "DivergedError", "TrainResult"]
    assert isinstance(groups["all"][1], DivergedError)
    for seed in ("3", "7"):
        expected = [(step, pytest.approx(loss, abs=1e-5)) for step, loss in metrics(tmp_path / "two" / seed)]
        assert metrics(tmp_path / "all" / seed) == expected


@pytest.mark.slow  # compiles for a minute
def test_compiled_runs_are_the_same(corpora: Path, tmp_path: Path) -> None:
    found = {}
    for compiled in (False, True):
        changes = {"train": {"steps": 7, "log_every": 1, "compile": compiled}}
        group = recipes(corpora, tmp_path / str(compiled), **changes)[:2]
        train_together(group, data_folder=tmp_path / "data")
        found[compiled] = [loss for one in group for _, loss in metrics(Path(one.train.out))]
    assert found[True] == pytest.approx(found[False], abs=1e-4)


def jobs_of(corpora: Path) -> list[Job]:
    """Two seeds of a decoder, one of them with two learning rates, and a seed of a model with experts."""
    found = []
    for seed, rate, experts in ((3, 0.1, 0), (5, 0.1, 0), (5, 1e3, 0), (3, 0.1, 2)):
        model = {**CHANGES["model"], "experts": experts, "experts_per_token": 2}
        optimizer = {"kind": "sgd", "learning_rate": rate}
        training = {**TRAIN, "seed": seed, "max_bad_steps": 2, "max_grad_norm": 0.0}
        tables = recipe_for("decoder", corpora, corpora, model=model, train=training, optimizer=optimizer)
        recipe = read_recipe(tables).as_dict()
        del recipe["train"]["out"]
        found.append(Job(recipe, "corpus", "text", "loss", (), f"{seed} {rate} {experts}", 1))
    return found


def test_jobs_of_one_shape_are_trained_together(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = jobs_of(corpora)
    assert [len(group) for group in group_jobs(jobs)] == [3, 1]
    alone = [run_job(tmp_path / "alone", job) for job in jobs]
    trained: list[int] = []

    def count(recipes: Sequence[Recipe], **options: Any) -> Any:
        trained.append(len(recipes))
        return train_together(recipes, **options)

    def kill(job: Job) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr("chumoku.compare.together.train_together", count)
    launcher, finished = Together(tmp_path / "together"), []
    with pytest.raises(RuntimeError, match="killed"):
        launcher.run(jobs, kill)
    together = run_jobs(tmp_path / "together", jobs, launcher, finished.append)
    assert trained == [3, 2]  # the one that diverged had a result already
    assert finished == [jobs[0], jobs[1], jobs[3]]
    assert [one.seed for one in together] == [3, 5, 5, 3]
    assert together[2].diverged
    assert [one.value for one in together] == [pytest.approx(one.value, abs=1e-5) for one in alone]
    assert not list((tmp_path / "together" / "work").iterdir())


def test_time_is_divided_among_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 13.0, 13.0, 17.0])
    monkeypatch.setattr("chumoku.compare.together.time.perf_counter", lambda: next(times))
    clock = SharedClock(3)
    assert [clock.stop(1), clock.stop(0), clock.stop(2)] == [1.0, 1.0, 5.0]


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("encoder-decoder", {}, "data.kind 'pairs' have different shapes"),
        ("decoder", {"model": {"experts": 3, "experts_per_token": 2}}, "experts"),
        ("decoder", {"model": {"norm": "batch"}}, "batch norm"),
        ("distillation", {}, "a teacher"),
        ("decoder", {"train": {"activation_checkpointing": True}}, "activation_checkpointing"),
    ],
)
def test_what_cannot_be_batched_is_refused(
    kind: str, changes: dict[str, Any], reason: str, corpora: Path, tmp_path: Path
) -> None:
    found = why_not_together([read_recipe(recipe_for(kind, corpora, tmp_path, **changes))])
    assert found is not None
    assert reason in found


def test_other_recipes_are_refused(corpora: Path, tmp_path: Path) -> None:
    first, *_ = recipes(corpora, tmp_path)
    longer = recipes(corpora, tmp_path / "longer", train={"steps": 13})[0]
    with pytest.raises(UsageError, match=r"they differ in train\.steps\. Train them one by one"):
        train_together([first, longer])
    with pytest.raises(UsageError, match=r"two have the same train\.out"):
        train_together([first, first])
