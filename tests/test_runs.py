"""Runs: complete, interrupted, resumed, refused, and with non-finite values."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import KINDS, OBJECTIVES, recipe_for
from rich.console import Console
from safetensors import SafetensorError
from serving import until
from torch import Tensor

import chumoku
from chumoku.data.batches import WindowBatches
from chumoku.decoding.generate import generate
from chumoku.errors import BusyError, DamagedError, DivergedError, MissingExtraError, StorageError, UsageError
from chumoku.training import checkpoint, loop
from chumoku.training.average import Average
from chumoku.training.checkpoint import Checkpoints, find_differences
from chumoku.training.checkpoint_files import average_weights, read_state, read_tensors
from chumoku.training.datasets import prepare
from chumoku.training.distributed import World, wrap
from chumoku.training.interrupt import find_non_finite, lock_folder
from chumoku.training.log import read_metrics
from chumoku.training.objectives import Objective
from chumoku.training.precision import Cast, LossScale
from chumoku.training.recipe import read_recipe
from chumoku.training.run import TrainResult, train
from chumoku.training.settings import TrainSettings
from chumoku.training.state import State
from chumoku.training.validation import Evaluator
from chumoku.weights import bundle

pytestmark = pytest.mark.usefixtures("quick_runs")

HERE = World(torch.device("cpu"))


class ConsoleLog:
    """A console that stores what is printed."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        self.console = Console(file=self.file, width=300)

    @property
    def text(self) -> str:
        return self.file.getvalue()


def go(recipe: dict[str, Any], *, resume: bool = False, log: ConsoleLog | None = None) -> TrainResult:
    return train(recipe, resume=resume, console=(log or ConsoleLog()).console)


Run = Callable[..., TrainResult]


@pytest.fixture
def run(corpora: Path, tmp_path: Path) -> Run:
    """Train a very small model in a folder of this name."""

    def train_in(
        name: str = "", *, kind: str = "decoder", resume: bool = False, log: Any = None, **changes: Any
    ) -> Any:
        return go(recipe_for(kind, corpora, tmp_path / name, **changes), resume=resume, log=log)

    return train_in


@pytest.fixture(scope="module")
def finished(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, for tests that do not change it."""
    out = tmp_path_factory.mktemp("finished")
    go(recipe_for("decoder", corpora, out))
    return out


@pytest.fixture
def finished_run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(finished, tmp_path, dirs_exist_ok=True)


def newest(out: Path) -> Path:
    found = Checkpoints(out / "checkpoints", keep=1, world=HERE, notify=print).newest()
    assert found is not None
    return found


def everything(out: Path) -> dict[str, Tensor]:
    """Copies: what safetensors hands out still lies in the file."""
    return {name: tensor.clone() for name, tensor in read_tensors(newest(out)).flatten().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(out / "metrics.jsonl") if "loss" in line]


def validation_losses(out: Path) -> list[tuple[int, float]]:
    lines = read_metrics(out / "metrics.jsonl")
    return [(line["step"], line["validation_loss"]) for line in lines if "validation_loss" in line]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_run_writes_all_files(kind: str, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # draw the loss and measure the speed
    log = ConsoleLog()
    recipe = recipe_for(kind, corpora, tmp_path, train={"samples": 2, "steps": 31, "log_every": 5})
    trained = go(recipe, log=log)
    assert (trained.finished, trained.exit_code, trained.step, trained.ended) == (True, 0, 31, "finished")
    lines = read_metrics(tmp_path / "metrics.jsonl")
    result = [line for line in lines if "loss" in line]
    assert [line["step"] for line in result] == [5, 10, 15, 20, 25, 30, 31]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    judged = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in judged] == [7, 14, 21, 28, 31]
    assert trained.best_loss == min(line["validation_loss"] for line in judged)
    assert judged[-1]["validation_loss"] < judged[0]["validation_loss"], "nothing was learned"
    assert judged[-1]["perplexity"] == pytest.approx(math.exp(judged[-1]["validation_loss"]))
    assert ("bits_per_byte" in judged[-1]) == (kind != "encoder-decoder")
    assert (tmp_path / "loss.png").stat().st_size > 5000
    for path in (trained.last, trained.best, newest(tmp_path)):
        assert chumoku.load(path).config.kind == kind
    assert Checkpoints(tmp_path / "checkpoints", keep=3, world=HERE, notify=print).steps() == [27, 30, 31]
    assert "of peak" in log.text
    assert log.text.count("\n  ") == 2 * len(judged), "two samples at each validation"
    assert {"encoder": "[", "decoder": "▸", "encoder-decoder": "→"}[kind] in log.text


def test_bundle_contains_the_model(finished: Path) -> None:
    loaded = chumoku.load(finished / "last")
    state = read_tensors(newest(finished)).model
    assert equal(dict(loaded.model.named_parameters()), dict(state))
    assert not loaded.model.training
    assert generate(loaded.model, [[5, 3]], max_new_tokens=3, temperature=0)
    assert equal(dict(chumoku.load(finished).model.named_parameters()), dict(state)), "a run's folder is its last/"


def test_the_same_recipe_gives_the_same_run(run: Run, tmp_path: Path) -> None:
    def train_encoder(name: str, **settings: int) -> None:
        run(name, kind="encoder", model={"dropout": {"sublayer": 0.2}}, train={"steps": 13, **settings})

    for name in ("one", "two"):
        train_encoder(name)
    train_encoder("other", seed=1)
    assert equal(everything(tmp_path / "one"), everything(tmp_path / "two"))
    assert not equal(everything(tmp_path / "one"), everything(tmp_path / "other"))


@pytest.mark.parametrize("kind", ["decoder", "encoder", *OBJECTIVES])
def test_accumulated_batches_are_one_large_batch(kind: str, run: Run, tmp_path: Path) -> None:
    """Hidden tokens are more in one row than in another, so a mean of means would show."""
    run("large", kind=kind, train={"batch_size": 21, "steps": 13, "log_every": 1})
    run("small", kind=kind, train={"batch_size": 7, "gradient_accumulation": 3, "steps": 13, "log_every": 1})
    assert losses(tmp_path / "small") == pytest.approx(losses(tmp_path / "large"), rel=1e-5)


def test_a_mean_of_means_is_caught(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Objective.forward

    def own_mean(self: Objective, batch: dict[str, Tensor]) -> Tensor:
        count = (batch["labels"] != -100).sum()
        return plain(self, batch) / count * 23.0  # each batch divided by its own tokens

    run("large", kind="encoder", train={"batch_size": 21, "steps": 13, "log_every": 1})
    monkeypatch.setattr(Objective, "forward", own_mean)
    run("small", kind="encoder", train={"batch_size": 7, "gradient_accumulation": 3, "steps": 13, "log_every": 1})
    large, small = losses(tmp_path / "large"), losses(tmp_path / "small")
    assert max(abs(a / large[0] - b / small[0]) for a, b in zip(large, small, strict=True)) > 1e-4


def test_a_run_is_not_overwritten(run: Run, finished_run: Path) -> None:
    before = everything(finished_run)
    with pytest.raises(UsageError, match=r"already contains a run, at step 37\. Continue it with --resume"):
        run()
    assert equal(before, everything(finished_run))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"width": 15}}, "model.width: 12 then, 15 now"),
        ({"train": {"batch_size": 31}}, "train.batch_size: 29 then, 31 now"),
        ({"train": {"seed": 5}}, "train.seed: 0 then, 5 now"),
        ({"optimizer": {"kind": "sgd"}}, "optimizer.kind: adamw then, sgd now"),
        ({"tokenizer": {"kind": "character"}}, "tokenizer: "),
        ({"data": {"separate_documents": True}}, "data.separate_documents: False then, True now"),
        ({"data": {"validation_share": 0.3}}, "data.validation_share: 0.1 then, 0.3 now"),
        ({"train": {"precision": "bf16"}}, "train.precision: float32 then, bf16 now"),
        ({"data": {"files": "other"}}, "corpus: "),
    ],
)
def test_another_run_is_not_resumed(
    changes: dict[str, Any], said: str, run: Run, corpora: Path, tmp_path: Path
) -> None:
    run(train={"steps": 9})
    before = everything(tmp_path)
    if "data" in changes and "files" in changes["data"]:
        other = tmp_path / "other.txt"
        other.write_text((corpora / "text.txt").read_text("utf-8").replace("the", "a"), "utf-8")
        changes = {"data": {"files": str(other)}}
    with pytest.raises(UsageError, match="belongs to another run") as caught:
        run(resume=True, **changes)
    assert said in str(caught.value)
    assert equal(before, everything(tmp_path))
    kept = json.loads((tmp_path / "recipe.json").read_text("utf-8"))
    assert kept["train"]["steps"] == 9, "a refused run leaves no recipe"


@pytest.mark.parametrize("kind", ["decoder", *OBJECTIVES])
def test_a_run_may_be_made_longer(kind: str, run: Run, tmp_path: Path) -> None:
    constant: dict[str, Any] = {"kind": kind, "schedule": {"kind": "constant"}, "model": {"dropout": {"sublayer": 0.1}}}
    run("whole", **constant)
    run("parts", train={"steps": 20}, **constant)
    log = ConsoleLog()
    run("parts", resume=True, log=log, **constant)
    assert "Resumed from" in log.text
    assert "Changed since the last run: train.steps: 20 then, 37 now." in log.text
    assert "step-00000020" in log.text
    assert equal(everything(tmp_path / "whole"), everything(tmp_path / "parts"))
    steps = [line["step"] for line in read_metrics(tmp_path / "parts" / "metrics.jsonl")]
    assert steps == sorted(steps)


def test_a_damaged_checkpoint_is_set_aside(run: Run, finished_run: Path) -> None:
    expected = everything(finished_run)
    path = newest(finished_run)
    file = path / "optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(bytes(data))
    log = ConsoleLog()
    run(resume=True, log=log)
    assert f"renamed to {path}.bad" in log.text
    assert "optimizer.safetensors is damaged" in log.text
    assert Path(f"{path}.bad").is_dir()
    assert equal(expected, everything(finished_run))


def test_resume_is_refused_if_every_checkpoint_is_damaged(run: Run, finished_run: Path) -> None:
    before = len(read_metrics(finished_run / "metrics.jsonl"))
    for path in (finished_run / "checkpoints").iterdir():
        (path / "README.md").unlink()
    (Path(f"{path}.bad")).mkdir()
    with pytest.raises(UsageError, match=r"Every checkpoint in .* is damaged; they were renamed to \.bad"):
        run(resume=True)
    assert len(list((finished_run / "checkpoints").glob("*.bad*"))) == 4, "none overwrites another"
    assert len(read_metrics(finished_run / "metrics.jsonl")) == before


def test_average_skips_damaged_checkpoints(run: Run, tmp_path: Path) -> None:
    run(train={"average_checkpoints": 3})
    (tmp_path / "checkpoints" / "step-00000036" / "config.json").write_text("{}")
    log = ConsoleLog()
    assert run(resume=True, log=log, train={"average_checkpoints": 3}).finished
    assert "The mean of the last 2 checkpoints" in log.text
    assert "It is finished; raise train.steps to continue." in log.text
    assert "steps 38 to 37" not in log.text


def test_resume_with_fewer_steps_is_refused(run: Run, finished_run: Path) -> None:
    with pytest.raises(UsageError, match=r"is at step 37, beyond train\.steps = 20"):
        run(resume=True, train={"steps": 20})


def test_resume_without_checkpoint_starts_at_step_one(run: Run) -> None:
    log = ConsoleLog()
    run(resume=True, log=log, train={"steps": 7})
    assert "no checkpoint to resume" in log.text


def test_two_runs_cannot_share_a_folder(run: Run, tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(BusyError, match=f"in use by a run .process {os.getpid()}"):
        run()
    run()


def test_unwritable_folders_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written to"):
        run("file/run")


def fill_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage._replace(free=1000))


def test_a_full_disk_is_refused_before_the_first_step(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(tmp_path, monkeypatch)
    with pytest.raises(StorageError, match=r"needs [\d,]+ bytes for checkpoints and 1,000 are free"):
        run()
    assert not (tmp_path / "metrics.jsonl").exists()


def test_disk_check_counts_replaceable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(tmp_path, monkeypatch)
    for place in ("data", "checkpoints/step-00000003"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "file").write_bytes(bytes(5000))
    checkpoint.check_disk_space(tmp_path, 6000)
    with pytest.raises(StorageError, match="needs 6,001 bytes"):
        checkpoint.check_disk_space(tmp_path, 6001)


def test_training_continues_if_the_disk_fills_up(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, full = bundle.save_file, {"now": False}

    def save_file(tensors: dict[str, Tensor], path: Path, metadata: object = None) -> None:
        if full["now"]:  # as safetensors says it
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        plain(tensors, path)

    save = loop.Run.save
    monkeypatch.setattr(bundle, "save_file", save_file)

    def save_between(first: int, last: int) -> None:
        def save_then(self: loop.Run, **words: Any) -> None:
            full["now"] = first < self.state.step < last
            save(self, **words)

        monkeypatch.setattr(loop.Run, "save", save_then)

    save_between(10, 20)
    log = ConsoleLog()
    recipe = recipe_for("decoder", corpora, tmp_path)
    assert go(recipe, log=log).finished
    assert "step-00000012 could not be saved: No space left on device. It needs about" in log.text
    assert "earlier checkpoints are kept" in log.text
    assert not list((tmp_path / "checkpoints").glob("*.writing"))
    reference = tmp_path / "reference"
    go({**recipe, "train": {**recipe["train"], "out": str(reference)}})
    assert equal(everything(tmp_path), everything(reference))
    save_between(0, 100)
    with pytest.raises(StorageError, match="could not be saved"):
        go({**recipe, "train": {**recipe["train"], "out": str(tmp_path / "never"), "steps": 7}})


def start(*words: str, **options: Any) -> subprocess.Popen[str]:
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-m", *words], **streams, **options)


def toml(tables: dict[str, dict[str, Any]], path: Path) -> str:
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_a_checkpoint_and_exits(number: int, corpora: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    schedule = {"schedule": {"kind": "constant"}}
    long = {"steps": 100_000, "save_every": 50_000, "log_every": 1}
    tables = recipe_for("decoder", corpora, out, train=long, **schedule)
    run = start("chumoku", "train", toml(tables, tmp_path / "recipe.toml"), cwd=tmp_path)
    until(lambda: len(read_metrics(out / "metrics.jsonl")) > 3, 60.0)
    began = time.monotonic()
    run.send_signal(number)
    output, _ = run.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert run.returncode == 128 + number, output
    assert f"Stopped by {signal.Signals(number).name}" in output
    assert "--resume" in output
    step = read_state(newest(out)).step
    assert step > 0
    reference = {**tables, "train": {**tables["train"], "out": str(tmp_path / "reference"), "steps": step}}
    assert go(reference).finished
    assert equal(everything(out), everything(tmp_path / "reference"))


@pytest.mark.slow
def test_closed_output_pipe_does_not_stop_training(corpora: Path, tmp_path: Path) -> None:
    train = {"steps": 31, "log_every": 1, "save_every": 11}
    recipe = toml(recipe_for("decoder", corpora, tmp_path / "run", train=train), tmp_path / "recipe.toml")
    run = start("chumoku", "train", recipe, cwd=tmp_path)
    assert run.stdout is not None
    run.stdout.readline()
    run.stdout.close()
    assert run.wait(timeout=60) == 0
    assert read_state(newest(tmp_path / "run")).step == 31


def test_second_signal_exits_immediately() -> None:
    code = (
        "import os, signal, time\n"
        "from chumoku.training.interrupt import Interrupt\n"
        "with Interrupt() as interrupt:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print(interrupt.signal, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert finished.stdout.strip() == str(int(signal.SIGTERM))
    assert finished.returncode == -signal.SIGTERM


def spoil(monkeypatch: pytest.MonkeyPatch, spoilt: set[int], value: float) -> None:
    """The loss of some steps is not a number, or not finite."""
    plain, calls = Objective.forward, {"count": 0}

    def forward(self: Objective, batch: dict[str, Tensor]) -> Tensor:
        loss = plain(self, batch)
        if self.training and torch.is_grad_enabled():
            calls["count"] += 1
            return loss * value if calls["count"] in spoilt else loss
        return loss

    monkeypatch.setattr(Objective, "forward", forward)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_step_is_skipped(
    value: float, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {4, 5, 11}, value)
    log = ConsoleLog()
    recipe = recipe_for("decoder", corpora, tmp_path, model={"norm": "batch"}, train={"ema": 0.9})
    go(recipe, log=log)
    assert log.text.count("It was skipped.") == 3
    assert "Step 11 was not finite" in log.text
    assert all(bool(torch.isfinite(tensor).all()) for tensor in everything(tmp_path).values())


@pytest.mark.parametrize("changes", [{}, {"norm": "batch"}])
def test_skipped_step_changes_nothing(
    changes: dict[str, Any], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {8}, math.nan)
    run(model=changes, train={"steps": 8, "save_every": 1})
    kept = [read_tensors(tmp_path / "checkpoints" / f"step-{step:08}").flatten() for step in (7, 8)]
    assert equal(*kept)


def test_too_many_bad_steps_end_a_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, set(range(6, 100)), math.nan)
    with pytest.raises(DivergedError, match=r"3 steps in a row .* first in .*last good checkpoint is .*step-00000006"):
        run(train={"max_bad_steps": 3})
    assert read_state(newest(tmp_path)).step == 6
    assert all(bool(torch.isfinite(tensor).all()) for tensor in everything(tmp_path).values())


def test_bad_steps_count_in_a_row(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, {3, 4, 6, 7, 9}, math.nan)
    assert run(train={"max_bad_steps": 3}).finished


def test_non_finite_validation_is_never_the_best(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = Evaluator.loss, {"count": 0}

    def loss(self: Evaluator, **words: Any) -> float | None:
        calls["count"] += 1
        found = plain(self, **words)
        return math.nan if calls["count"] == 1 else found

    monkeypatch.setattr(Evaluator, "loss", loss)
    trained = run()
    assert trained.best_loss is not None
    assert math.isfinite(trained.best_loss)


def test_gradient_is_clipped_to_max_grad_norm(run: Run, tmp_path: Path) -> None:
    """w ← w − r · g with |g| ≤ 0.001: so far apart can two steps be, and no further."""
    changes: dict[str, Any] = {"optimizer": {"kind": "sgd", "learning_rate": 0.5, "momentum": 0.0, "weight_decay": 0.0}}
    changes |= {
        "train": {"max_grad_norm": 0.001, "steps": 8, "save_every": 1},
        "schedule": {"kind": "constant", "warmup": 0},
    }
    run(**changes)
    one, other = (read_tensors(tmp_path / "checkpoints" / f"step-{step:08}").model for step in (7, 8))
    moved = sum(float((one[name] - other[name]).double().square().sum()) for name in one) ** 0.5
    assert moved == pytest.approx(0.5 * 0.001, rel=1e-3)


def test_gradients_are_unscaled(run: Run, tmp_path: Path) -> None:
    """Plain descent shows a gradient 65,536 times too long, where AdamW would hide it."""
    changes: dict[str, Any] = {"optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.0}}
    for bits in ("float32", "fp16"):
        settings = {"precision": bits, "max_grad_norm": 0.0, "log_every": 1, "steps": 11, "batch_size": 13}
        run(bits, train=settings, **changes)
    assert losses(tmp_path / "fp16") == pytest.approx(losses(tmp_path / "float32"), rel=0.01)


def test_validation_data_is_not_trained_on(corpora: Path, tmp_path: Path) -> None:
    material = prepare(read_recipe(recipe_for("decoder", corpora, tmp_path)))
    train, held = material.train, material.validation
    assert isinstance(train, WindowBatches)
    assert isinstance(held, WindowBatches)
    tokens = train.shards.tokens
    assert (train._offset, held._offset) == (0, round(0.9 * tokens))
    assert train._offset + train._windows * train.length < held._offset + 1
    assert held._offset + held._windows * held.length < tokens


def test_old_checkpoints_are_deleted_after_verifying_the_new_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(train={"steps": 9})
    seen = Checkpoints(tmp_path / "checkpoints", keep=3, world=HERE, notify=print).steps()
    whole = checkpoint.verify_bundle

    def verify(path: Path) -> None:
        if path.name > "step-00000009":
            raise DamagedError(f"{path} came back otherwise.")
        whole(path)

    monkeypatch.setattr(checkpoint, "verify_bundle", verify)
    log = ConsoleLog()
    with pytest.raises(StorageError, match="came back otherwise"):
        run(resume=True, log=log, train={"steps": 14})
    assert "step-00000012 could not be saved" in log.text
    assert set(seen) <= set(Checkpoints(tmp_path / "checkpoints", keep=3, world=HERE, notify=print).steps())


def test_tokens_are_counted(run: Run, tmp_path: Path) -> None:
    run(train={"gradient_accumulation": 2, "steps": 5}, schedule={"warmup": 1})
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["tokens"] == 5 * 2 * 29 * 11


def test_first_non_finite_module_is_named() -> None:
    config = chumoku.preset("tiny-decoder", layers=2, vocabulary=61)
    batch = {"tokens": torch.arange(7)[None], "labels": torch.arange(7)[None]}

    def broken(change: Any) -> str:
        objective = Objective(chumoku.build(config)).train()
        with torch.no_grad():
            change(objective.model)
        return find_non_finite(objective, [batch])

    def nothing(model: Any) -> None:
        model.decoder.blocks[0].attention.value.bias[3] = math.nan

    assert broken(nothing) == "decoder.blocks.0.attention.value.bias (its weights)"
    where = broken(lambda model: model.decoder.blocks[1].attention_norm.gamma.mul_(3e38))
    assert where.startswith("decoder.blocks.1.attention")
    assert where.endswith("(its output)")


def test_moving_average_equals_its_formula() -> None:
    model = chumoku.build(chumoku.preset("tiny-decoder", layers=1, vocabulary=31))
    average = Average(model, 0.75)
    expected = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for step in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5 + step)
        average.update()
        for name, parameter in model.named_parameters():
            expected[name] = 0.75 * expected[name] + 0.25 * parameter.detach()
    for name, tensor in average.tensors.items():
        torch.testing.assert_close(tensor, expected[name])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with average.swapped_in():
        torch.testing.assert_close(dict(model.named_parameters()), expected, check_stride=False)
    assert equal(before, dict(model.named_parameters()))


def test_moving_average_is_validated_and_saved(run: Run, tmp_path: Path) -> None:
    trained = run(train={"ema": 0.8})
    tensors = read_tensors(newest(tmp_path))
    last = dict(chumoku.load(trained.last).model.named_parameters())
    assert equal(dict(tensors.average), last)
    assert not equal(dict(tensors.model), last)


def test_the_mean_of_the_last_checkpoints(run: Run, tmp_path: Path) -> None:
    log = ConsoleLog()
    trained = run(log=log, train={"average_checkpoints": 4})
    steps = Checkpoints(tmp_path / "checkpoints", keep=4, world=HERE, notify=print).steps()
    assert steps == [30, 33, 36, 37], "as many are kept as are averaged"
    paths = [tmp_path / "checkpoints" / f"step-{step:08}" for step in steps]
    expected = {
        name: torch.stack([read_tensors(path).model[name].double() for path in paths]).mean(0).float()
        for name in read_tensors(paths[0]).model
    }
    torch.testing.assert_close(average_weights(paths, expected), expected)
    torch.testing.assert_close(dict(chumoku.load(trained.last).model.named_parameters()), expected, check_stride=False)
    assert "The mean of the last 4 checkpoints: validation loss" in log.text


EARLY: dict[str, Any] = {"optimizer": {"learning_rate": 0.9}, "schedule": {"kind": "constant"}}
PATIENT = {"patience": 2, "validate_every": 3, "steps": 90}


def test_early_stopping(run: Run, tmp_path: Path) -> None:
    trained = run(train=PATIENT, **EARLY)
    judged = [loss for _, loss in validation_losses(tmp_path)]
    assert trained.ended == "stopped early: no improvement in 2 validations"
    assert trained.finished
    assert trained.step < 90
    assert min(judged) == judged[-3] < min(judged[-2:])
    assert trained.last.is_dir()
    log = ConsoleLog()
    assert run(resume=True, log=log, train=PATIENT, **EARLY).step == trained.step, "it stays stopped"
    assert "It stopped early and is finished; raise train.patience to continue." in log.text
    assert "to 90" not in log.text
    assert run(resume=True, train={**PATIENT, "patience": 5}, **EARLY).step > trained.step


@pytest.mark.sample(1)
@pytest.mark.parametrize("step", [14, 37])
def test_signal_during_validation_loses_no_validation(
    step: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between two validation batches, in the middle of a run or at its last step; judged after resuming."""
    run("whole", train={"batch_size": 7})
    plain = WindowBatches.batch
    calls = {"left": 1}

    def batch(self: WindowBatches, epoch: int, index: int, *share: Any) -> dict[str, Tensor]:
        judging = not share and self.seed == 0 and index == 0
        if judging and calls["left"] and len(validation_losses(tmp_path / "cut")) == (step - 1) // 7:
            calls["left"] = 0
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, epoch, index, *share)

    monkeypatch.setattr(WindowBatches, "batch", batch)
    stopped = run("cut", train={"batch_size": 7})
    assert (stopped.finished, stopped.step) == (False, step)
    finished = run("cut", resume=True, train={"batch_size": 7})
    assert finished.finished
    assert validation_losses(tmp_path / "whole") == validation_losses(tmp_path / "cut")
    assert equal(everything(tmp_path / "whole"), everything(tmp_path / "cut"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", KINDS)
def test_mixed_precision_trains_and_keeps_float32_weights(
    kind: str, precision: str, corpora: Path, tmp_path: Path
) -> None:
    shared = {"model": {"share_embeddings": True, "context": 128}} if kind == "encoder-decoder" else {}
    for name, bits in (("half", precision), ("whole", "float32")):
        settings = {"precision": bits, "log_every": 1, "steps": 11, "batch_size": 13, "batch_tokens": 131}
        tables = recipe_for(kind, corpora, tmp_path / name, **shared, train=settings)
        tables["tokenizer"] = {"kind": "byte"}
        go(tables)
    half, whole = losses(tmp_path / "half"), losses(tmp_path / "whole")
    assert half == pytest.approx(whole, rel=0.03)
    assert half != whole
    assert all(tensor.dtype == torch.float32 for tensor in read_tensors(newest(tmp_path / "half")).model.values())


def test_loss_scale_adapts() -> None:
    state = State()
    scale = LossScale("fp16", state)
    assert (scale.value, scale.update(finite=False), scale.value) == (65536.0, True, 32768.0)
    for _ in range(LossScale.PATIENCE):
        scale.update(finite=True)
    assert scale.value == 65536.0
    state.step = 9
    assert LossScale("fp16", state).value == 65536.0, "a resumed run keeps its scale"
    state.scale = 1.0
    assert not scale.update(finite=False), "at the least scale an overflow is a fault"
    assert not LossScale("bf16", State()).update(finite=False)


def test_weights_cast_together_give_the_same_gradients() -> None:
    config = chumoku.preset("tiny-encoder-decoder", layers=1, vocabulary=61)
    objective = Objective(chumoku.build(config))
    objective.model.head.requires_grad_(False)
    batch = {"source": torch.arange(7)[None], "source_mask": torch.ones(1, 7, dtype=torch.bool)}
    batch |= {"target": torch.arange(5)[None], "labels": torch.arange(5)[None]}
    found = []
    for together in (False, True):
        module = torch.compile(Cast(objective, torch.bfloat16, together=together), backend="aot_eager", fullgraph=True)
        loss = module(batch)
        trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        found.append([loss, *torch.autograd.grad(loss, trained)])
    for ours, expected in zip(*found, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, expected)


def test_cast_does_not_change_the_module() -> None:
    config = chumoku.preset("tiny-encoder-decoder", layers=1, vocabulary=61)
    objective = Objective(chumoku.build(config))
    batch = {"source": torch.arange(7)[None], "source_mask": torch.ones(1, 7, dtype=torch.bool)}
    batch |= {"target": torch.arange(5)[None], "labels": torch.arange(5)[None]}
    plain = objective(batch)
    half = Cast(objective, torch.bfloat16)(batch)
    half.backward()
    assert half.item() == pytest.approx(plain.item(), rel=0.02)
    assert all(
        p.dtype == torch.float32 and p.grad is not None and p.grad.dtype == p.dtype for p in objective.parameters()
    )
    assert torch.equal(objective(batch), plain)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {"activation_checkpointing": True}) for kind in KINDS),
        ("decoder", {"activation_checkpointing": True, "precision": "bf16"}),
        *((kind, {"compile": True}) for kind in KINDS),
        ("decoder", {"compile": True, "precision": "bf16"}),
    ],
)
def test_wrapped_objectives_equal_the_objective(
    kind: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced by the compiler's front end; its code generator needs a C++ compiler and is measured in benchmarks.

    Blocks of encoder-decoders are compiled with sizes as variables, which takes four times as long beyond dynamo.
    """
    compile_, backend = torch.compile, "eager" if kind == "encoder-decoder" else "aot_eager"
    monkeypatch.setattr(torch, "compile", lambda module, **words: compile_(module, backend=backend, **words))
    config = chumoku.preset(f"tiny-{kind}", layers=1, vocabulary=61, kv_heads=2)
    tokens = torch.randint(61, (3, 7), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": tokens, "labels": tokens.flip(1)}
    if kind == "encoder-decoder":
        real = torch.arange(7) < torch.tensor([[7], [5], [3]])
        batch = {"source": tokens, "source_mask": real, "target": tokens.flip(0), "labels": tokens.flip(1)}

    def gradients(settings: dict[str, Any]) -> tuple[float, list[Tensor]]:
        objective = Objective(chumoku.build(config))
        module = wrap(objective, TrainSettings(**settings), HERE).train()
        torch.manual_seed(3)
        loss = module(batch)
        loss.backward()
        return float(loss.detach()), [p.grad for p in objective.parameters() if p.grad is not None]

    plain = gradients({"precision": changes.get("precision", "float32")})
    wrapped = gradients(changes)
    tolerance = 2e-2 if "precision" in changes else 1e-4
    assert wrapped[0] == pytest.approx(plain[0], rel=tolerance)
    assert len(plain[1]) == len(wrapped[1])
    largest = max(float(gradient.abs().max()) for gradient in plain[1])
    for one, other in zip(plain[1], wrapped[1], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * largest)


def test_padding_and_other_rows_do_not_change_gradients() -> None:
    config = chumoku.preset("tiny-encoder-decoder", layers=1, vocabulary=61)
    objective = Objective(chumoku.build(config, dtype=torch.float64))
    lengths = ((7, 3), (5, 5), (2, 1))
    source, target, labels = (torch.randint(61, (3, size)) for size in (7, 5, 5))
    real = torch.arange(7) < torch.tensor([[s] for s, _ in lengths])
    labels[torch.arange(5) >= torch.tensor([[t] for _, t in lengths])] = -100
    whole = {"source": source, "source_mask": real, "target": target, "labels": labels}

    def gradients(batches: list[dict[str, Tensor]]) -> list[Tensor]:
        return list(torch.autograd.grad(sum(objective(batch) for batch in batches), list(objective.parameters())))

    def alone(row: int, keep: int) -> dict[str, Tensor]:
        s, t = lengths[row]
        s = min(7, s + keep)
        cut = {"source": source[row, None, :s], "source_mask": torch.ones(1, s, dtype=torch.bool)}
        return {**cut, "target": target[row, None, :t], "labels": labels[row, None, :t]}

    together = gradients([whole])
    for one, other in zip(together, gradients([alone(row, 0) for row in range(3)]), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    wrong = gradients([alone(row, 1) for row in range(3)])
    assert max(float((a - b).abs().max()) for a, b in zip(together, wrong, strict=True)) > 1e-6


def test_metrics_survive_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo', "utf-8")
    assert read_metrics(path) == [{"step": 1, "loss": 2.0}]
    assert read_metrics(tmp_path / "none") == []


@pytest.mark.parametrize("text", ["", "[]", '{"steps": 3}', '{"step": "3"}', '{"step": -1}', "{" * 5000])
def test_invalid_state_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(DamagedError, match=r"state\.json is not a valid state file"):
        read_state(tmp_path)


def test_differences_are_named() -> None:
    before = {"model": {"width": 3, "bias": True}, "corpus": "a"}
    assert find_differences(before, {"model": {"width": 5, "bias": True}, "corpus": "a", "new": 1}) == [
        "model.width: 3 then, 5 now",
        "new: not given then, 1 now",
    ]


def test_tensorboard_is_an_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chumoku\[tensorboard\]'"):
        run(train={"tensorboard": True})


@pytest.mark.slow
def test_runs_survive_kills_and_damage_is_noticed() -> None:
    """Every setting and kind once, and a few of the rest; `make faults` runs all of them."""
    few = ["--runs=4", "--cuts=1", "--kills=5", "--flips=17"]
    command = [sys.executable, str(Path(__file__).parent / "faults.py"), *few]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    resumed = [line.split(": ")[1].split(", ") for line in finished.stdout.splitlines() if "every tensor equal" in line]
    assert {kind for kind, _ in resumed} == {*KINDS}
    assert [setting for _, setting in resumed] == [*dict.fromkeys(setting for _, setting in resumed)]
    assert len(resumed) == 4
    assert "every checkpoint is intact" in finished.stdout
    assert "all noticed" in finished.stdout
