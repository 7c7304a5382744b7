"""Training begins with the doctor's cheap half: it stops what is broken, and changes nothing that is not."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from chumoku.training.dataset import Material
from planted import Ward
from rich.console import Console

import chumoku
from chumoku.cli.train import examined
from chumoku.errors import ChumokuError
from chumoku.models.model import DecoderModel, Model
from chumoku.training.recipe import read_recipe

TOLD = Console(quiet=True)
END = "</s>"


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Ward:
    return Ward(tmp_path_factory.mktemp("ward"))


def recipe_in(ward: Ward, folder: Path, kind: str = "decoder", **changes: Any) -> dict[str, Any]:
    return ward.recipe(kind, train={"out": str(folder), "steps": 3}, **changes)


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
def test_an_examined_run_is_the_same_run(kind: str, ward: Ward, tmp_path: Path) -> None:
    models = []
    for name, examine in (("seen", lambda *given: examined(*given, TOLD)), ("unseen", None)):
        recipe = read_recipe(recipe_in(ward, tmp_path / name, kind, model={"dropout": {"sublayer": 0.1}}))
        models.append(chumoku.load(chumoku.train(recipe, console=TOLD, examine=examine).last).model)
    for seen, unseen in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(seen, unseen)


def test_what_is_broken_is_not_trained(ward: Ward, tmp_path: Path) -> None:
    def leaking(material: Material, model: Model) -> None:
        assert isinstance(model, DecoderModel)
        model.decoder.causal = False
        examined(material, model, TOLD)

    with pytest.raises(ChumokuError, match=r"something broken \(.*future.*--unexamined"):
        chumoku.train(read_recipe(recipe_in(ward, tmp_path / "run")), console=TOLD, examine=leaking)
    assert not (tmp_path / "run" / "last").exists()


def test_a_run_that_goes_on_is_not_examined_again(ward: Ward, tmp_path: Path) -> None:
    asked: list[Model] = []
    recipe = read_recipe(recipe_in(ward, tmp_path / "run"))
    for _ in range(2):
        chumoku.train(recipe, resume=bool(asked), console=TOLD, examine=lambda material, model: asked.append(model))
    assert len(asked) == 1


def test_what_a_recipe_chooses_is_told_and_trained(ward: Ward, tmp_path: Path) -> None:
    recipe = recipe_in(ward, tmp_path / "run", "encoder", model={"norm": "batch"})
    told = Console(file=io.StringIO(), width=200)
    assert chumoku.train(read_recipe(recipe), console=TOLD, examine=lambda *given: examined(*given, told)).finished
    assert "is a batch norm; sure: 40%" in told.file.getvalue()  # type: ignore[attr-defined]


def test_an_adapter_is_examined_too(ward: Ward, tmp_path: Path) -> None:
    base = chumoku.train(read_recipe(recipe_in(ward, tmp_path / "base")), console=TOLD).last
    recipe = recipe_in(ward, tmp_path / "adapter", lora={"rank": 2})
    recipe["model"] = {"init": str(base)}
    recipe.pop("tokenizer")
    trained = chumoku.train(read_recipe(recipe), console=TOLD, examine=lambda *given: examined(*given, TOLD))
    assert trained.finished


@pytest.mark.parametrize("ways", [[], ["--unexamined"]])
def test_the_command_stops_and_may_be_told_not_to(ways: list[str], ward: Ward, tmp_path: Path) -> None:
    # Typed specials in every third line: text that would become the end of a text.
    lines = (ward.folder / "text.txt").read_text(encoding="utf-8").splitlines()
    (tmp_path / "text.txt").write_text(
        "\n".join(f"{line} {END}" if place % 3 else line for place, line in enumerate(lines)), encoding="utf-8"
    )
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        '[model]\nwidth = 24\nheads = 3\nlayers = 1\ncontext = 29\n[tokenizer]\nkind = "byte"\n'
        f'[data]\nfiles = "{tmp_path / "text.txt"}"\n[train]\nout = "{tmp_path / "run"}"\nbatch = 13\nsteps = 2\n'
        "[optimizer]\nrate = 0.01\n"
    )
    command = [sys.executable, "-m", "chumoku", "train", str(recipe), *ways]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert finished.returncode == (0 if ways else 1), finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr
    assert (tmp_path / "run" / "last").exists() == bool(ways)
