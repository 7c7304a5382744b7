"""`chumoku.train` with one's own model, data and callbacks."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cells import Cell, model_of
from rich.console import Console
from torch import Tensor
from torch.utils.data import Dataset

import chumoku
from chumoku.data.batches import Share
from chumoku.errors import CorpusError, UsageError
from chumoku.models.precision import to_precision
from chumoku.text import Tokenizer, train
from chumoku.training.callbacks import log_metrics
from chumoku.training.loop import TrainEvent
from chumoku.training.own_data import OwnBatches
from chumoku.weights.bundle_weights import tensors_of

pytestmark = pytest.mark.usefixtures("quick_runs")

Batch = dict[str, Tensor]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train(["the cat sat on the mat"], kind="character")


def pipeline_of(kind: str, tokenizer: Tokenizer) -> chumoku.Pipeline:
    model = model_of(Cell(kind, "rotary"), torch.float32, width=12, heads=3, vocabulary=tokenizer.size)
    return chumoku.Pipeline(copy.deepcopy(model), tokenizer)


def batches_for(kind: str, vocabulary: int, count: int) -> list[Batch]:
    random = torch.Generator().manual_seed(count)

    def ids(*shape: int) -> Tensor:
        return torch.randint(vocabulary, shape, generator=random)

    if kind == "encoder-decoder":
        mask = torch.ones(5, 7, dtype=torch.bool)
        return [
            {"source": ids(5, 7), "source_mask": mask, "target": ids(5, 3), "labels": ids(5, 3)} for _ in range(count)
        ]
    return [{"tokens": ids(5, 7), "labels": ids(5, 7)} for _ in range(count)]


def run(out: Path, pipeline: chumoku.Pipeline, train_data: Any, validation: Any, **options: Any) -> chumoku.TrainResult:
    settings = {"out": str(out), "steps": 11, "validate_every": 5, "save_every": 4, "device": "cpu"}
    settings |= options.pop("train", {})
    recipe = {"train": settings, "optimizer": {"learning_rate": 0.01}}
    data = {"model": pipeline, "train_data": train_data, "validation_data": validation}
    return chumoku.train(recipe, **{**data, "console": Console(file=io.StringIO()), **options})


class Batches(Dataset[Batch]):
    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        return self.batches[index]


class Endless:
    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield from self.batches


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_lists_datasets_and_iterables_train_alike(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    batches, held = batches_for(kind, tokenizer.size, 3), batches_for(kind, tokenizer.size, 2)
    results = []
    for name, data in (("list", batches), ("dataset", Batches(batches)), ("iterable", Endless(batches))):
        events: list[TrainEvent] = []
        result = run(tmp_path / name, pipeline_of(kind, tokenizer), data, iter(held), callbacks=[events.append])
        assert result.finished
        assert [event.step for event in events if event.loss is not None] == list(range(1, 12))
        assert [event.step for event in events if event.validation_loss is not None] == [5, 10, 11]
        assert min(event.validation_loss for event in events if event.validation_loss) == result.best_loss
        results.append((tensors_of(chumoku.load(result.last).model), [event.loss for event in events]))
    start = tensors_of(pipeline_of(kind, tokenizer).model)
    for weights, losses in results:
        assert losses == results[0][1]
        assert all(torch.equal(tensor, results[0][0][name]) for name, tensor in weights.items())
        assert any(not torch.equal(tensor, start[name]) for name, tensor in weights.items())


def test_processes_divide_the_rows_of_a_batch(tokenizer: Tokenizer) -> None:
    batch = batches_for("decoder", tokenizer.size, 1)[0]
    data = OwnBatches([batch], pipeline_of("decoder", tokenizer).config, "train_data")
    parts = [data.batch(0, 0, Share(rank, 2))["labels"] for rank in range(2)]
    assert [len(part) for part in parts] == [3, 2]
    assert torch.equal(torch.stack([*parts[0], *parts[1]]), batch["labels"][[0, 2, 4, 1, 3]])


def test_an_iterable_is_read_again_from_its_start(tokenizer: Tokenizer) -> None:
    batches = batches_for("decoder", tokenizer.size, 3)
    data = OwnBatches(Endless(batches), pipeline_of("decoder", tokenizer).config, "train_data")
    for index in (4, 4, 1, 2, 0):
        assert torch.equal(data.batch(0, index)["tokens"], batches[index % 3]["tokens"])


def test_the_given_model_is_not_changed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pipeline, batches = pipeline_of("decoder", tokenizer), batches_for("decoder", tokenizer.size, 3)
    before = {name: tensor.clone() for name, tensor in tensors_of(pipeline.model).items()}
    run(tmp_path / "run", pipeline, batches, batches)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors_of(pipeline.model).items())


def test_models_that_differ_from_their_config_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    batches = batches_for("decoder", tokenizer.size, 3)
    changed, quantized = pipeline_of("decoder", tokenizer), pipeline_of("decoder", tokenizer)
    changed.model.decoder.blocks[0].register_forward_hook(lambda module, given, out: -out)  # type: ignore[union-attr]
    quantized = chumoku.Pipeline(to_precision(quantized.model, "int8"), tokenizer)
    for pipeline, why in ((changed, "has a forward hook"), (quantized, "its weights are quantized")):
        with pytest.raises(UsageError, match=why):
            run(tmp_path / "run", pipeline, batches, batches)


def test_own_runs_resume(tokenizer: Tokenizer, tmp_path: Path) -> None:
    batches, held = batches_for("decoder", tokenizer.size, 3), batches_for("decoder", tokenizer.size, 2)
    whole = run(tmp_path / "whole", pipeline_of("decoder", tokenizer), batches, held)

    class Stop(Exception):
        pass

    def stop(event: TrainEvent) -> None:
        if event.step == 9:
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path / "cut", pipeline_of("decoder", tokenizer), Endless(batches), held, callbacks=[stop])
    again = run(tmp_path / "cut", pipeline_of("decoder", tokenizer), Endless(batches), held, resume=True)
    first, second = (tensors_of(chumoku.load(result.last).model) for result in (whole, again))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_wrong_parts_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pipeline, batches = pipeline_of("decoder", tokenizer), batches_for("decoder", tokenizer.size, 3)

    def refused(match: str, train_data: Any = batches, validation: Any = batches, **options: Any) -> None:
        with pytest.raises((UsageError, CorpusError), match=match):
            run(tmp_path / "run", options.pop("pipeline", pipeline), train_data, validation, **options)

    refused("go together", validation=None)
    refused("go together", pipeline=None)
    refused("must be an iterable of batches", train_data=3)
    refused("must have one batch or more", train_data=[])
    refused(r"must be a dict of tensors with tokens, labels; got list", train_data=[[1, 2]])
    refused(r"got tokens", train_data=[{"tokens": batches[0]["tokens"]}])
    refused(
        "must be .rows, length. and .rows, length.", train_data=[{**batches[0], "labels": batches[0]["labels"][:, 1:]}]
    )
    refused("ended after 3 batches", train_data=iter(batches))
    with pytest.raises(UsageError, match="is for batches that are passed"):
        chumoku.train(
            {"model": {"preset": "tiny-decoder"}, "data": {"kind": "own"}, "train": {"out": str(tmp_path / "none")}}
        )


def test_metrics_go_to_a_tracker(tokenizer: Tokenizer, tmp_path: Path) -> None:
    events: list[TrainEvent] = []
    logged: list[tuple[int, dict[str, float]]] = []
    model = pipeline_of("decoder", tokenizer)
    batches = batches_for("decoder", tokenizer.size, 3)

    def write(metrics: dict[str, float], step: int | None = None) -> None:  # as in MLflow; in W&B, `data` and `step`
        assert step is not None
        logged.append((step, metrics))

    run(tmp_path / "run", model, batches, batches[:1], callbacks=[log_metrics(write, every=2), events.append])
    losses = {event.step: event.loss for event in events if event.validation_loss is None}
    validated = {event.step: event.validation_loss for event in events if event.validation_loss is not None}
    assert {step: values["loss"] for step, values in logged if "loss" in values} == {
        step: loss for step, loss in losses.items() if step % 2 == 0
    }
    assert {step: values["validation_loss"] for step, values in logged if "validation_loss" in values} == validated
    assert validated
