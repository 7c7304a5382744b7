"""Runs on conversations: resumed, accumulated, with adapters, refused, and examined by the doctor."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundles import make_bundle
from chats import chat_model, chat_recipe, write_chats
from commands import Ask
from test_runs import ConsoleLog, equal, everything, go, losses

import chumoku
from chumoku.data.chat_samples import ConversationEncoder
from chumoku.doctor import run_quick_checks
from chumoku.errors import UsageError
from chumoku.training.datasets import prepare
from chumoku.training.recipe import read_recipe
from chumoku.weights.open_model import load

pytestmark = pytest.mark.usefixtures("quick_runs")
TARGETS = {"targets": ["decoder.blocks.*.attention.{query,value}"], "rank": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat") / "model", width=32, heads=2)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chats(tmp_path_factory.mktemp("chats") / "sums.jsonl")


def test_a_resumed_run_is_the_same_run(model: Path, chats: Path, tmp_path: Path) -> None:
    log = ConsoleLog()
    go(chat_recipe(model, chats, tmp_path / "whole", train={"keep_checkpoints": 5}), log=log)
    assert "conversations for training and" in log.text
    read, learned = re.search(r"([\d,]+) tokens/s, ([\d,]+) of them learned", log.text).groups()  # type: ignore[union-attr]
    assert 1.2 < int(read.replace(",", "")) / int(learned.replace(",", "")) < 20
    assert f"Use it: chumoku chat {tmp_path / 'whole' / 'last'}" in log.text
    half = shutil.copytree(tmp_path / "whole", tmp_path / "half")
    for later in ("step-00000006", "step-00000007"):
        shutil.rmtree(half / "checkpoints" / later)
    prepared = (half / "data" / "chat" / "manifest.json").stat().st_mtime_ns
    go(chat_recipe(model, chats, half), resume=True)
    assert equal(everything(tmp_path / "whole"), everything(half))
    assert (half / "data" / "chat" / "manifest.json").stat().st_mtime_ns == prepared
    template = chumoku.load(tmp_path / "whole" / "last").tokenizer.chat_template
    assert template == load(model).tokenizer.chat_template, "the result is a chat model"
    with pytest.raises(UsageError, match="sequence_length"):
        go(chat_recipe(model, chats, tmp_path / "half", train={"sequence_length": 89}), resume=True)


def test_accumulated_batches_are_one_large_batch(model: Path, chats: Path, tmp_path: Path) -> None:
    def run(name: str, **train: int) -> list[float]:
        data = {"validation_files": str(chats), "validation_share": None}
        go(chat_recipe(model, chats, tmp_path / name, train={"steps": 5, **train}, data=data))
        return losses(tmp_path / name)

    rows = prepare(read_recipe(chat_recipe(model, chats, tmp_path / "x")), load(model)).train
    assert len(rows) > 1
    large, small = run("large", batch_size=8), run("small", batch_size=4, gradient_accumulation=2)
    assert small == pytest.approx(large, rel=1e-5)
    assert run("half", batch_size=4) != pytest.approx(large, rel=1e-3)


@pytest.mark.parametrize(("base", "dora"), [("float32", False), ("bf16", True), ("int8", False), ("int4", True)])
def test_adapters_learn_on_every_precision(base: str, dora: bool, model: Path, chats: Path, tmp_path: Path) -> None:
    lora = {**TARGETS, "base": base, "dora": dora}
    trained = go(chat_recipe(model, chats, tmp_path, lora=lora, train={"samples": 1}))
    found = losses(tmp_path)
    assert found[-1] < found[0]
    assert chumoku.load(trained.last).tokenizer.chat_template is not None


def test_refusals(model: Path, chats: Path, tmp_path: Path, ask: Ask) -> None:
    tables = chat_recipe(model, chats, tmp_path)
    with pytest.raises(UsageError, match=r"Conversations need a model .* name it with model\.init"):
        go({**tables, "model": {"preset": "tiny-decoder"}, "train": {"out": str(tmp_path)}})
    plain = make_bundle(tmp_path / "plain", "decoder", context=139)
    with pytest.raises(UsageError, match="This model has no chat template"):
        go({**tables, "model": {"init": str(plain)}})
    ended = ask("train", "demo", "data.kind=chat", f"data.files={chats}")
    assert ended.code == 2
    assert "does not fit a model of kind 'encoder-decoder'; choose from pairs, embedded" in ended.out + ended.err


def test_dry_run_shows_a_sample(model: Path, chats: Path, tmp_path: Path, ask: Ask) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(chats.read_text("utf-8") + "no json\n\x00\n", "utf-8")
    words = ["train", "chat-lora", f"model.init={model}", f"data.files={broken}", "train.sequence_length=113"]
    words += [f"train.out={tmp_path / 'x'}", 'lora.targets=["decoder.blocks.*.attention.query"]']
    ended = ask(*words, "--dry-run")
    assert ended.code == 0, ended.out + ended.err
    assert (
        "<|im_start|>user\nAdd 0 and 0.<|im_end|>\n<|im_start|>assistant\n⟦It is 0.<|im_end|>⟧" in ended.out + ended.err
    )
    assert "2 dropped: not JSON (a record that cannot be parsed)" in ended.out
    assert f"{broken}:{len(chats.read_text('utf-8').splitlines()) + 1}  no json" in ended.out
    assert not (tmp_path / "x").exists()


def test_the_doctor_has_no_findings_on_conversations(model: Path, chats: Path, tmp_path: Path) -> None:
    bundle = load(model)
    data = prepare(read_recipe(chat_recipe(model, chats, tmp_path)), bundle)
    assert run_quick_checks(data, bundle.model) == []


def test_the_doctor_finds_a_wrong_mask(
    model: Path, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt that is rendered without the generation prompt: the model would also learn the assistant's header."""
    bundle, usual = load(model), ConversationEncoder._render

    def render(self: ConversationEncoder, messages: Any, tools: Any, *, add_generation_prompt: bool) -> list[int]:
        return usual(self, messages, tools, add_generation_prompt=False)

    monkeypatch.setattr(ConversationEncoder, "_render", render)
    data = prepare(read_recipe(chat_recipe(model, chats, tmp_path)), bundle)
    findings = run_quick_checks(data, bundle.model)
    assert {finding.check for finding in findings} == {"chat"}
    assert "learned parts do not begin right after the generation prompt" in findings[0].what
    assert findings[0].broken
