"""generation_config.json gives a model's default options; explicit options win, and exports carry it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from bundles import chat_tokenizer, make_bundle
from commands import Ask

import chumoku
from chumoku.decoding.arguments import fill_options
from chumoku.decoding.chat import make_turn
from chumoku.decoding.defaults import MIN_P
from chumoku.decoding.generate import make_request
from chumoku.decoding.sampling import SamplingOptions
from chumoku.models.generation_config import GenerationConfig, read_generation_config
from chumoku.pipeline import Pipeline
from chumoku.text.chat_template import ChatTemplate
from chumoku.weights.checksums import write_checksums

QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "bos_token_id": 7}
LLAMA = {"width": 24, "heads": 3, "position": "rotary", "norm": "rms", "feedforward": "swiglu"}


def save_with(folder: Path, values: dict[str, Any], **changes: Any) -> Path:
    make_bundle(folder, "decoder", chat_tokenizer(), **changes)
    (folder / "generation_config.json").write_text(json.dumps(values))
    write_checksums(folder)
    return folder


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": 2, "max_new_tokens": 9}, {}),
        ({"do_sample": True}, {}),
        (QWEN, {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}),
        ({"do_sample": False, **{"temperature": 0.7, "top_p": 0.9}}, {"temperature": 0.0, "top_p": None}),
        ({"do_sample": False, "repetition_penalty": 1.2}, {"temperature": 0, "top_p": None, "repetition_penalty": 1.2}),
        ({"top_k": 64, "top_p": 0.95}, {"temperature": 1.0, "top_p": 0.95, "top_k": 64}),
        ({"temperature": 0.6}, {"temperature": 0.6, "top_p": None}),
        ({"temperature": 1, "top_p": 1.0, "top_k": 0, "min_p": 0.0}, {"temperature": 1, "top_p": None}),
        ({"temperature": None, "top_k": None}, {}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ],
)
def test_options_of_a_file(values: dict[str, Any], expected: dict[str, Any]) -> None:
    config = GenerationConfig(values)
    filled = {"min_p": MIN_P, **expected} if "temperature" not in expected else expected
    assert fill_options(config, {}) == SamplingOptions(**filled)
    explicit = fill_options(config, {"temperature": 0.2, "top_k": 3, "top_p": 0.5, "repetition_penalty": 1.0})
    assert explicit == SamplingOptions(0.2, top_k=3, top_p=0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"temperature": value} for value in (-1, "0.7", True, float("nan"), float("inf"), [1])),
        *({"top_p": value} for value in (0, 1.5)),
        *({"top_k": value} for value in (-1, 2.5, 1 << 30)),
        *({"eos_token_id": value} for value in (-1, "2", [True], [[2]], list(range(65)))),
        {"repetition_penalty": 0},
    ],
)
def test_wrong_values_are_ignored_with_a_warning(wrong: dict[str, Any], tmp_path: Path) -> None:
    (name,) = wrong
    with pytest.warns(UserWarning, match=rf"generation_config\.json has .*{name}.* is ignored: "):
        pipeline = chumoku.load(save_with(tmp_path / "m", {"min_p": 0.1, **wrong}))
    assert pipeline.generation_config.values == {"min_p": 0.1}
    assert pipeline.tokenizer.stop_tokens == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chumoku.load(pipeline.save(tmp_path / "saved"))


def test_python_and_commands_use_the_models_options(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_with(tmp_path / "m", {"temperature": 1.5, "top_k": 11, "repetition_penalty": 1.7})
    pipeline, options = chumoku.load(folder), {"max_new_tokens": 17, "seed": 5}
    same = {"temperature": 1.5, "top_k": 11, "top_p": None, "repetition_penalty": 1.7}
    plain = Pipeline(pipeline.model, pipeline.tokenizer)
    for method in ("generate", "chat"):
        found = getattr(pipeline, method)("ab", **options)
        assert found == getattr(plain, method)("ab", **options, **same)
        assert found != getattr(plain, method)("ab", **options)
        assert getattr(pipeline, method)("ab", **options, temperature=0) == getattr(plain, method)(
            "ab", **options, temperature=0, repetition_penalty=1.7
        )
    expected = pipeline.generate("ab", **options)
    assert "".join(pipeline.stream("ab", **options)) == expected
    assert pipeline.to("cpu").generate("ab", **options) == expected
    monkeypatch.setattr("signal.signal", lambda *_: None)
    words = ("generate", str(folder), "ab", "--max-new-tokens", "17", "--seed", "5")
    assert ask(*words).out == expected + "\n"
    explicit = plain.generate("ab", **options, **{**same, "temperature": 0.1})
    assert ask(*words, "--temperature", "0.1").out == explicit + "\n"


def test_every_listed_token_ends_a_text(tmp_path: Path) -> None:
    start, end = (chat_tokenizer().specials[mark] for mark in ("<|im_start|>", "<|im_end|>"))
    pipeline = chumoku.load(save_with(tmp_path / "m", {"eos_token_id": [start, end, 10**6]}))
    plain = chumoku.load(make_bundle(tmp_path / "plain", "decoder", chat_tokenizer()))
    letter = pipeline.tokenizer.encode("x")[0]
    bias = {start: 1e6, letter: 1e3}
    for method in ("generate", "chat"):
        assert getattr(pipeline, method)("ab", max_new_tokens=5, bias=bias) == ""
        assert getattr(plain, method)("ab", max_new_tokens=5, bias=bias) == "xxxxx", "a special token is not generated"
    lengths = {"max_new_tokens": 5, "min_new_tokens": 0, "sampling": SamplingOptions()}
    assert {*make_request(pipeline.model, "ab", tokenizer=pipeline.tokenizer, **lengths).end} == {start, end}
    turn = make_turn(pipeline.model, "ab", tokenizer=pipeline.tokenizer, max_new_tokens=5)
    assert {*turn.request.end} == {start, end}


def test_bundles_and_exports_carry_it(tmp_path: Path) -> None:
    folder = save_with(tmp_path / "m", QWEN, **LLAMA)
    pipeline = chumoku.load(folder)
    assert pipeline.generation_config.values == QWEN
    assert chumoku.load(pipeline.save(tmp_path / "saved")).generation_config.values == QWEN
    chumoku.convert(folder, tmp_path / "c", to="chumoku")
    chumoku.convert(folder, tmp_path / "t", to="transformers")
    chumoku.convert(folder, tmp_path / "g.gguf", to="gguf")
    for name in ("c", "t"):
        assert chumoku.load(tmp_path / name).generation_config.values == QWEN
    assert chumoku.load(tmp_path / "g.gguf").generation_config.sampling == pipeline.generation_config.sampling
    assert read_generation_config(tmp_path).values == {}
    chumoku.convert(make_bundle(tmp_path / "p", "decoder", **LLAMA), tmp_path / "q", to="transformers")
    assert not (tmp_path / "q" / "generation_config.json").exists()


def test_a_fine_tuned_model_keeps_template_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = chumoku.load(save_with(tmp_path / "m", QWEN))
    base.tokenizer.chat_template = ChatTemplate({"default": "{{ messages[0].content }}"})
    base.save("base")
    Path("text.txt").write_text("It was the best of times, it was the worst of times.\n" * 29)
    recipe: dict[str, dict[str, Any]] = {
        "model": {"init": "base"},
        "data": {"files": "text.txt", "validation_share": 0.2},
        "train": {"out": "run", "steps": 2, "batch_size": 3, "sequence_length": 17},
    }
    for steps, resume in ((2, False), (3, True)):
        recipe["train"]["steps"] = steps
        trained = chumoku.load(chumoku.train(recipe, resume=resume).last)
        assert trained.generation_config == base.generation_config
        assert trained.tokenizer.chat_template == base.tokenizer.chat_template


def test_the_server_lists_and_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    from chumoku.decoding.engines.native import build
    from chumoku.server.models import open_models
    from chumoku.server.openai import schemas
    from chumoku.server.openai.generation import plan_chat, plan_completion
    from chumoku.server.security.limits import Limits

    served = open_models([str(save_with(tmp_path / "m", QWEN))], Limits())["m"]
    own = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": None, "repetition_penalty": 1.05}
    assert served.card["sampling"] == own
    assert served.chat_notice == "This model has no chat template; messages are written in the format chatml."
    assert open_models([str(make_bundle(tmp_path / "t", "encoder-decoder"))], Limits())["t"].chat_notice is None
    assert served.engine_notice == build.why_not()
    monkeypatch.setattr(build, "_open", build._open.__wrapped__)
    monkeypatch.setenv("CHUMOKU_NATIVE", "0")
    assert "disables the native library. Decoding on a CPU works without it" in str(served.engine_notice)

    def options(plan: Any) -> dict[str, Any]:
        return {name: getattr(plan.requests[0].sampling, name) for name in own}

    assert options(plan_completion(served, schemas.Completion(model="m", prompt="a"))) == own
    message = schemas.Message(role="user", content="a")
    assert options(plan_chat(served, schemas.Chat(model="m", messages=[message]))) == own
    off = schemas.Completion(model="m", prompt="a", temperature=0.1, top_k=0, top_p=1.0, min_p=0.0)
    assert options(plan_completion(served, off)) == {
        **dict.fromkeys(own),
        "temperature": 0.1,
        "repetition_penalty": 1.05,
    }


def test_options_are_described() -> None:
    assert SamplingOptions(min_p=0.3).describe() == "temperature 0.7, top_p 0.95, min_p 0.3"
    assert SamplingOptions(1, top_k=20, top_p=None, repetition_penalty=1.05).describe() == (
        "temperature 1, top_k 20, repetition_penalty 1.05"
    )
