"""Quick checks before training: they stop a broken model and change nothing else."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Ask
from planted import Subjects
from rich.console import Console

import chumoku
from chumoku.cli.train import check_before_training
from chumoku.errors import ChumokuError
from chumoku.models.model import DecoderModel, Model
from chumoku.training.datasets import TrainingData
from chumoku.training.recipe import read_recipe

pytestmark = pytest.mark.usefixtures("quick_runs")

QUIET = Console(quiet=True)
END = "</s>"


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    return Subjects(tmp_path_factory.mktemp("subjects"))


def recipe_in(subjects: Subjects, folder: Path, kind: str = "decoder", **changes: Any) -> dict[str, Any]:
    return subjects.recipe(kind, train={"out": str(folder), "steps": 3}, **changes)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
def test_examining_does_not_change_the_run(kind: str, subjects: Subjects, tmp_path: Path) -> None:
    models = []
    for name, examine in (("seen", lambda *given: check_before_training(*given, QUIET)), ("unseen", None)):
        recipe = read_recipe(recipe_in(subjects, tmp_path / name, kind, model={"dropout": {"sublayer": 0.1}}))
        models.append(chumoku.load(chumoku.train(recipe, console=QUIET, examine=examine).last).model)
    for seen, unseen in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(seen, unseen)


def test_broken_model_is_not_trained(subjects: Subjects, tmp_path: Path) -> None:
    def leaking(data: TrainingData, model: Model) -> None:
        assert isinstance(model, DecoderModel)
        model.decoder.causal = False
        check_before_training(data, model, QUIET)

    with pytest.raises(ChumokuError, match=r"found a problem \(.*future.*--unexamined"):
        chumoku.train(read_recipe(recipe_in(subjects, tmp_path / "run")), console=QUIET, examine=leaking)
    assert not (tmp_path / "run" / "last").exists()


def test_sigterm_during_the_checks_is_reported(
    subjects: Subjects, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    tables = read_recipe(recipe_in(subjects, tmp_path / "run")).as_dict()
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(tables), encoding="utf-8")
    monkeypatch.setattr("chumoku.doctor.run_quick_checks", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    ended = ask("train", str(tmp_path / "run"))
    assert (ended.code, ended.err) == (143, "Stopped by SIGTERM.\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_resumed_run_is_not_examined(subjects: Subjects, tmp_path: Path) -> None:
    request: list[Model] = []
    recipe = read_recipe(recipe_in(subjects, tmp_path / "run"))
    for _ in range(2):
        chumoku.train(recipe, resume=bool(request), console=QUIET, examine=lambda data, model: request.append(model))
    assert len(request) == 1


def test_hints_are_printed_and_training_starts(subjects: Subjects, tmp_path: Path) -> None:
    recipe = recipe_in(subjects, tmp_path / "run", "encoder", model={"norm": "batch"})
    result = Console(file=io.StringIO(), width=200)
    assert chumoku.train(
        read_recipe(recipe), console=QUIET, examine=lambda *given: check_before_training(*given, result)
    ).finished
    assert "is a batch norm; sure: 40%" in result.file.getvalue()  # type: ignore[attr-defined]


def test_an_adapter_is_examined_too(subjects: Subjects, tmp_path: Path) -> None:
    base = chumoku.train(read_recipe(recipe_in(subjects, tmp_path / "base")), console=QUIET).last
    recipe = recipe_in(subjects, tmp_path / "adapter", lora={"rank": 2})
    recipe["model"] = {"init": str(base)}
    recipe.pop("tokenizer")
    trained = chumoku.train(
        read_recipe(recipe), console=QUIET, examine=lambda *given: check_before_training(*given, QUIET)
    )
    assert trained.finished


@pytest.mark.sample(1)
@pytest.mark.parametrize("ways", [[], ["--unexamined"]])
def test_train_command_stops_unless_unexamined(ways: list[str], subjects: Subjects, tmp_path: Path, ask: Ask) -> None:
    # Typed specials in every third line: text that would become the end of a text.
    lines = (subjects.folder / "text.txt").read_text(encoding="utf-8").splitlines()
    (tmp_path / "text.txt").write_text(
        "\n".join(f"{line} {END}" if place % 3 else line for place, line in enumerate(lines)), encoding="utf-8"
    )
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        '[model]\nwidth = 24\nheads = 3\nlayers = 1\ncontext = 29\n[tokenizer]\nkind = "byte"\n'
        f'[data]\nfiles = "{tmp_path / "text.txt"}"\n[train]\nout = "{tmp_path / "run"}"\nbatch_size = 13\nsteps = 2\n'
        "[optimizer]\nlearning_rate = 0.01\n"
    )
    finished = ask("train", str(recipe), *ways)
    assert finished.code == (0 if ways else 1), finished.out + finished.err
    assert "Traceback" not in finished.err
    assert (tmp_path / "run" / "last").exists() == bool(ways)


def test_only_the_data_of_a_large_model_is_checked(
    subjects: Subjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chumoku.doctor.runner.QUICK_PARAMETERS", 1000)

    def leaking(data: TrainingData, model: Model) -> None:
        assert isinstance(model, DecoderModel)
        model.decoder.causal = False
        check_before_training(data, model, console)
        model.decoder.causal = True

    console = Console(file=io.StringIO(), width=200)
    chumoku.train(read_recipe(recipe_in(subjects, tmp_path / "run")), console=QUIET, examine=leaking)
    assert "The doctor checks only the data: this model is large." in console.file.getvalue()  # type: ignore[attr-defined]
