"""Default learning rates are near the tuned ones, and every built-in recipe can be counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundles import make_bundle
from commands import Ask

from chumoku.training.default_learning_rate import default_learning_rate
from chumoku.training.recipe import load_recipe, read_recipe

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))
NAMES = [path.stem for path in RECIPES]
STARTED = {*(name for name in NAMES if "lora" in name), "grpo"}  # from a model that exists


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_default_is_near_the_tuned_learning_rates(path: Path, tmp_path: Path) -> None:
    model = make_bundle(tmp_path / "model", "decoder", width=576, heads=9, context=257)
    first = "model.init" if path.stem in STARTED else None
    needed = "distillation.teacher" if path.stem == "distillation" else first
    recipe = load_recipe(path, [f"{needed}={model}"] if needed else [])
    bare = {**recipe.as_dict(), "optimizer": {"kind": recipe.optimizer.kind}}
    if path.stem == "transformer-base":
        assert read_recipe(bare).peak_learning_rate == recipe.peak_learning_rate, "the paper's own"
        return
    chosen = read_recipe({**bare, "schedule": {"kind": "cosine"}})
    assert 0.5 <= chosen.peak_learning_rate / recipe.peak_learning_rate <= 2.0


def test_fine_tuning_has_a_lower_default(tmp_path: Path) -> None:
    model = make_bundle(tmp_path / "model", "decoder", width=576, heads=9)
    tables = {"model": {"init": str(model)}, "data": {"files": "text.txt"}}
    assert read_recipe(tables).peak_learning_rate == pytest.approx(2e-4, rel=0.1), "what was best for SmolLM2"
    assert read_recipe({**tables, "lora": {}}).peak_learning_rate == pytest.approx(8e-4, rel=0.1)


def test_rates_fall_with_the_width() -> None:
    widths = (16, 64, 128, 256, 768, 2048, 12288)
    for kind in ("adamw", "muon"):
        rates = [default_learning_rate(kind, width) for width in widths]
        assert rates == sorted(rates, reverse=True)
    assert default_learning_rate("adamw", 768) == 6e-4
    assert default_learning_rate("adamw", 12288) == pytest.approx(0.6e-4, rel=0.15)
    assert default_learning_rate("adamw", 16) == 5e-3, "the highest"


@pytest.fixture
def ask(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    monkeypatch.chdir(tmp_path)
    return ask


def test_dry_run_shows_the_learning_rate(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three\n" * 50, encoding="utf-8")
    (tmp_path / "r.toml").write_text('[model]\npreset = "tiny-decoder"\n[data]\nfiles = "text.txt"\n', encoding="utf-8")
    ended = ask("train", "r.toml", "--dry-run")
    assert ended.code == 0, ended.err
    assert "learning_rate = 0.0044" in ended.out
    assert "Peak learning rate: 0.0044, the default" in ended.out
    assert "1 file, 700 bytes of training data." in ended.out
    assert "Vocabulary: 8,000 tokens, as set in the recipe's tokenizer" in ended.out
    given = ask("train", "r.toml", "optimizer.learning_rate=0.002", "--dry-run")
    assert "Learning rate" not in given.out


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem not in STARTED], ids=lambda path: path.stem)
def test_every_recipe_can_be_counted(path: Path, ask: Ask) -> None:
    ended = ask("count", str(path), "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["parameters"] > 10**5
    assert "okens, as" in found["assumed"]
    fewer = json.loads(ask("count", str(path), "--vocabulary", "101", "--json").out)
    assert fewer["vocabulary"] == 101
    assert fewer["parameters"] < found["parameters"]


def test_a_recipe_that_starts_from_a_model_is_counted_by_it(ask: Ask, tmp_path: Path) -> None:
    lora = str(next(path for path in RECIPES if path.stem == "lora"))
    make_bundle(tmp_path / "model", "decoder")
    assert json.loads(ask("count", lora, "model.init=model", "--json").out) == {
        **json.loads(ask("count", "model", "--json").out),
        "model": lora,
        "assumed": "The config is that of model.",
    }
    absent = ask("count", lora)
    assert absent.code == 2
    assert "data/smollm2.gguf, which does not exist. Name the model, for example model.init=" in absent.err
    changed = ask("count", "model", "model.width=24")
    assert changed.code == 2
    assert "is already trained, so" in changed.err
