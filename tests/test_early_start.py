"""A step that starts before the one before it is reported: nobody can notice it."""

from __future__ import annotations

import io
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import recipe_for
from rich.console import Console
from torch import Tensor

from chumoku.data.order import random_numbers
from chumoku.training import loop
from chumoku.training.checkpoint import Checkpoints
from chumoku.training.checkpoint_files import read_tensors
from chumoku.training.distributed import World
from chumoku.training.loop import TrainEvent
from chumoku.training.objectives import Objective
from chumoku.training.run import train

pytestmark = pytest.mark.usefixtures("quick_runs")

Events = list[tuple[int, float | None, float | None, list[Tensor]]]
DROPOUT: dict[str, Any] = {"model": {"dropout": {"sublayer": 0.3}}, "train": {"steps": 23, "ema": 0.9}}


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Switches early starts on, which else only a GPU has; the result collects the steps that started early."""

    def switch_on() -> list[int]:
        started: list[int] = []
        usual = loop.Run.start_next_step

        def start(run: loop.Run, step: loop.Step) -> None:
            usual(run, step)
            started.extend([run.started[0].number] if run.started is not None else [])

        monkeypatch.setattr(World, "is_single_gpu", True)
        monkeypatch.setattr(loop.Run, "start_next_step", start)
        return started

    return switch_on


def go(recipe: dict[str, Any], *callbacks: Any, resume: bool = False) -> str:
    """Train; returns what was printed."""
    file = io.StringIO()
    train(recipe, callbacks=callbacks, console=Console(file=file, width=300), resume=resume)
    return file.getvalue()


def collect(events: Events) -> Callable[[TrainEvent], None]:
    """A callback that notes each event and the model's weights, but says that it does not use the model."""

    def note(event: TrainEvent) -> None:
        weights = [parameter.detach().clone() for parameter in event.model.parameters()]
        events.append((event.step, event.loss, event.validation_loss, weights))

    note.uses_model = False  # type: ignore[attr-defined]
    return note


def assert_same_tensors(one: Path, other: Path) -> None:
    first, second = (
        read_tensors(Checkpoints(path / "checkpoints", keep=1, world=World(torch.device("cpu")), notify=print).newest())  # type: ignore[arg-type]
        for path in (one, other)
    )
    assert first.flatten().keys() == second.flatten().keys()
    assert all(torch.equal(tensor, second.flatten()[name]) for name, tensor in first.flatten().items())


@pytest.mark.parametrize("batches", [1, 3])
def test_events_and_weights_are_the_same(batches: int, corpora: Path, tmp_path: Path, early: Any) -> None:
    usual: Events = []
    found: Events = []
    settings = {**DROPOUT, "train": {**DROPOUT["train"], "gradient_accumulation": batches}}
    go(recipe_for("encoder-decoder", corpora, tmp_path / "usual", **settings), collect(usual))
    started = early()
    go(recipe_for("encoder-decoder", corpora, tmp_path / "early", **settings), collect(found))
    assert started == [step for step in range(2, 24) if (step - 1) % 3 and (step - 1) % 7], "none after a save"
    assert [event[:3] for event in found] == [event[:3] for event in usual]
    for one, other in zip(usual, found, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one[3], other[3], strict=True))
    assert_same_tensors(tmp_path / "usual", tmp_path / "early")


def test_steps_that_are_not_finite_are_skipped_with_the_same_words(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: Any
) -> None:
    seeds = {int(random_numbers(1, 0, step, 0)[0]) >> 1 for step in (4, 5, 11)}
    forward = Objective.forward

    def spoiled(self: Objective, batch: dict[str, Tensor]) -> Tensor:
        bad = torch.is_grad_enabled() and self.training and torch.initial_seed() in seeds
        return forward(self, batch) * (math.nan if bad else 1.0)

    monkeypatch.setattr(Objective, "forward", spoiled)
    usual = go(recipe_for("decoder", corpora, tmp_path / "usual", **DROPOUT))
    started = early()
    found = go(recipe_for("decoder", corpora, tmp_path / "early", **DROPOUT))
    assert 5 in started
    assert usual.count("It was skipped.") == 3
    assert "(its gradient)" in usual
    assert [line for line in found.splitlines() if "skipped" in line] == [
        line for line in usual.splitlines() if "skipped" in line
    ]
    assert_same_tensors(tmp_path / "usual", tmp_path / "early")


def test_a_signal_leaves_whole_steps(corpora: Path, tmp_path: Path, early: Any) -> None:
    go(recipe_for("decoder", corpora, tmp_path / "usual", **DROPOUT))
    started = early()

    def stop(event: TrainEvent) -> None:
        if event.step == 11:
            os.kill(os.getpid(), signal.SIGTERM)

    stop.uses_model = False  # type: ignore[attr-defined]
    recipe = recipe_for("decoder", corpora, tmp_path / "early", **DROPOUT)
    assert "SIGTERM" in go(recipe, stop)
    assert started[-1] == 12
    assert (tmp_path / "early" / "checkpoints" / "step-00000011").is_dir()
    go(recipe, resume=True)
    assert_same_tensors(tmp_path / "usual", tmp_path / "early")


@pytest.mark.parametrize("changes", [{"model": {"norm": "batch"}}, {"train": {"precision": "fp16"}}, {}])
def test_no_early_start_where_it_could_be_noticed(
    changes: dict[str, Any], corpora: Path, tmp_path: Path, early: Any
) -> None:
    """Batch norm has running averages, fp16 a loss scale, and a callback may change the model."""
    started = early()
    recipe = recipe_for("decoder", corpora, tmp_path, **{"train": {"steps": 5}, **changes})
    go(recipe, *([] if changes else [lambda event: None]))
    assert not started
