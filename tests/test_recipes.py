"""The built-in recipes, and recipes that are refused."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import make_bundle
from rich.console import Console

from chumoku.config import load_toml
from chumoku.errors import ConfigError, UsageError
from chumoku.models.build import build
from chumoku.models.count import count
from chumoku.nn.tap import matches
from chumoku.training.optimizer import Optimizer, decays, uses_muon
from chumoku.training.plan import format_duration, plan
from chumoku.training.recipe import load_recipe, read_recipe
from chumoku.training.run import train
from chumoku.training.settings import OptimizerSettings
from chumoku.weights.open_model import load

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))
NAMES = [path.stem for path in RECIPES]


def shortest(**changes: dict[str, Any]) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = {
        "model": {"preset": "tiny-decoder"},
        "data": {"files": "text.txt"},
        "optimizer": {"learning_rate": 1e-3},
    }
    return {name: {**tables.get(name, {}), **changes.get(name, {})} for name in {**tables, **changes}}


def test_all_recipes_are_listed() -> None:
    expected = {"demo", "transformer-base", "small-ja-en", "small-en-ja", "multi30k-de-en", "multi30k-en-de"}
    expected |= {"ja-en", "en-ja", "ja-en-teacher"}
    expected |= {"shakespeare-cpu", "shakespeare-gpu", "soseki", "gpt2", "encoder", "lora", "chat-lora", "dpo-lora"}
    expected |= {"classifier", "tagger", "span-corruption", "distillation"}
    assert set(NAMES) == expected | {"sentence-encoder", "grpo"}


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_recipes_can_be_run(path: Path, tmp_path: Path) -> None:
    there = make_bundle(tmp_path / "model", "decoder", context=257, width=48, layers=6, feedforward="swiglu")
    first = "lora" in path.stem or path.stem == "grpo"
    needed = "distillation.teacher" if path.stem == "distillation" else "model.init" if first else None
    recipe = load_recipe(path, [f"{needed}={there}"] if needed else [])
    assert 1e-5 < recipe.peak_learning_rate < 0.1
    assert 0 < recipe.lr_schedule(1) <= 1
    assert count(recipe.config()).parameters > 10**5
    assert f"runs/{path.stem}" == recipe.train.out


@pytest.mark.parametrize(
    ("name", "line", "needed"),
    [
        ("classifier", "{} film\tgood\n{} dull\tbad\n", "data.columns=[0,1]"),
        ("tagger", "Mary O\n{} B-VERB\n\n", "tokenizer.vocabulary=281"),
        ("span-corruption", "The river number {} flows through a town.\n\n", "train.sequence_length=37"),
        ("distillation", "The river number {} flows through a town.\n\n", "distillation.teacher=model"),
    ],
)
def test_recipes_train_on_your_data(
    name: str, line: str, needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a very small size: the data and the tables fit together, and the run writes a model."""
    monkeypatch.chdir(tmp_path)
    make_bundle(tmp_path / "model", "decoder", context=41)
    words = ["".join(letters) for letters in itertools.permutations("abcdefg", 3)]
    Path("data").write_text("".join(line.format(*2 * [words[number] * 3]) for number in range(83)), encoding="utf-8")
    small = {"width": 22, "heads": 11, "layers": 1, "context": 41}
    changes = [needed, "data.files=data", "data.validation_share=0.3", *(f"model.{key}={small[key]}" for key in small)]
    changes += ["train.steps=2", "train.batch_size=5", "schedule.warmup=0", "train.validation_batches=1"]
    trained = train(load_recipe(name, changes), console=Console(quiet=True))
    assert trained.step == 2
    assert load(trained.last).config.width == 22


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_recipes_explain_their_keys(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        key = re.match(r"(\w+) = ", line)
        assert not key or re.search(r"# \S", line), f"{path.name}: {key and key[1]} is not explained."


def test_transformer_base_recipe_matches_the_paper() -> None:
    recipe = load_recipe("transformer-base")
    assert recipe.peak_learning_rate * recipe.lr_schedule(4000) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert recipe.peak_learning_rate * recipe.lr_schedule(100_000) == pytest.approx(512**-0.5 * 100_000**-0.5)
    assert (recipe.optimizer.beta2, recipe.optimizer.epsilon, recipe.train.label_smoothing) == (0.98, 1e-9, 0.1)


def test_all_problems_are_reported_at_once() -> None:
    wrong = shortest(
        model={"widht": 3},
        train={"max_steps": 5, "steps": 0},
        optimizer={"lr": 1.0},
        data={"kind": "txt"},
        lora={"r": 8},
        adapter={},
    )
    with pytest.raises(ConfigError) as caught:
        read_recipe(wrong)
    problems = dict(caught.value.problems)
    expected = {"adapter", "lora.r", "model.widht", "train.max_steps", "train.steps", "optimizer.lr", "data.kind"}
    assert set(problems) == expected
    assert "train.steps" in problems["train.max_steps"]
    assert "optimizer.learning_rate" in problems["optimizer.lr"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model": {"preset": "tiny-encoder-decoder"}, "data": {"kind": "chat"}}, "data.kind"),
        ({"model": {"preset": "tiny-encoder-decoder"}, "data": {"kind": "labels"}}, "data.kind"),
        ({"data": {"kind": "pairs"}}, "data.kind"),
        ({"model": {"preset": "tiny-encoder", "head": "vector"}}, "model.head"),
        ({"tokenizer": {"target_kind": "word"}}, "tokenizer.target_kind"),
        ({"train": {"sequence_length": 4096}}, "train.sequence_length"),
        ({"schedule": {"warmup": 600, "decay": 600, "kind": "wsd"}}, "schedule.warmup"),
        ({"train": {"ema": 0.9, "average_checkpoints": 3}}, "train.ema"),
        ({"data": {"validation_share": 0.1, "validation_files": "b.txt"}}, "data.validation_share"),
        ({"data": {"columns": [0]}}, "data.columns"),
        ({"tokenizer": {"target_vocabulary": 500}}, "tokenizer.target_vocabulary"),
        ({"model": {"norm": "batch"}, "train": {"precision": "bf16"}}, "train.precision"),
        ({"model": {"norm": "batch"}, "train": {"activation_checkpointing": True}}, "train.activation_checkpointing"),
        ({"train": {"out": ""}}, "train.out"),
    ],
)
def test_conflicting_settings_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_recipe(shortest(**changes))
    assert [problem.key for problem in caught.value.problems] == [key]


def test_inverse_sqrt_defaults_to_the_papers_peak() -> None:
    values = shortest()
    del values["optimizer"]
    assert read_recipe(
        {**values, "schedule": {"kind": "inverse_sqrt", "warmup": 50}}
    ).peak_learning_rate == pytest.approx((64 * 50) ** -0.5)


def test_a_vocabulary_follows_from_the_tokenizer_unless_it_is_given() -> None:
    recipe = read_recipe(shortest())
    assert recipe.config(777).vocabulary == 777
    larger = read_recipe(shortest(model={"vocabulary": 1024}))
    assert larger.config(777).vocabulary == 1024
    for size in (2000, 8192):
        with pytest.raises(ConfigError, match=f"the tokenizer has {size:,} tokens"):
            larger.config(size)


def test_key_value_words_override_a_recipe() -> None:
    recipe = load_recipe("demo", ["model.position=relative", "train.steps=770"])
    assert (recipe.config().position, recipe.train.steps) == ("relative", 770)
    with pytest.raises(UsageError, match="There is no recipe no-such-recipe"):
        load_recipe("no-such-recipe")


def test_weight_decay_applies_to_matrices_only() -> None:
    for values in ({"position": "learned"}, {"position": "relative", "experts": 3, "norm": "batch"}):
        config = read_recipe(shortest(model={"preset": "tiny-decoder", **values})).config(61)
        for name, parameter in build(config, device="meta").named_parameters():
            multiplies = matches("**.{query,key,value,output,up,down,router}.weight", name) or name.endswith(
                ("experts.up", "experts.down", "embedding.table")
            )
            assert decays(name, parameter) == multiplies, name
            assert not uses_muon(name, parameter) or parameter.ndim == 2
            assert uses_muon(name, parameter) == (
                multiplies and ".blocks." in name and "router" not in name and "experts" not in name
            ), name


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
def test_optimizers_update_all_weights_and_store_state_by_name(kind: str) -> None:
    model = build(read_recipe(shortest()).config(61))
    settings = OptimizerSettings(kind=kind, learning_rate=0.1)  # type: ignore[arg-type]
    optimizer = Optimizer(model, settings)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def step() -> None:
        torch.manual_seed(1)
        for parameter in optimizer.parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step(0.01)

    step()
    assert all(not torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    state = {key: value.clone() for key, value in optimizer.state().items()}
    assert {key.rpartition(":")[0] for key in state} == set(before)
    middle = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    step()
    after = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(middle[name])
    optimizer = Optimizer(model, settings)
    optimizer.load(state)
    step()
    assert all(torch.equal(after[name], parameter) for name, parameter in model.named_parameters())


def test_sgd_equals_its_formula() -> None:
    """w ← w − r · g, without momentum."""
    model = build(read_recipe(shortest()).config(61))
    optimizer = Optimizer(model, OptimizerSettings(kind="sgd", learning_rate=0.1, momentum=0.0, weight_decay=0.0))
    before = [parameter.detach().clone() for parameter in optimizer.parameters]
    for parameter in optimizer.parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(0.25)
    for old, new in zip(before, optimizer.parameters, strict=True):
        torch.testing.assert_close(new.detach(), old - 0.25)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
def test_only_decaying_parameters_shrink(kind: str) -> None:
    """Without a gradient, decay alone moves a weight."""
    model = build(read_recipe(shortest(model={"preset": "tiny-decoder", "position": "learned"})).config(61))
    optimizer = Optimizer(model, OptimizerSettings(kind=kind, learning_rate=0.1, weight_decay=0.5))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in optimizer.parameters:
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.1)
    for name, parameter in model.named_parameters():
        assert float(parameter.detach().max()) == pytest.approx(0.95 if decays(name, parameter) else 1.0), name


def test_gradients_are_clipped_to_the_norm() -> None:
    model = build(read_recipe(shortest()).config(61))
    optimizer = Optimizer(model, OptimizerSettings(learning_rate=0.1))
    for scale in (1.0, 64.0):
        for parameter in optimizer.parameters:
            parameter.grad = torch.full_like(parameter, 2.0 * scale)
        norm = optimizer.grad_norm() / scale
        total = sum(parameter.numel() for parameter in optimizer.parameters)
        assert float(norm) == pytest.approx(2 * total**0.5)
        optimizer.unscale_and_clip(norm, 3.0, scale)
        assert float(optimizer.grad_norm()) == pytest.approx(3.0, rel=1e-4)


def test_a_dry_run_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("one two three\n" * 50)
    out = tmp_path / "out"
    tables = shortest(
        data={"files": str(tmp_path / "text.txt")}, train={"out": str(out), "batch_size": 3, "sequence_length": 29}
    )
    recipe = read_recipe({**tables, "tokenizer": {"vocabulary": 300}})
    found = plan(recipe)
    assert found["parameters"] == count(recipe.config(300)).parameters
    assert found["tokens_a_step"] == 87
    assert found["seconds"] == pytest.approx(1000 * 87 / found["tokens_per_second"], rel=0.01, abs=1.0)
    assert not out.exists()
    assert json.dumps(found)
    assert format_duration(90_000) == "25.0 hours"
    assert format_duration(50) == "50 seconds"


@pytest.mark.parametrize(
    ("kind", "tokenizer", "needed"),
    [("decoder", "unigram", 517), ("decoder", "bpe", 261), ("encoder-decoder", "unigram", 617)],
)
def test_a_dry_run_refuses_a_vocabulary_that_is_too_small(kind: str, tokenizer: str, needed: int) -> None:
    tables = shortest(data={"files": __file__}, model={"preset": f"tiny-{kind}"})
    with pytest.raises(UsageError, match=f"The kind {tokenizer} needs a vocabulary of {needed} or more"):
        plan(read_recipe({**tables, "tokenizer": {"kind": tokenizer, "vocabulary": needed - 1}}))


def test_comments_and_keys_of_recipes_are_toml() -> None:
    assert all(load_toml(path) for path in RECIPES)
