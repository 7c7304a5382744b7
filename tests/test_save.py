"""Models that are made in Python can be saved and opened again; the examples run."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cells import Cell, model_of
from torch import nn

import chumoku
from chumoku import lora
from chumoku.errors import UnknownArgumentError, UsageError
from chumoku.lora.settings import LoraSettings
from chumoku.models.model import Model
from chumoku.models.precision import to_precision
from chumoku.text import Tokenizer, train
from chumoku.weights.bundle import WEIGHTS
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.checksums import MANIFEST, write_checksums
from chumoku.weights.identify_model import CONFIG

EXAMPLES = Path(__file__).parent.parent / "examples"
KINDS = ("encoder", "decoder", "encoder-decoder")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train(["the cat sat on the mat"], kind="character")


def model_for(kind: str, tokenizer: Tokenizer, **changes: Any) -> Model:
    sizes = {"width": 12, "heads": 3, "vocabulary": tokenizer.size + 2, **changes}
    return copy.deepcopy(model_of(Cell(kind, "rotary"), torch.float32, **sizes))


@pytest.mark.parametrize("kind", KINDS)
def test_saved_models_open_with_the_same_weights(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = model_for(kind, tokenizer)
    folder = chumoku.save(tmp_path / "model", model, tokenizer)
    opened = chumoku.load(folder)
    assert opened.config == model.config
    assert opened.tokenizer.json == tokenizer.json
    expected = tensors_of(model)
    assert expected.keys() == tensors_of(opened.model).keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors_of(opened.model).items())
    again = opened.save(tmp_path / "again")
    assert chumoku.load(again).config == model.config


def test_weights_can_be_read_by_those_who_can_read_the_config(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = chumoku.save(tmp_path / "model", model_for("decoder", tokenizer), tokenizer)
    assert (folder / WEIGHTS).stat().st_mode == (folder / CONFIG).stat().st_mode


def test_models_with_keys_of_earlier_versions_open(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = model_for("encoder", tokenizer, initialization="xavier")
    folder = chumoku.save(tmp_path / "model", model, tokenizer)
    values = json.loads((folder / CONFIG).read_text("utf-8"))
    for new, old in (("initialization", "initialisation"), ("normalize", "normalise")):
        values["model"][old] = values["model"].pop(new)
    (folder / CONFIG).write_text(json.dumps(values), "utf-8")
    (folder / MANIFEST).unlink()
    write_checksums(folder)
    assert chumoku.load(folder).config == model.config


def test_a_source_tokenizer_is_saved_too(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = train(["猫がマットに座った"], kind="character")
    model = model_for("encoder-decoder", tokenizer, source_vocabulary=source.size)
    opened = chumoku.load(chumoku.save(tmp_path / "model", model, tokenizer, source_tokenizer=source))
    assert (opened.source_tokenizer.json, opened.tokenizer.json) == (source.json, tokenizer.json)


def test_a_compiled_model_is_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = model_for("decoder", tokenizer)
    chumoku.save(tmp_path / "model", torch.compile(model), tokenizer)  # type: ignore[arg-type]
    assert chumoku.load(tmp_path / "model").config == model.config


def test_existing_folders_are_replaced_only_on_request(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = model_for("decoder", tokenizer)
    chumoku.save(tmp_path / "model", model, tokenizer)
    with pytest.raises(UsageError, match="Pass overwrite=True"):
        chumoku.save(tmp_path / "model", model, tokenizer)
    other = model_for("encoder", tokenizer)
    assert chumoku.load(chumoku.save(tmp_path / "model", other, tokenizer, overwrite=True)).config.kind == "encoder"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="It is not a saved model"):
        chumoku.save(tmp_path / "mine", model, tokenizer, overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_model_that_would_open_differently_is_not_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def refused(model: Model, match: str) -> None:
        with pytest.raises(UsageError, match=match):
            chumoku.save(tmp_path / "model", model, tokenizer)
        assert not (tmp_path / "model").exists()

    refused(to_precision(model_for("decoder", tokenizer), "bf16"), "converted to bf16 when it was loaded")
    adapted = model_for("decoder", tokenizer)
    lora.attach(adapted, LoraSettings(rank=2))
    refused(adapted, "Merge adapters first")
    replaced = model_for("decoder", tokenizer)
    replaced.decoder.blocks[0].attention.output = nn.Sequential(replaced.decoder.blocks[0].attention.output)  # type: ignore[union-attr]
    refused(replaced, "differs from its config: .*is of class Sequential")
    refused(model_for("decoder", tokenizer, vocabulary=tokenizer.size - 1), "Build the model with vocabulary=")


def test_unknown_arguments_name_the_right_one(tokenizer: Tokenizer) -> None:
    pipeline = chumoku.Pipeline(model_for("decoder", tokenizer).eval(), tokenizer)
    for arguments, right in (
        ({"new": 3}, "max_new_tokens"),
        ({"least": 3}, "min_new_tokens"),
        ({"repetition": 1.1}, "repetition_penalty"),
        ({"temprature": 0}, "temperature"),
    ):
        for method in (pipeline.generate, pipeline.stream):
            with pytest.raises(UnknownArgumentError, match=f"Did you mean {right}"):
                method("the", **arguments)
        with pytest.raises(TypeError):
            pipeline.generate("the", **arguments)  # type: ignore[arg-type]
    assert pipeline.generate("the", max_new_tokens=5, temperature=0) == pipeline.to("cpu").generate(
        "the", max_new_tokens=5, temperature=0, seed=7
    )


def test_packages_and_types_are_public() -> None:
    program = (
        "import chumoku\n"
        "print(chumoku.nn.Attention, chumoku.text.Tokenizer, chumoku.data, chumoku.training)\n"
        "print(chumoku.Pipeline, chumoku.Tokenizer, chumoku.Tape, chumoku.Cache, chumoku.TrainResult)\n"
        "print(chumoku.SamplingOptions())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    trained = run(str(EXAMPLES / "own_training_loop.py"), "model")
    assert "the cat sat on the" in trained
    assert "step 60: validation loss" in run(str(EXAMPLES / "train_with_own_data.py"), "run")
    looked = run(str(EXAMPLES / "look_inside.py"), "model")
    assert "the last token attends most to" in looked
    assert "would predict" in looked
    assert "the answer changes by" in looked
