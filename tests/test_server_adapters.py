"""Adapters by name: each text is that of the model with its adapter, in one batch, and invalid adapters are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import chat_tokenizer, make_bundle
from safetensors.torch import load_file, save_file
from serving import KEY, Serving, serve_command, serving
from test_lora import EVERYTHING, attach_trained

import chumoku
from chumoku import lora
from chumoku.decoding.requests import ActiveRequest
from chumoku.errors import ChumokuError, DamagedError, UsageError
from chumoku.lora import LoraSettings
from chumoku.server.adapters import open_adapter
from chumoku.server.models import name_models, open_models
from chumoku.server.security.limits import Limits

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SETTINGS = {
    "poems": LoraSettings(rank=3, alpha=5.0, targets=EVERYTHING),
    "news": LoraSettings(rank=2, alpha=29.0, targets=["**.attention.*", "**.down"]),
}
PROMPT = "The same prompt for all of them, longer than the shortest beginning that is copied."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("adapters")
    make_bundle(place / "writer", "decoder", chat_tokenizer(), context=499)
    for number, (name, settings) in enumerate(SETTINGS.items()):
        model = attach_trained(chumoku.load(place / "writer").model, settings, 11 + number)
        lora.save(model, place / name, base=str(place / "writer"))
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Serving]:
    models = open_models([str(folder / "writer")], Limits(), adapters=[f"{name}={folder / name}" for name in SETTINGS])
    merged = {f"merged-{name}": chumoku.load(folder / "writer", adapter=folder / name) for name in SETTINGS}
    with serving({"writer": models["writer"].pipeline, **merged}) as running:
        running.state.models["writer"].adapters = models["writer"].adapters
        yield running


def complete(server: Serving, model: str, **options: Any) -> Any:
    response = server.post("/v1/completions", **{"model": model, "prompt": PROMPT, "max_tokens": 13, **options})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.1, "seed": 5}])
def test_texts_in_one_batch_equal_those_alone_and_merged(server: Serving, options: Any) -> None:
    def tokens(name: str) -> list[str]:
        return complete(server, name, logprobs=0, **options)["choices"][0]["logprobs"]["tokens"]

    names = ["writer", *SETTINGS]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(tokens, names * 2))
    assert found == [tokens(name) for name in names] * 2, "alone"
    assert found[1:3] == [tokens(f"merged-{name}") for name in SETTINGS]
    assert len({tuple(text) for text in found}) == 3


def test_chat_and_responses_choose_an_adapter(server: Serving) -> None:
    found = {}
    for name in ("writer", *SETTINGS):
        options = {"model": name, "temperature": 0}
        messages = [{"role": "user", "content": PROMPT}]
        chat = server.post("/v1/chat/completions", **options, messages=messages, max_tokens=29).json()
        response = server.post("/v1/responses", **options, input=PROMPT, max_output_tokens=29).json()
        found[name] = chat["choices"][0]["message"]["content"]
        assert (chat["model"], response["model"]) == (name, name)
        assert response["output"][0]["content"][0]["text"] == found[name]
    assert len({*found.values()}) == 3


def test_the_prefix_cache_is_not_shared_between_adapters(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def cached(model: str, prompt: str) -> int:
        return complete(server, model, prompt=prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]

    first, second = "A first" + PROMPT, "Another" + PROMPT
    assert [cached(name, first) for name in ("poems", "news", "writer")] == [0, 0, 0]
    assert all(cached(name, first) > 0 for name in ("poems", "news", "writer"))
    monkeypatch.setattr(ActiveRequest, "cache_key", property(lambda self: self.owner[0]))
    assert [cached(name, second) > 0 for name in ("poems", "news")] == [False, True], "a planted shared key is noticed"


def test_models_are_listed(server: Serving) -> None:
    cards = server.client.get("/v1/models").json()["data"]
    listed = [(card["id"], card["parent"]) for card in cards]
    assert listed[:3] == [("writer", None), ("poems", "writer"), ("news", "writer")]
    assert server.client.get("/v1/models/news").json() == cards[2]


def test_unknown_names_are_refused(server: Serving) -> None:
    bodies = {
        "/v1/completions": {"prompt": "a"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
        "/v1/responses": {"input": "a"},
    }
    for path, body in bodies.items():
        response = server.post(path, model="prose", **body)
        assert response.status_code == 404
        assert "Available: writer, poems, news, merged-poems, merged-news." in response.json()["error"]["message"]
    response = server.post("/v1/look", model="poems", text="a")
    assert response.status_code == 400
    assert "poems is an adapter, which can only generate text. Use writer here." in response.text


def change_config(folder: Path, **values: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_tensors(folder: Path, change: Any) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def widen(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items()}


def rename(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.replace("blocks.1", "blocks.9").replace("layers.1", "layers.9"): one for name, one in tensors.items()}


HOSTILE: dict[str, tuple[Any, type[ChumokuError], str]] = {
    "rank": (lambda one: change_config(one, r=513), UsageError, "has the rank 513; the server accepts at most 512"),
    "a large rank of one matrix": (
        lambda one: change_config(one, rank_pattern={"query": 60_000}),
        UsageError,
        "has the rank 60,000",
    ),
    "shape": (lambda one: change_tensors(one, widen), UsageError, "has shape"),
    "another model": (lambda one: change_tensors(one, rename), UsageError, "has no such matrix"),
    "NaN": (
        lambda one: change_tensors(one, lambda all_: {name: tensor * torch.nan for name, tensor in all_.items()}),
        DamagedError,
        "not finite",
    ),
    "DoRA": (lambda one: change_config(one, use_dora=True), UsageError, "DoRA adapter, which cannot share a batch"),
    "not safetensors": (lambda one: (one / WEIGHTS).write_bytes(b"\xff" * 999), ChumokuError, WEIGHTS),
    "empty": (lambda one: (one / WEIGHTS).write_bytes(b""), ChumokuError, WEIGHTS),
    "no config": (lambda one: (one / CONFIG).unlink(), UsageError, "is not an adapter"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_adapters_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    model = chumoku.load(folder / "writer").model
    for file in (folder / "poems").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    open_adapter(model, tmp_path)
    change, error, reason = HOSTILE[name]
    change(tmp_path)
    with pytest.raises(error, match=reason):
        open_adapter(model, tmp_path)


def test_adapters_need_one_decoder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 models were given"):
        name_models(["a", "b"], ["poems=c"])
    with pytest.raises(UsageError, match="'a' is not a valid model name"):
        name_models(["a=x"], ["a=y"])
    with pytest.raises(UsageError, match="only a decoder can be served with adapters"):
        open_adapter(chumoku.load(make_bundle(tmp_path / "m", "encoder")).model, folder / "poems")


def test_the_command_serves_adapters(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    adapters = [word for name in SETTINGS for word in ("--adapter", f"{name}={folder / name}")]
    with serve_command(str(folder / "writer"), *adapters, "--api-key", KEY) as server:
        assert capfd.readouterr().err.startswith("writer, poems, news at http")
        assert server.post("/v1/completions", model="news", prompt=PROMPT, max_tokens=3).status_code == 200
