"""Training from an existing model: full fine-tuning and adapters."""

from __future__ import annotations

import json
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from bundles import byte_tokenizer, make_bundle
from faults import KINDS
from foreign import VOCABULARY, outputs_of_both, save_variant
from lazy import LazyModule
from test_runs import ConsoleLog, equal, everything, go

import chumoku
from chumoku import lora
from chumoku.errors import ConfigError, UsageError
from chumoku.training import loop
from chumoku.training.plan import plan
from chumoku.training.recipe import read_recipe
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.families import transformers_rows
from chumoku.weights.open_model import load

peft = LazyModule("peft")
pytestmark = pytest.mark.usefixtures("quick_runs")


def recipe_on(init: Path, corpora: Path, out: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """A very small run that goes on from a model."""
    pairs = load(init).config.kind == "encoder-decoder"
    tables: dict[str, dict[str, Any]] = {
        "model": {"init": str(init)},
        "data": {"kind": "pairs" if pairs else "text", "files": str(corpora / ("pairs.tsv" if pairs else "text.txt"))},
        "train": {"out": str(out), "steps": 11, "batch_size": 7, "batch_tokens": 997, "save_every": 3, "samples": 1},
        "optimizer": {"learning_rate": 0.01},
    }
    tables["train"] |= {"validate_every": 5, "validation_batches": 2, "keep_checkpoints": 2, "device": "cpu"}
    tables["data"] |= {"validation_share": 0.2}
    tables["train"] |= {} if pairs else {"sequence_length": 13}
    for name, table in changes.items():
        tables[name] = {**tables.get(name, {}), **table}
    return tables


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_full_fine_tuning(kind: str, corpora: Path, tmp_path: Path) -> None:
    base = make_bundle(tmp_path / "base", kind, context=127)
    trained = go(recipe_on(base, corpora, tmp_path / "run"))
    before, after = load(base), chumoku.load(trained.last)
    assert after.config == before.config
    changed = [
        not torch.equal(tensor, tensors_of(after.model)[name]) for name, tensor in tensors_of(before.model).items()
    ]
    assert all(changed)
    apart = max(
        (tensor - tensors_of(after.model)[name]).abs().max() for name, tensor in tensors_of(before.model).items()
    )
    assert apart < 0.5, "it did not start from the weights that were there"
    assert after.tokenizer.fingerprint == before.tokenizer.fingerprint


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", ["float32", "int8"])
def test_adapter_trains_and_base_weights_stay(kind: str, base: str, corpora: Path, tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "base", kind, context=127)
    log = ConsoleLog()
    recipe = recipe_on(folder, corpora, tmp_path / "run", lora={"rank": 3, "base": base}, train={"ema": 0.5})
    trained = go(recipe, log=log)
    assert "an adapter of" in log.text
    assert "MiB of gradients and optimizer state" in log.text
    result = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    judged = [line["validation_loss"] for line in result if "validation_loss" in line]
    assert judged[-1] < judged[0], "nothing was learned"
    files = {path.name for path in trained.last.iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors", "README.md", "manifest.json"}
    alone, adapted = load(folder).model, chumoku.load(trained.last).model
    beside = chumoku.load(folder, adapter=trained.last).model
    assert equal(tensors_of(adapted), tensors_of(beside))
    changed = {n.split(".")[-2] for n, t in tensors_of(alone).items() if not torch.equal(t, tensors_of(adapted)[n])}
    assert changed == {"query", "value"}


def test_resumed_adapter_equals_uninterrupted(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_bundle(tmp_path / "base", "decoder", context=127)
    options: dict[str, Any] = {"lora": {"rank": 3, "dropout": 0.2, "dora": True}}
    go(recipe_on(base, corpora, tmp_path / "whole", **options))
    train_step, seen = loop.Run.train_step, []

    def stopped(run: loop.Run, *args: Any) -> bool:
        seen.append(1)
        if len(seen) == 8:
            signal.raise_signal(signal.SIGTERM)
        return train_step(run, *args)

    monkeypatch.setattr(loop.Run, "train_step", stopped)
    cut = recipe_on(base, corpora, tmp_path / "cut", **options)
    assert not go(cut).finished
    monkeypatch.undo()
    assert go(cut, resume=True).finished
    assert equal(everything(tmp_path / "whole"), everything(tmp_path / "cut"))
    other = make_bundle(tmp_path / "base", "decoder", context=127, width=18)
    with pytest.raises(UsageError, match="belongs to another run"):
        go(recipe_on(other, corpora, tmp_path / "cut", train={"steps": 13}, **options), resume=True)


def test_an_adapter_is_bound_to_its_weights(corpora: Path, tmp_path: Path) -> None:
    base = make_bundle(tmp_path / "base", "decoder", context=127)
    recipe = recipe_on(base, corpora, tmp_path / "run", lora={"rank": 3})
    go(recipe)
    opened = load(base)
    with torch.no_grad():
        next(opened.model.parameters())[0, 0] += 1
    from chumoku.weights.bundle import Tokenizers, write_bundle
    from chumoku.weights.checksums import atomic_folder

    with atomic_folder(base) as working:
        tokenizers = Tokenizers(opened.tokenizer, opened.tokenizer)
        write_bundle(working, opened.config, tensors_of(opened.model), tokenizers)
    recipe["train"]["steps"] = 13
    with pytest.raises(UsageError, match=r"lora\.base"):
        go(recipe, resume=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["llama", "gpt2", "marian"])
def test_an_adapter_trained_here_is_the_same_in_peft(name: str, corpora: Path, tmp_path: Path) -> None:
    save_variant(name, tmp_path / "base")
    trained = go(recipe_on(tmp_path / "base", corpora, tmp_path / "run", lora={"rank": 3, "alpha": 7.0}))
    kind = transformers.AutoModelForSeq2SeqLM if name == "marian" else transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(tmp_path / "base").eval()
    _, plain = outputs_of_both(load(tmp_path / "base").model, theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peft.PeftModel.from_pretrained(theirs, trained.last).eval()
    output, expected = outputs_of_both(chumoku.load(trained.last).model, theirs)
    assert (expected - plain).abs().max() > 1e-3, "the adapter changes nothing"
    assert (output - expected).abs().max() <= 1e-5


def test_dropout_and_context_may_be_given_beside_a_model(corpora: Path, tmp_path: Path) -> None:
    base = make_bundle(tmp_path / "base", "decoder", dropout={"attention": 0.2})
    model = {"init": str(base), "dropout": {"sublayer": 0.3}, "context": 127}
    recipe = read_recipe(recipe_on(base, corpora, tmp_path / "run", model=model))
    dropout = recipe.config().dropout
    assert (dropout.sublayer, dropout.attention, recipe.config().context) == (0.3, 0.2, 127)
    assert recipe.config().width == load(base).config.width


@pytest.mark.parametrize(
    ("tables", "key", "said"),
    [
        ({"model": {"width": 24}}, "model.width", "model.init sets the config"),
        ({"model": {"context": 999}}, "model.context", "61 learned positions"),
        ({"model": {"init": "nowhere"}}, "model.init", "nowhere does not exist"),
        ({"model": {"init": 3}}, "model.init", "name of a model"),
        ({"tokenizer": {"kind": "byte"}}, "tokenizer", "model.init has its own tokenizer"),
        ({"lora": {"rnk": 3}}, "lora.rnk", "Did you mean lora.rank"),
        ({"lora": {"rank": 0}}, "lora.rank", ""),
        ({"lora": {}, "train": {"parallel": "fsdp"}}, "train.parallel", "ddp"),
    ],
)
def test_invalid_settings_with_init_are_refused(
    tables: dict[str, Any], key: str, said: str, corpora: Path, tmp_path: Path
) -> None:
    base = make_bundle(tmp_path / "base", "decoder", position="learned")
    recipe = recipe_on(base, corpora, tmp_path / "run")
    for name, table in tables.items():
        recipe[name] = {**recipe.get(name, {}), **table}
    with pytest.raises(ConfigError) as caught:
        read_recipe(recipe)
    assert [problem for problem in caught.value.problems if problem.key == key and said in problem.sentence]
    assert not (tmp_path / "run").exists()


def test_an_adapter_needs_a_model(corpora: Path) -> None:
    with pytest.raises(ConfigError, match=r"name it with model\.init"):
        read_recipe({
            "model": {"preset": "tiny-decoder"}, "data": {"files": str(corpora / "text.txt")},
            "optimizer": {"learning_rate": 0.1}, "lora": {},
        })  # fmt: skip


def test_missing_lora_target_is_named(corpora: Path, tmp_path: Path) -> None:
    base = make_bundle(tmp_path / "base", "decoder", context=127)
    with pytest.raises(UsageError, match="attention"):
        go(recipe_on(base, corpora, tmp_path / "run", lora={"targets": ["decoder.blocks.*.attention.querry"]}))
    assert not (tmp_path / "run" / "data").exists(), "the corpus was prepared for nothing"


def test_the_dry_run_counts_what_is_trained(corpora: Path, tmp_path: Path) -> None:
    base = make_bundle(tmp_path / "base", "decoder", context=127)
    whole = plan(read_recipe(recipe_on(base, corpora, tmp_path / "run")))
    small = plan(read_recipe(recipe_on(base, corpora, tmp_path / "run", lora={"rank": 3})))
    assert (whole["trained"], whole["parameters"]) == (small["parameters"], small["parameters"])
    assert small["trained"] == 2 * 2 * 3 * (12 + 12)
    assert small["memory_fixed"] == whole["memory_fixed"] - 12 * (small["parameters"] - small["trained"])
    assert small["disk"] < whole["disk"]


def test_adapter_with_missing_base_model(corpora: Path, tmp_path: Path) -> None:
    base = make_bundle(tmp_path / "base", "decoder", context=127)
    trained = go(recipe_on(base, corpora, tmp_path / "run", lora={}))
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="which was not found"):
        chumoku.load(trained.last)
    assert chumoku.load(tmp_path / "elsewhere", adapter=trained.last).config.kind == "decoder"
    with pytest.raises(UsageError, match="is an adapter"):
        load(trained.last)


def test_several_adapters_over_one_model(corpora: Path, tmp_path: Path) -> None:
    base = make_bundle(tmp_path / "base", "decoder", context=127)
    runs = [
        go(recipe_on(base, corpora, tmp_path / name, lora={"rank": rank}, train={"seed": rank})).last
        for name, rank in (("one", 2), ("two", 5))
    ]
    model, ids = load(base).model, torch.randint(byte_tokenizer().size, (1, 13))
    plain = model(ids).logits
    for number, folder in enumerate(runs):
        lora.load(model, folder, name=f"{number}", rows=transformers_rows(model.config))
    for number, folder in enumerate(runs):
        lora.set_adapter(model, f"{number}")
        expected = chumoku.load(folder).model(ids).logits
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(expected, plain, atol=1e-3)
    lora.set_adapter(model, None)
    assert torch.equal(model(ids).logits, plain)


def test_the_vocabulary_of_foreign_models_is_known() -> None:
    assert byte_tokenizer().size <= VOCABULARY
