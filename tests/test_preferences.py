"""Preferences: the objectives equal their formulas, the data is read and stored, and runs resume and add up."""

from __future__ import annotations

import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from chats import chat_model, chat_recipe, conversation, tokenizer_for, write_preferences, write_records
from commands import Ask
from test_runs import ConsoleLog, equal, everything, go, losses
from torch import Tensor

from chumoku import lora
from chumoku.data.chat_samples import show_sample
from chumoku.data.manifest import read_manifest
from chumoku.data.preferences import open_preferences, prepare_preferences
from chumoku.doctor import run_quick_checks
from chumoku.errors import ConfigError, CorpusError, DamagedError, UsageError
from chumoku.models.build import build
from chumoku.training.datasets import prepare
from chumoku.training.distributed import World
from chumoku.training.log import read_metrics
from chumoku.training.objectives import PreferenceObjective, count_labels
from chumoku.training.objectives.preference import METHODS
from chumoku.training.recipe import read_recipe
from chumoku.training.settings import PreferenceSettings
from chumoku.weights.open_model import load

pytestmark = pytest.mark.usefixtures("quick_runs")
ADAPTER: dict[str, Any] = {"rank": 3, "targets": ["decoder.blocks.*.attention.{query,value}"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_preferences(tmp_path_factory.mktemp("preferences") / "sums.jsonl")


def recipe_for(model: Path, file: Path, out: Path, **changes: Any) -> dict[str, Any]:
    data = {"kind": "preferences", **changes.pop("data", {})}
    return chat_recipe(model, file, out, data=data, **changes)


def written_out(policy: list[Tensor], reference: list[Tensor], tokens: list[int], method: str, beta: float) -> Tensor:
    """The loss of one pair as the papers and trl write it; log-probabilities of the chosen and the rejected answer."""
    (chosen, rejected), (old_chosen, old_rejected) = policy, reference
    if method == "ipo":
        chosen, old_chosen = chosen / tokens[0], old_chosen / tokens[0]
        rejected, old_rejected = rejected / tokens[1], old_rejected / tokens[1]
    logits = (chosen - rejected) - (old_chosen - old_rejected)
    if method == "dpo":
        return torch.log1p(torch.exp(-beta * logits))
    if method == "smoothed":
        return 0.9 * torch.log1p(torch.exp(-beta * logits)) + 0.1 * torch.log1p(torch.exp(beta * logits))
    return (logits - 1 / (2 * beta)) ** 2 if method == "ipo" else torch.relu(1 - beta * logits)


@pytest.mark.parametrize("method", ["dpo", "smoothed", "ipo", "hinge"])
def test_objectives_equal_their_formulas_with_gradients(method: str, model: Path, file: Path, tmp_path: Path) -> None:
    bundle, reference = load(model), load(model).model.requires_grad_(False)
    recipe = recipe_for(model, file, tmp_path, lora=ADAPTER)
    batches = prepare(read_recipe(recipe), bundle).train
    lora.attach(bundle.model, read_recipe(recipe).lora, seed=3)  # type: ignore[arg-type]
    trained = lora.trainable_parameters(bundle.model)
    with torch.no_grad():
        for number, parameter in enumerate(trained.values()):
            parameter += torch.linspace(-0.3, 0.2, parameter.numel()).view_as(parameter) * (1 + number % 3)
    beta = 0.37
    options = {"method": "dpo", "label_smoothing": 0.1} if method == "smoothed" else {"method": method}
    objective = PreferenceObjective(bundle.model, PreferenceSettings(beta=beta, **options))

    def one_by_one(place: int) -> Tensor:
        sides: list[list[Any]] = [[], [], []]
        for samples in (batches.pairs.chosen, batches.pairs.rejected):
            tokens, learned = map(torch.from_numpy, samples[place])

            for side, which in enumerate((bundle.model, reference)):
                found = which(tokens[None, :-1]).logits[0].log_softmax(-1)
                sides[side].append(found.gather(1, tokens[1:, None])[:, 0][learned[1:]].sum())
            sides[2].append(int(learned.sum()))
        return written_out(sides[0], sides[1], sides[2], method, beta)

    batch = batches.batch(0, 0)
    assert count_labels(batch) == len(batch["tokens"]) > 1
    expected = sum(one_by_one(int(place)) for place in batches.samples(0, 0))
    gradients = torch.autograd.grad(expected, list(trained.values()))
    loss = objective(batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(torch.autograd.grad(loss, list(trained.values())), gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_reference_has_no_dropout(model: Path, file: Path, tmp_path: Path) -> None:
    tables = recipe_for(model, file, tmp_path, lora=ADAPTER)
    tables["model"]["dropout"] = {"sublayer": 0.3}
    data = prepare(read_recipe(tables), load(model))
    objective = PreferenceObjective(build(data.config, seed=5), PreferenceSettings()).train()
    batch = data.train.batch(0, 0)
    assert torch.equal(objective.reference(batch), objective.reference(batch))
    assert not torch.equal(objective(batch), objective(batch))
    assert all(module.training for module in objective.modules())
    objective.metrics.clear()
    objective.eval()(batch)
    assert objective.metrics.take(World(torch.device("cpu"))) == {"margin": 0.0, "accuracy": 0.5}, (
        "a tie before the first step"
    )


def train_table(method: str, beta: float, **options: float) -> tuple[float, float]:
    """h and KL(π ‖ π_ref) of a policy over three answers, a table of logits, of which the first is preferred."""
    settings = PreferenceSettings(method=method, beta=beta, **options)  # type: ignore[arg-type]
    reference = torch.tensor([0.2, 0.5, 0.3]).log()
    logits = reference.clone().requires_grad_()
    optimizer: torch.optim.Optimizer = torch.optim.Adam([logits], lr=0.05)
    if method == "hinge":  # momentum would carry it beyond the place where its gradient ends
        optimizer = torch.optim.SGD([logits], lr=0.005 / beta)
    for _ in range(400):
        optimizer.zero_grad()
        ratios = logits.log_softmax(0) - reference
        METHODS[method](ratios[0] - ratios[1], settings).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found = logits.detach().log_softmax(0)
    return float((found - reference) @ torch.tensor([1.0, -1.0, 0.0])), float(found.exp() @ (found - reference))


@pytest.mark.parametrize(
    ("method", "margin", "options"),
    [
        ("ipo", lambda beta: 1 / (2 * beta), {}),
        ("hinge", lambda beta: 1 / beta, {}),
        ("dpo", lambda beta: math.log(0.8 / 0.2) / beta, {"label_smoothing": 0.2}),
    ],
)
def test_methods_reach_their_margin_and_stay_closer_with_a_larger_beta(
    method: str, margin: Any, options: dict[str, float]
) -> None:
    """Where each loss is smallest. DPO without errors in the labels has no such place: its margin grows forever."""
    betas = (0.3, 0.7, 1.9)
    found = [train_table(method, beta, **options) for beta in betas]
    assert [h for h, _ in found] == pytest.approx([margin(beta) for beta in betas], rel=0.03)
    distances = [kl for _, kl in found]
    assert distances == sorted(distances, reverse=True)
    assert all(one > 1.5 * other for one, other in pairwise(distances))


@pytest.mark.parametrize("adapter", [False, True])
def test_a_resumed_run_is_the_same_run_and_learns(adapter: bool, model: Path, file: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"train": {"keep_checkpoints": 5, "samples": 1}} | ({"lora": ADAPTER} if adapter else {})
    log = ConsoleLog()
    go(recipe_for(model, file, tmp_path / "whole", **changes), log=log)
    assert "pairs for training and" in log.text
    assert "perplexity" not in log.text
    found = losses(tmp_path / "whole")
    assert found[0] == pytest.approx(math.log(2), abs=1e-6), "before the first step, the model is its reference"
    assert found[-1] < found[0] - 1e-3
    held_out = [line for line in read_metrics(tmp_path / "whole" / "metrics.jsonl") if "validation_margin" in line]
    assert [line["step"] for line in held_out] == [0, 5, 7]
    assert held_out[0]["validation_margin"] == pytest.approx(0, abs=1e-4)
    assert held_out[-1]["validation_margin"] > 0.01
    assert held_out[-1]["validation_accuracy"] > 0.9
    half = shutil.copytree(tmp_path / "whole", tmp_path / "half")
    assert (half / "data" / "reference").exists() != adapter
    for later in ("step-00000006", "step-00000007"):
        shutil.rmtree(half / "checkpoints" / later)
    go(recipe_for(model, file, half, **changes), resume=True)
    assert equal(everything(tmp_path / "whole"), everything(half))
    with pytest.raises(UsageError, match=r"preference\.beta"):
        go(recipe_for(model, file, half, preference={"beta": 0.3}, **changes), resume=True)


def test_accumulated_batches_are_one_large_batch(model: Path, file: Path, tmp_path: Path) -> None:
    def run(name: str, **train: int) -> list[float]:
        data = {"validation_files": str(file), "validation_share": None}
        go(recipe_for(model, file, tmp_path / name, train={"steps": 4, **train}, data=data))
        return losses(tmp_path / name)

    large, small = run("large", batch_size=23), run("small", batch_size=6, gradient_accumulation=4)
    assert small == pytest.approx(large, rel=1e-5)
    assert run("other", batch_size=6)[1:] != pytest.approx(large[1:], rel=1e-4)


def test_the_reference_is_computed_once_and_verified(model: Path, file: Path, tmp_path: Path) -> None:
    bundle, recipe = load(model), read_recipe(recipe_for(model, file, tmp_path))
    first: Any = prepare(recipe, bundle)
    folder = tmp_path / "data" / "reference"
    made = (folder / "manifest.json").stat().st_mtime_ns
    again: Any = prepare(recipe, bundle)
    assert (folder / "manifest.json").stat().st_mtime_ns == made
    assert (first.train.reference == again.train.reference).all()
    with torch.no_grad():
        next(bundle.model.parameters()).mul_(1.01)
    changed: Any = prepare(recipe, bundle)
    assert (first.train.reference != changed.train.reference).all()
    place = folder / "train-reference.tokens"
    place.write_bytes(bytes([place.read_bytes()[0] ^ 1]) + place.read_bytes()[1:])
    with pytest.raises(DamagedError, match="train-reference"):
        prepare(recipe, bundle)


def test_forms_of_preferences(tmp_path: Path) -> None:
    tokenizer = tokenizer_for()
    good, bad = ({"role": "assistant", "content": text} for text in ("Good.", "Bad."))
    ask = conversation("One?", "First.", "Two?")
    records: list[Any] = [
        {"prompt": "Two?", "chosen": "Good.", "rejected": "Bad."},
        {"prompt": ask, "chosen": [good], "rejected": [bad]},
        {"chosen": [*ask[2:], good, *ask[2:], good], "rejected": [*ask[2:], good, *ask[2:], bad]},
        {"messages": ask[:1], "chosen": "Good.", "rejected": "Bad."},
        {"prompt": "Same?", "chosen": "Good.", "rejected": "Good."},
        {"prompt": "No answer?", "chosen": conversation("Why?"), "rejected": "Bad."},
        {"prompt": "Empty?", "chosen": " ", "rejected": "Bad."},
        {"prompt": "Long?", "chosen": "Good.", "rejected": 300 * "x"},
        {"prompt": "Wrong?", "chosen": 3, "rejected": "Bad."},
        {"chosen": "Good.", "rejected": "Bad."},
    ]
    file = write_records(tmp_path / "a.jsonl", records)
    folder = prepare_preferences([file], tokenizer, tmp_path / "x", length=211, validation=0.0)
    report = read_manifest(folder)["report"]
    expected = {"equal answers": 1, "no answer": 2, "empty": 1, "too many tokens": 1, "invalid messages": 1}
    assert report["dropped"] == expected
    pairs = open_preferences(folder)
    assert len(pairs) == 4
    for place in range(4):
        for side, answer in ((pairs.chosen, "Good."), (pairs.rejected, "Bad.")):
            shown = show_sample(side[place], tokenizer)
            assert shown.endswith(f"<|im_start|>assistant\n⟦{answer}<|im_end|>⟧")
            assert shown.count("⟦") == 1, "only the last answer is learned"
    assert "First." in show_sample(pairs.chosen[1], tokenizer)


def test_refusals(model: Path, file: Path, tmp_path: Path, ask: Ask) -> None:
    with pytest.raises(ConfigError, match=r"this table is for data\.kind = 'preferences'"):
        read_recipe(chat_recipe(model, file, tmp_path, preference={"beta": 0.2}))
    with pytest.raises(ConfigError, match="this key is for method = 'dpo'"):
        read_recipe(recipe_for(model, file, tmp_path, preference={"method": "ipo", "label_smoothing": 0.1}))
    (tmp_path / "a.tsv").write_text("a\tb\tc\n", "utf-8")
    with pytest.raises(CorpusError, match="Write preferences as records with prompt, chosen and rejected"):
        prepare(read_recipe(recipe_for(model, tmp_path / "a.tsv", tmp_path)), load(model))
    other = write_records(tmp_path / "b.jsonl", [{"prompt": "a", "chosen": "b"}])
    words = ["train", "dpo-lora", f"model.init={model}", f"data.files={other}", "train.sequence_length=131"]
    words += [f"train.out={tmp_path / 'x'}", 'lora.targets=["decoder.blocks.*.attention.query"]']
    ended = ask(*words)
    assert ended.code == 2
    assert "has no field 'rejected'; its fields are prompt, chosen" in ended.err
    ended = ask(*words, f"data.files={file}", "--dry-run")
    assert ended.code == 0, ended.err
    assert "chosen:\n<|im_start|>user\nAdd 0 and 5.<|im_end|>\n<|im_start|>assistant\n⟦It is 5.<|im_end|>⟧" in ended.out


def test_the_doctor_has_no_findings_on_preferences(model: Path, file: Path, tmp_path: Path) -> None:
    bundle = load(model)
    data = prepare(read_recipe(recipe_for(model, file, tmp_path)), bundle)
    assert run_quick_checks(data, bundle.model) == []
