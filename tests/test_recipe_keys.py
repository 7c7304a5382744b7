"""`chumoku keys`: every key of a recipe with its type, default and meaning."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Literal

import pytest
from commands import Ask
from pydantic import Field

from chumoku.config import Settings
from chumoku.errors import UsageError
from chumoku.training.recipe_keys import describe_type, list_keys, read_meanings


class Shape(Settings):
    width: int = 3  # how wide it is
    # and how it is measured
    height: int = 5
    name: str = ""  # what it is called


def test_every_key_has_a_meaning() -> None:
    missing = [key.name for key in list_keys() if not key.meaning]
    assert not missing, "write a comment after the key in its settings class"


def test_a_meaning_is_the_comment_after_the_key() -> None:
    found = read_meanings(Shape)
    assert found["width"] == "how wide it is and how it is measured"
    assert found["name"] == "what it is called"


def test_types_and_defaults_are_those_of_the_settings() -> None:
    keys = {key.name: key for key in list_keys()}
    assert keys["lora.rank"][1:3] == ("int, 1 … 1024", "8")
    assert keys["optimizer.kind"].type == '"adamw" | "sgd" | "muon"'
    assert keys["model.dropout.attention"].type == "float, ≥ 0, < 1"
    assert keys["distillation.teacher"].default == "required"
    assert keys["train.patience"].default == "–"
    assert describe_type(list[Annotated[int, Field(gt=2)]] | None) == "list[int, > 2]"
    assert describe_type(Literal["a", "b"] | None) == '"a" | "b"'


def test_a_pattern_selects_keys() -> None:
    assert {key.name for key in list_keys("dropout")} >= {"model.dropout.attention", "lora.dropout"}
    assert {key.name for key in list_keys("model.sinusoidal.*")} == {
        "model.sinusoidal.endpoint",
        "model.sinusoidal.start",
    }
    with pytest.raises(UsageError, match=r"No key of a recipe matches widht\. Did you mean width\?"):
        list_keys("widht")


def test_keys_prints_the_same(ask: Ask) -> None:
    printed = json.loads(ask("keys", "lora.", "--json").out)["keys"]
    assert printed == [key._asdict() for key in list_keys("lora.")]
    assert "lora.rank  (int, 1 … 1024; default 8)\n    r: " in ask("keys", "lora.rank").out
    assert ask("keys", "nothing-like-it").code == 2


def test_keys_need_no_torch() -> None:
    code = (
        "import sys; from chumoku.training.recipe_keys import list_keys; list_keys(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
