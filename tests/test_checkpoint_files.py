"""Checkpoint files: wrong tensors and states are refused, non-finite weights are never saved."""

from __future__ import annotations

import io
import json
import math
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import recipe_for
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import chumoku
from chumoku.errors import DamagedError, DivergedError
from chumoku.training import checkpoint
from chumoku.training.checkpoint_files import read_state, read_tensors
from chumoku.training.interrupt import first_non_finite_tensor
from chumoku.training.log import read_metrics
from chumoku.training.run import TrainResult, train
from chumoku.training.validation import Evaluator
from chumoku.weights import bundle
from chumoku.weights.checksums import write_checksums

pytestmark = pytest.mark.usefixtures("quick_runs")


def go(recipe: dict[str, Any], *, resume: bool = False) -> tuple[TrainResult, str]:
    output = io.StringIO()
    return train(recipe, resume=resume, console=Console(file=output, width=300)), output.getvalue()


# Tensors and states that do not fit


@pytest.fixture(scope="module")
def trained(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    go(recipe_for("decoder", corpora, out, train={"steps": 5, "save_every": 5, "ema": 0.5}))
    return out


def changed(file: str, name: str, change: Callable[[Tensor], Tensor | None]) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        tensors = {key: tensor.clone() for key, tensor in load_file(folder / file).items()}
        tensor = change(tensors.pop(name))
        save_file(tensors | ({} if tensor is None else {name: tensor.contiguous()}), folder / file)

    return work


def with_state(**values: Any) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps({**state, **values}))

    return work


NORM = "decoder.norm.gamma"
TENSORS = {
    "model type": changed("model.safetensors", NORM, Tensor.int),
    "model shape": changed("model.safetensors", NORM, lambda tensor: tensor[:7]),
    "model half": changed("model.safetensors", NORM, Tensor.half),
    "moment type": changed("optimizer.safetensors", f"{NORM}:exp_avg", Tensor.long),
    "moment shape": changed("optimizer.safetensors", f"{NORM}:exp_avg", lambda tensor: tensor[:7]),
    "moment missing": changed("optimizer.safetensors", f"{NORM}:exp_avg", lambda _: None),
    "step shape": changed("optimizer.safetensors", f"{NORM}:step", lambda tensor: tensor.repeat(3)),
    "average type": changed("average.safetensors", NORM, Tensor.bool),
    "average shape": changed("average.safetensors", NORM, lambda tensor: tensor[None]),
    "average missing": changed("average.safetensors", NORM, lambda _: None),
    "average gone": lambda folder: (folder / "average.safetensors").unlink(),
    "moment of nobody": lambda folder: save_file({"x:exp_avg": torch.ones(3)}, folder / "optimizer.safetensors"),
    "not safetensors": lambda folder: (folder / "optimizer.safetensors").write_bytes(b"\7" + b"\0" * 30),
    "parts of nobody": lambda folder: [
        (folder / "model.safetensors").unlink(),
        save_file({"other/x": torch.ones(3)}, folder / "part-00000-of-00001.safetensors"),
    ],
    "no parts": lambda folder: (folder / "model.safetensors").unlink(),
    "parts that do not fit": lambda folder: [
        (folder / "model.safetensors").unlink(),
        save_file({f"model/{NORM}": torch.ones(3, 2)}, folder / "part-00000-of-00002.safetensors"),
        save_file({f"model/{NORM}": torch.ones(3)}, folder / "part-00001-of-00002.safetensors"),
    ],
}
STATES = {
    "scale nan": with_state(scale=math.nan),
    "scale zero": with_state(scale=0),
    "seconds infinite": with_state(seconds=math.inf),
    "best is true": with_state(best=True),
    "tokens huge": with_state(tokens=10**30),
    "seconds huge": with_state(seconds=10**400),
    "origin a list": with_state(origin=[]),
    "unknown": with_state(other=1),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [*TENSORS, *STATES])
def test_wrong_checkpoint_with_valid_checksums_is_refused(
    name: str, trained: Path, corpora: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    folder = out / "checkpoints" / "step-00000005"
    {**TENSORS, **STATES}[name](folder)
    write_checksums(folder)
    with pytest.raises(DamagedError, match=r"step-00000005.*\.$"):
        go(recipe_for("decoder", corpora, out, train={"steps": 7, "ema": 0.5}), resume=True)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("kind", "momentum"), [("adamw", 0.9), ("sgd", 0.0), ("sgd", 0.9), ("muon", 0.9)])
def test_every_optimizer_resumes(kind: str, momentum: float, corpora: Path, tmp_path: Path) -> None:
    changes = {"optimizer": {"kind": kind, "momentum": momentum, "learning_rate": 0.01}, "schedule": {"warmup": 0}}
    go(recipe_for("decoder", corpora, tmp_path, train={"steps": 3}, **changes))
    assert go(recipe_for("decoder", corpora, tmp_path, train={"steps": 5}, **changes), resume=True)[0].step == 5


# Weights that are not finite


def test_the_first_tensor_that_is_not_finite_is_named() -> None:
    fine = {"a": torch.full((3, 5), 3e38), "b": torch.tensor([1, 2]), "c": torch.empty(0), "d": torch.ones(7).half()}
    assert first_non_finite_tensor(fine) is None, "a sum that overflows is no proof"
    for value in (math.nan, math.inf, -math.inf):
        bad = torch.ones(11)
        bad[5] = value
        assert first_non_finite_tensor({**fine, "e": bad, "f": bad}) == "e"


DIVERGING: dict[str, dict[str, Any]] = {
    "epsilon": {"optimizer": {"learning_rate": 0.5, "epsilon": 1e-300, "beta2": 0.0}},
    "batch norm": {"model": {"norm": "batch"}, "optimizer": {"learning_rate": 1000.0}},
}


def poisoned(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The optimizer's step itself makes a weight that is not a number; the next validation does not see it."""
    from chumoku.training.optimizer import Optimizer

    plain, count = Optimizer.step, {"steps": 0}

    def stepped(self: Optimizer, rate: float, *, skip: torch.Tensor | None = None) -> None:
        plain(self, rate, skip=skip)
        count["steps"] += 1
        if count["steps"] >= step:
            self.parameters[0].data[-1, -1] = math.nan  # a token that the corpus does not have

    monkeypatch.setattr(Optimizer, "step", stepped)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_weights_that_are_not_finite_are_never_saved(
    ema: float, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, 5)
    changes = {"model": {"tie_output": False}, "train": {"ema": ema, "save_every": 2, "max_bad_steps": 1000}}
    with pytest.raises(DivergedError) as caught:
        go(recipe_for("decoder", corpora, tmp_path, **changes))
    output = str(caught.value)
    assert "Step 6 was not saved" in output
    assert "decoder.embedding.table" in output
    assert "step-00000004" in output
    assert "optimizer.learning_rate" in output
    assert "optimizer.epsilon" in output
    last = max((tmp_path / "checkpoints").glob("step-*"))
    assert read_state(last).step == 4
    assert all(bool(torch.isfinite(tensor).all()) for tensor in read_tensors(last).flatten().values())


def test_weights_that_are_not_finite_are_never_the_best(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, 2)
    changes = {"model": {"tie_output": False}, "train": {"validate_every": 3, "save_every": 100}}
    with pytest.raises(DivergedError, match="Step 3 was not saved"):
        go(recipe_for("decoder", corpora, tmp_path, **changes))
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize("name", DIVERGING)
def test_a_run_that_diverges_leaves_a_good_checkpoint(name: str, corpora: Path, tmp_path: Path) -> None:
    changes = {table: dict(values) for table, values in DIVERGING[name].items()}
    changes["train"] = {"save_every": 1, "steps": 13, "max_bad_steps": 50, "keep_checkpoints": 13}
    changes["schedule"] = {"kind": "constant", "warmup": 0}
    with pytest.raises(DivergedError, match=r"Step \d+ was not saved: its weights are not finite, first in decoder"):
        go(recipe_for("decoder", corpora, tmp_path, **changes))
    for path in (tmp_path / "checkpoints").glob("step-*"):
        assert first_non_finite_tensor(read_tensors(path).model) is None


# The best that could be written


def test_best_loss_is_set_only_after_writing(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best validation falls on a full disk; best/ then holds the best of the others, and the run says so."""
    plain, export, save = Evaluator.loss, checkpoint.export, bundle.save_file
    losses = iter([5.0, 3.0, 4.0, 4.5, 4.2, 4.1])
    judged: list[float] = []
    full = {"now": False}

    def loss(self: Evaluator, **words: Any) -> float | None:
        plain(self, **words)
        judged.append(next(losses))
        return judged[-1]

    def exported(*given: Any) -> None:
        full["now"] = judged[-1] == 3.0
        try:
            export(*given)
        finally:
            full["now"] = False

    def saved(*given: Any) -> None:
        if full["now"]:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save(*given)

    monkeypatch.setattr(Evaluator, "loss", loss)
    monkeypatch.setattr(checkpoint, "export", exported)
    monkeypatch.setattr(bundle, "save_file", saved)
    trained, output = go(recipe_for("decoder", corpora, tmp_path, train={"log_every": 1}))
    assert judged == [5.0, 3.0, 4.0, 4.5, 4.2, 4.1]
    assert "best could not be saved: No space left on device" in output
    assert trained.best_loss == 4.0, "the lowest loss of those that could be written"
    assert len([line for line in read_metrics(tmp_path / "metrics.jsonl") if "validation_loss" in line]) == 6
    shutil.rmtree(tmp_path / "last")
    state = read_state(max((tmp_path / "checkpoints").glob("step-*")))
    assert state.best == 4.0
    chumoku.load(trained.best)


def test_failing_file_system_does_not_stop_training(corpora: Path, tmp_path: Path) -> None:
    """No file may be larger than a limit of the operating system for a while: the writer's own error, not a made-up."""
    out = tmp_path / "run"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    recipe = recipe_for("decoder", corpora, out, train={"steps": 14})
    go(recipe_for("decoder", corpora, out, train={"steps": 6, "save_every": 6}))  # its corpus is prepared
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limits[1]))
    try:
        with pytest.raises(chumoku.errors.StorageError, match="step-00000014 could not be saved: File too large"):
            go(recipe, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_state(out / "checkpoints" / "step-00000006").best is not None
    chumoku.load(out / "best")
    assert not list(out.rglob("*.writing"))
    trained, _ = go(recipe, resume=True)
    losses = [line["validation_loss"] for line in read_metrics(out / "metrics.jsonl") if "validation_loss" in line]
    assert trained.best_loss == min(losses)
    chumoku.load(trained.best)
