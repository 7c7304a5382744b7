"""GRPO: rules, formula with gradients, data, and runs that resume and add up. tests/planted.py has its bugs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from chats import chat_model, chat_recipe, conversation, tokenizer_for, write_records
from commands import Ask
from easy_rewards import ascii_share, judge_unfinished
from test_runs import ConsoleLog, equal, everything, go, losses
from torch import Tensor

from chumoku.data.batches import Share
from chumoku.data.manifest import read_manifest
from chumoku.data.prompt_batches import PromptBatches, unpad
from chumoku.data.prompts import open_prompts, prepare_prompts
from chumoku.errors import ConfigError, CorpusError, UsageError
from chumoku.training.datasets import prepare
from chumoku.training.log import read_metrics
from chumoku.training.objectives import GrpoObjective, grpo
from chumoku.training.recipe import read_recipe
from chumoku.training.rewards import RULES
from chumoku.training.settings import GrpoSettings
from chumoku.weights.open_model import load

pytestmark = pytest.mark.usefixtures("quick_runs")
ADAPTER: dict[str, Any] = {"rank": 3, "targets": ["decoder.blocks.*.attention.{query,value}"]}
OPTIONS: dict[str, Any] = {"reward": "words", "samples": 3, "max_new_tokens": 5}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [{"prompt": f"Add {n} and 5.", "answer": n + 5} for n in range(23)]
    return write_records(tmp_path_factory.mktemp("prompts") / "sums.jsonl", records)


def recipe_for(model: Path, file: Path, out: Path, **changes: Any) -> dict[str, Any]:
    data = {"kind": "prompts", **changes.pop("data", {})}
    return chat_recipe(model, file, out, data=data, grpo={**OPTIONS, **changes.pop("grpo", {})}, **changes)


@pytest.fixture
def rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "words", ascii_share)
    monkeypatch.setattr(GrpoObjective, "judge", judge_unfinished)


@pytest.mark.parametrize(
    ("rule", "text", "answer", "reward"),
    [
        ("exact", " 19\n", "19", 1),
        ("exact", "１９", "19", 1),
        ("exact", "19.", "19", 0),
        ("number", "12 + 7 is 19.", "19", 1),
        ("number", "It is 1,900.50!", "1900.5", 1),
        ("number", "minus −3", "-3", 1),
        ("number", "19 or 20", "19", 0),
        ("number", "nineteen", "nineteen", 0),
        ("words", "the cat sat", "The cat, the cat", 2 * 2 / 7),
        ("words", "", "cat", 0),
    ],
)
def test_rules(rule: str, text: str, answer: str, reward: float) -> None:
    assert RULES[rule](text, answer) == pytest.approx(reward)


@pytest.mark.parametrize("method", ["grpo", "dr_grpo"])
def test_the_loss_equals_its_formula_with_gradients(method: str, model: Path, file: Path, tmp_path: Path) -> None:
    """After the weights have moved: the ratios differ from 1 and some of them are clipped."""
    bundle, reference = load(model), load(model).model.requires_grad_(False)
    settings = GrpoSettings(**{**OPTIONS, "method": method, "beta": 0.3, "updates": 2, "clip": 0.1, "temperature": 1.7})
    objective = GrpoObjective(bundle.model, settings, bundle.tokenizer)
    data = prepare(read_recipe(recipe_for(model, file, tmp_path)), bundle)
    batch = objective.sample(data.train.batch(0, 0))
    rewards = torch.arange(len(batch["tokens"])) * 5 % 7 / 7
    batch["advantages"] = grpo.advantages(rewards.view(-1, 3), method).flatten()
    before = load(model).model.requires_grad_(False)
    with torch.no_grad():
        for number, parameter in enumerate(bundle.model.parameters()):
            parameter += torch.linspace(-0.03, 0.02, parameter.numel()).view_as(parameter) * (1 + number % 3)

    def one_by_one(row: int) -> Tensor:
        group = rewards[row // 3 * 3 : row // 3 * 3 + 3]
        advantage = rewards[row] - group.mean()
        if method == "grpo":
            advantage = advantage / (((group - group.mean()) ** 2).mean().sqrt() + 1e-4)
        total, length = torch.zeros(()), 0
        for place, label in enumerate(batch["labels"][row].tolist()):
            if label == -100:
                continue
            inputs = batch["tokens"][row : row + 1, : place + 1]
            now, old, first = (
                (one(inputs).logits[0, -1] / 1.7).log_softmax(-1)[label] for one in (bundle.model, before, reference)
            )
            ratio = torch.exp(now - old)
            clipped = min(max(ratio, torch.tensor(0.9)), torch.tensor(1.1))
            kl = torch.exp(first - now) - (first - now) - 1
            total = total + torch.minimum(ratio * advantage, clipped * advantage) - 0.3 * kl
            length += 1
        return -total / (length if method == "grpo" else 5)

    expected = sum(one_by_one(row) for row in range(len(rewards)))
    loss, weights = objective(batch), list(bundle.model.parameters())
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    found, gradients = (torch.autograd.grad(one, weights, allow_unused=True) for one in (loss, expected))
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    ratios = torch.exp(objective.logprobs(bundle.model, batch) - batch["old"])
    assert ((ratios - 1).abs() > 0.1).any(), "nothing is clipped"


def test_answers_depend_only_on_seed_epoch_and_prompt(model: Path, file: Path, tmp_path: Path) -> None:
    bundle = load(model)
    data = prepare(read_recipe(recipe_for(model, file, tmp_path)), bundle)
    objective = GrpoObjective(bundle.model, GrpoSettings(**OPTIONS), bundle.tokenizer).train()
    whole = objective.generate(data.train.batch(0, 1))
    torch.manual_seed(5)
    parts = [objective.generate(data.train.batch(0, 1, Share(rank, 2))) for rank in range(2)]
    assert sorted(whole) == sorted([*parts[0], *parts[1]])
    assert len({tuple(one.tokens) for one in whole[:3]}) == 3, "the answers of a prompt differ"
    assert whole != objective.generate({**data.train.batch(0, 1), "seeds": data.train.batch(1, 1)["seeds"]})
    assert objective.training
    assert all(one.reward == 0 for one in whole if not one.finished)
    greedy = objective.generate(data.train.batch(0, 1), greedy=True)
    assert [one.prompt for one in greedy] == unpad(data.train.batch(0, 1)["prompts"])
    objective.rule = lambda text, answer: 1.0
    for tokens, finished in (([7] * 4, True), ([7] * 5, False)):  # max_new_tokens is 5
        judged = objective.judge([3], tokens, "")
        assert (judged.finished, judged.reward) == (finished, float(finished))
        assert judged.tokens == ([*tokens, objective.end] if finished else tokens)


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.usefixtures("rewarded")
def test_a_resumed_run_is_the_same_run_and_learns(adapter: bool, model: Path, file: Path, tmp_path: Path) -> None:
    """Two updates with the same answers; the learning rate is high enough that the reward rises in 7 steps."""
    changes: dict[str, Any] = {"train": {"keep_checkpoints": 5, "samples": 1}, "grpo": {"updates": 2, "samples": 7}}
    changes |= {"optimizer": {"learning_rate": 0.05}, "lora": ADAPTER} if adapter else {}
    log = ConsoleLog()
    go(recipe_for(model, file, tmp_path / "whole", **changes), log=log)
    assert "prompts for training and" in log.text
    assert "step 0: validation loss" in log.text
    lines = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    rewards = [line["reward"] for line in lines if "reward" in line]
    assert len(rewards) == 7
    assert sum(rewards[-2:]) > sum(rewards[:2]), rewards
    assert [line["kl"] > 0 for line in lines if "kl" in line][-1]
    half = shutil.copytree(tmp_path / "whole", tmp_path / "half")
    for later in ("step-00000006", "step-00000007"):
        shutil.rmtree(half / "checkpoints" / later)
    go(recipe_for(model, file, half, **changes), resume=True)
    assert equal(everything(tmp_path / "whole"), everything(half))
    with pytest.raises(UsageError, match=r"grpo\.beta"):
        go(recipe_for(model, file, half, **{**changes, "grpo": {**changes["grpo"], "beta": 0.3}}), resume=True)


@pytest.mark.usefixtures("rewarded")
def test_accumulated_batches_are_one_large_batch(model: Path, file: Path, tmp_path: Path) -> None:
    def run(name: str, **train: int) -> list[float]:
        data = {"validation_files": str(file), "validation_share": None}
        go(recipe_for(model, file, tmp_path / name, train={"steps": 3, **train}, data=data, grpo={"updates": 2}))
        return losses(tmp_path / name)

    large, small = run("large", batch_size=23), run("small", batch_size=6, gradient_accumulation=4)
    assert small == pytest.approx(large, rel=1e-4, abs=1e-6)


def test_forms_of_prompts(tmp_path: Path) -> None:
    tokenizer = tokenizer_for()
    records: list[Any] = [
        {"prompt": "One?", "answer": "1"},
        {"prompt": conversation("One?", "1", "Two?"), "answer": 2.5},
        {"prompt": "Empty?", "answer": " "},
        {"prompt": 3, "answer": "3"},
        {"prompt": "No answer?"},
        {"prompt": 300 * "x", "answer": "long"},
        {"prompt": "One?", "answer": "1"},
    ]
    folder = prepare_prompts(
        [write_records(tmp_path / "a.jsonl", records)], tokenizer, tmp_path / "x", length=211, validation=0.0
    )
    dropped = {"empty": 1, "invalid record": 2, "too many tokens": 1, "duplicate": 1}
    assert read_manifest(folder)["report"]["dropped"] == dropped
    batch = PromptBatches(open_prompts(folder), rows=2, terms=3).batch(0, 0)
    shown = sorted(tokenizer.decode(row, special=True) for row in unpad(batch["prompts"]))
    assert shown[1].endswith("<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n")
    assert sorted(bytes(row).decode() for row in unpad(batch["answers"])) == ["1", "2.5"]
    assert batch["terms"].tolist() == [3, 3]
    tokenizer.chat_template = None
    folder = prepare_prompts([tmp_path / "a.jsonl"], tokenizer, tmp_path / "y", length=211, validation=0.0)
    assert read_manifest(folder)["report"]["dropped"]["refused by the template"] == 1
    prompts = open_prompts(folder).prompts
    assert tokenizer.decode(prompts[0].tokens.tolist()) == "One?"


def test_refusals(model: Path, file: Path, tmp_path: Path, ask: Ask) -> None:
    with pytest.raises(ConfigError, match=r"this table is for data\.kind = 'prompts'"):
        read_recipe(chat_recipe(model, file, tmp_path, grpo={"beta": 0.2}))
    wrong = {"precision": "bf16", "compile": True, "parallel": "fsdp"}
    with pytest.raises(ConfigError) as caught:
        read_recipe(recipe_for(model, file, tmp_path, train=wrong, grpo={"reward": "best"}))
    assert dict(caught.value.problems).keys() == {"grpo.reward"}
    with pytest.raises(ConfigError) as caught:
        read_recipe(recipe_for(model, file, tmp_path, train=wrong))
    assert dict(caught.value.problems).keys() == {f"train.{key}" for key in wrong}
    other = {**recipe_for(model, file, tmp_path), "model": {"preset": "tiny-decoder"}}
    with pytest.raises(ConfigError, match=r"name it with model\.init"):
        read_recipe(other)
    with pytest.raises(UsageError, match=r"no prompt fits before grpo\.max_new_tokens = 131"):
        prepare(read_recipe(recipe_for(model, file, tmp_path, grpo={"max_new_tokens": 131})), load(model))
    (tmp_path / "a.tsv").write_text("a\tb\n", "utf-8")
    with pytest.raises(CorpusError, match="Write prompts as records with prompt and answer"):
        prepare(read_recipe(recipe_for(model, tmp_path / "a.tsv", tmp_path)), load(model))
    words = ["train", "grpo", f"model.init={model}", "train.sequence_length=131", f"train.out={tmp_path / 'x'}"]
    ended = ask(*words, f"data.files={write_records(tmp_path / 'b.jsonl', [{'prompt': 'a'}])}")
    assert ended.code == 2
    assert "has no field 'answer'; its fields are prompt" in ended.err
    ended = ask(*words, f"data.files={file}", "--dry-run")
    assert ended.code == 0, ended.err
    assert "<|im_start|>user\nAdd 0 and 5.<|im_end|>\n<|im_start|>assistant\n (answer: 5)\n  ⟦" in ended.out
    assert ended.out.count("⟧ reward ") == 8
    assert "without the time to generate answers" in ended.out
