"""Commands that are killed and run again, a few times; `make faults` does it 300 times, with all commands."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from kills import kill_and_run_again, write_inputs

from chumoku.weights import convert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kills")
    write_inputs(place)
    return place


@pytest.mark.parametrize("name", ["convert gguf", "prepare", "tokenizer"])
def test_a_killed_command_can_be_run_again(name: str, folder: Path) -> None:
    """Training and translation have their own tests; `make faults` kills all commands."""
    if name == "convert gguf":
        pytest.importorskip("gguf", reason="gguf is not installed")
    found = kill_and_run_again(name, 2, folder, random.Random(7))
    assert found.problems == []
    assert found.kills == 2


def test_a_leftover_file_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that leaves a file behind."""
    seal = convert.write_checksums

    def littering(path: Path) -> None:
        seal(path)
        (path.parent.parent / f"litter-{os.getpid()}").touch()

    monkeypatch.setattr(convert, "write_checksums", littering)
    found = kill_and_run_again("convert", 1, folder, random.Random(7))
    assert len(found.problems) == 1
    assert "litter-" in found.problems[0]
