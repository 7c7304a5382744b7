"""Python, the commands, the server and the page have the same default sampling options."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from bundles import make_bundle
from commands import Ask

import chumoku
from chumoku.decoding.arguments import fill_options
from chumoku.decoding.defaults import MIN_P, TEMPERATURE, TOP_P
from chumoku.decoding.generate import DEFAULT_SAMPLING
from chumoku.decoding.sampling import SamplingOptions
from chumoku.models.generation_config import GenerationConfig


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("models") / "writer", "decoder")


def test_default_options_keep_to_likely_tokens() -> None:
    assert SamplingOptions() == SamplingOptions(temperature=TEMPERATURE, top_p=TOP_P)
    assert fill_options(GenerationConfig(), {}) == DEFAULT_SAMPLING == SamplingOptions(min_p=MIN_P)
    assert 0 < TEMPERATURE < 1
    assert TOP_P < 1
    assert 0 < MIN_P < 1


@pytest.mark.parametrize("given", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"top_p": None}])
def test_the_default_min_p_is_off_beside_other_rules(given: dict[str, float | None]) -> None:
    """So that temperature 1 and top-p 1 are the model's own distribution."""
    assert fill_options(GenerationConfig(), given).min_p is None
    assert fill_options(GenerationConfig(), {"seed": 3, "repetition_penalty": 1.2}).min_p == MIN_P
    assert fill_options(GenerationConfig(given), {}).min_p == (None if given != {"top_p": None} else MIN_P)


def test_python_and_the_commands_have_the_same_default(writer: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = chumoku.load(writer)
    options = {"max_new_tokens": 17, "seed": 5}
    output = pipeline.generate("ab", **options)
    assert output == pipeline.generate("ab", **options, temperature=TEMPERATURE, top_p=TOP_P, min_p=MIN_P)
    assert output != pipeline.generate("ab", **options, temperature=1, top_p=None)
    assert output == "".join(pipeline.stream("ab", **options))
    answer = pipeline.chat("ab", **options)
    assert answer == pipeline.chat("ab", **options, temperature=TEMPERATURE, top_p=TOP_P, min_p=MIN_P)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    shown = ask("generate", str(writer), "ab", "--max-new-tokens", "17", "--seed", "5")
    assert shown.out == output + "\n"


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_help_says_what_the_default_is(name: str, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = ask(name, "--help").out
    for option, value in (("temperature", TEMPERATURE), ("top-p", TOP_P), ("min-p", MIN_P)):
        assert re.search(rf"--{option} .*\[default: \({value} or the model's\)\]", result), result


def test_server_requests_get_the_default() -> None:
    pytest.importorskip("fastapi")
    from chumoku.server.openai import schemas
    from chumoku.server.openai.generation import sampling_of

    bare = sampling_of(schemas.Completion(model="m", prompt="a", seed=3), GenerationConfig())
    assert bare == SamplingOptions(seed=3, min_p=MIN_P)
    body = schemas.Completion(model="m", prompt="a", seed=3, temperature=1.0, top_p=1.0)
    free = sampling_of(body, GenerationConfig())
    assert free == SamplingOptions(temperature=1.0, top_p=None, seed=3)


def test_the_pages_sliders_start_at_the_default() -> None:
    script = files("chumoku.viewer").joinpath("views/chat/sampling_controls.js").read_text("utf-8")
    starts = dict(re.findall(r'name: "(\w+)".*?start: ([\d.]+)', script))
    assert float(starts["temperature"]) == TEMPERATURE
    assert float(starts["topP"]) == TOP_P
    assert float(starts["minP"]) == MIN_P
    assert "top_p: topP ?? 1" in script, "what is switched off on the page is switched off on the server"
