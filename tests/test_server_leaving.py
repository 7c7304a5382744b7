"""Looks inside: whoever leaves one ends it, other models go on meanwhile, and a worker outlives whatever it meets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import chatty, made
from chumoku.server.errors import from_error
from chumoku.server.security.limits import Limits
from serving import Serving, serving, settled, until
from test_server_worker import left_alone

from chumoku.decoding import beam
from chumoku.decoding.engines.native import call
from chumoku.decoding.scheduler import Scheduler
from chumoku.errors import ChumokuError
from chumoku.nn import tap
from chumoku.nn.block import Block
from chumoku.probe import lens
from chumoku.server.checkpoints import bundle
from chumoku.server.openai import embeddings

PARTS = [{"part": "decoder", "layer": 0, "head": 0}]
LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "written": ("/v1/look", {"new": 64}),
    "blocks": ("/v1/look", {"target": "b" * 40, "lens": False}),
    "lens": ("/v1/look", {"target": "b" * 40}),
    "ablate": ("/v1/look/ablate", {"off": PARTS, "new": 64}),
    "tensor": ("/v1/look/tensor", {"target": "b", "address": "decoder.norm"}),
    "block": ("/v1/look/block", {"target": "b", "part": "decoder", "layer": 0, "head": 0, "place": 0}),
    "next": ("/v1/look/next", {"target": "b"}),
    "translated": ("/v1/look", {"model": "translator", "new": 64}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    made(place / "writer", "decoder", chatty(), context=1009, layers=30, width=16, heads=2)
    made(place / "other", "decoder", chatty(), context=127)
    made(place / "translator", "encoder-decoder", context=509)
    made(place / "reader", "encoder")
    made(place / "runs" / "one" / "checkpoints" / "step-00000030", "decoder", layers=30, width=16, heads=2)
    return place


@pytest.fixture
def server(folder: Path) -> Iterator[Serving]:
    models: dict[str, Any] = {name: folder / name for name in ("writer", "other", "translator", "reader")}
    with serving(models, limits=Limits(rows=3, queue=5), runs=folder / "runs") as running:
        yield running
        settled(running.house)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every block, every step and every layer of the lens is as long as those of a larger model; and their count."""
    steps = [0]

    def slower(owner: Any, name: str, only: Callable[..., bool] = lambda *given: True) -> None:
        work = getattr(owner, name)

        def slowly(*given: Any, **named: Any) -> Any:
            if only(*given):
                steps[0] += 1
                time.sleep(0.1)
            return work(*given, **named)

        monkeypatch.setattr(owner, name, slowly)

    monkeypatch.setattr(call, "unsupported", lambda model: "it is too fast for this test")
    slower(Block, "forward", lambda block, x, *rest: x.shape[-1] == 16)
    slower(lens, "said")
    slower(beam, "rank")
    return steps


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_that_nobody_waits_for_ends(server: Serving, slow: list[int], name: str) -> None:
    path, fields = LOOKS[name]
    body = {"model": "writer", "text": "a" * 9, **fields}
    worker = server.house.models[body["model"]].worker
    with left_alone(server, path, **body):
        until(lambda: slow[0] >= 2)
        assert worker.running == 1, "who looks is counted"
        with left_alone(server, path, **body):
            until(lambda: worker.queue == 1)
    settled(server.house, 1.0)
    seen = slow[0]
    time.sleep(0.4)
    assert slow[0] == seen, "it went on without anybody"


def test_a_look_lets_other_models_have_a_turn(server: Serving, slow: list[int]) -> None:
    with left_alone(server, "/v1/look/ablate", model="writer", text="a", off=PARTS, target="b"):
        until(lambda: bool(tap._tapes), 20)  # within the edits
        began = time.monotonic()
        assert server.post("/v1/completions", model="other", prompt="a", max_tokens=2).status_code == 200
        assert time.monotonic() - began < 3
        assert server.house.models["writer"].worker.running == 1, "meanwhile it went on"


def test_a_look_at_a_run_that_nobody_waits_for_ends(
    server: Serving, slow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    load, opening = bundle.load, threading.Event()
    monkeypatch.setattr(bundle, "load", lambda path: (opening.set(), time.sleep(0.5), load(path))[2])
    body = {"checkpoint": 30, "text": "abc", "target": "de", "map": "decoder", "layer": 29, "head": 1}
    with left_alone(server, "/v1/runs/one/look", **body):
        opening.wait(5)
        assert not server.house.turns._taken, "while it is opened, models that are served compute"
        until(lambda: slow[0] >= 2)
        assert server.post("/v1/completions", model="other", prompt="a", max_tokens=2).status_code == 200
    until(lambda: not server.house.turns._taken, 1.0)
    seen = slow[0]
    time.sleep(0.4)
    assert slow[0] == seen < 30, "it went on without anybody"


def test_who_records_disturbs_no_other_thread(folder: Path) -> None:
    model = torch.nn.Linear(2, 3)
    with tap.edit(model, {}), ThreadPoolExecutor(1) as pool:
        assert tap.recording()
        assert not pool.submit(tap.recording).result(), "an engine that is opened meanwhile is the fast one"


def test_a_worker_outlives_what_nobody_foresaw(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    together = embeddings.Embedding.together

    def too_few(self: Any, jobs: Sequence[Any], pass_on: Callable[[], None]) -> list[Any]:
        return together(self, jobs, pass_on)[:-1]

    monkeypatch.setattr(embeddings.Embedding, "together", too_few)
    answer = server.client.post("/v1/embeddings", json={"model": "reader", "input": "a"}, timeout=5)
    assert answer.status_code == 500
    monkeypatch.undo()
    assert server.post("/v1/embeddings", model="reader", input="a").status_code == 200

    cancel, step = Scheduler.cancel, Scheduler.step

    def breaks(self: Scheduler, number: int) -> None:
        raise RuntimeError("/a/secret/place")

    monkeypatch.setattr(Scheduler, "cancel", breaks)
    monkeypatch.setattr(Scheduler, "step", lambda self: (time.sleep(0.02), step(self))[1])
    long = {"model": "other", "prompt": "a", "max_tokens": 100, "temperature": 0, "logit_bias": {"256": -100}}
    with ThreadPoolExecutor(1) as pool:
        with left_alone(server, "/v1/completions", **long):
            until(lambda: server.house.models["other"].worker.running == 1)
            mate = pool.submit(server.client.post, "/v1/completions", json=long, timeout=5)
            until(lambda: server.house.models["other"].worker.running == 2)
        assert mate.result().status_code == 500, "who was at hand hears of it"
        assert "secret" not in mate.result().text
    monkeypatch.setattr(Scheduler, "cancel", cancel)
    assert server.post("/v1/completions", **{**long, "max_tokens": 3}).status_code == 200


def test_what_cannot_even_be_begun_fails_and_is_forgotten(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = server.house.models["other"].worker
    monkeypatch.setattr(worker, "_next_jobs", lambda: 1 / 0)
    answer = server.client.post("/v1/look/tokens", json={"model": "other", "text": "a"}, timeout=5)
    assert answer.status_code == 500
    monkeypatch.undo()
    assert server.post("/v1/look/tokens", model="other", text="a").status_code == 200


def test_no_answer_names_a_place_of_this_machine(folder: Path, tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "runs" / "bad" / "checkpoints" / "step-00000030", "decoder")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    outside = made(tmp_path / "runs" / "bad" / "checkpoints" / "step-00000050", "decoder")
    (tmp_path / "elsewhere.json").write_bytes((outside / "config.json").read_bytes())
    (outside / "config.json").unlink()
    (outside / "config.json").symlink_to(tmp_path / "elsewhere.json")
    body = {"text": "abc", "map": "decoder", "layer": 0, "head": 0}
    with serving({"other": folder / "other"}, runs=tmp_path / "runs") as server:
        for step in (30, 50):
            answer = server.post("/v1/runs/bad/look", checkpoint=step, **body)
            assert answer.status_code == 400
            assert "This checkpoint cannot be read" in answer.json()["error"]["message"]
            assert "/" not in answer.json()["error"]["message"], "no path"
        gone = server.post("/v1/runs/bad/look", checkpoint=70, **body)
        assert gone.status_code == 404
        assert str(tmp_path) not in gone.text + server.client.get("/v1/runs").text
    for said in ("/home/one/x.json is damaged.", "See 'C:\\Users\\one\\x.json'.", "a (/home/one/x.json)"):
        told = json.dumps(from_error(ChumokuError(said)).body)
        assert "one" not in told
        assert "x.json" in told
    kept = "Ask it at /v1/completions and/or 1/2 of http://a/b."
    assert from_error(ChumokuError(kept)).message == kept
