"""Looks inside: a disconnect cancels them, other models continue meanwhile, and a worker survives any exception."""

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
from bundles import chat_tokenizer, make_bundle
from serving import Serving, serving, until, wait_until_idle
from test_server_worker import abandoned_request

from chumoku.decoding import beam
from chumoku.decoding.engines.native import call
from chumoku.decoding.scheduler import Scheduler
from chumoku.errors import ChumokuError
from chumoku.nn import tap
from chumoku.nn.block import Block
from chumoku.probe import lens
from chumoku.server.checkpoints import bundle
from chumoku.server.errors import to_request_error
from chumoku.server.openai import embeddings
from chumoku.server.security.limits import Limits

PARTS = [{"part": "decoder", "layer": 0, "head": 0}]
LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "written": ("/v1/look", {"new": 64}),
    "blocks": ("/v1/look", {"target": "b" * 40, "lens": False}),
    "lens": ("/v1/look", {"target": "b" * 40}),
    "ablate": ("/v1/look/ablate", {"off": PARTS, "new": 64}),
    "effects": ("/v1/look/effects", {"target": "b", "part": "decoder", "layer": 0}),
    "tensor": ("/v1/look/tensor", {"target": "b", "address": "decoder.norm"}),
    "block": ("/v1/look/block", {"target": "b", "part": "decoder", "layer": 0, "head": 0, "place": 0}),
    "next": ("/v1/look/next", {"target": "b"}),
    "translated": ("/v1/look", {"model": "translator", "new": 64}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    make_bundle(place / "writer", "decoder", chat_tokenizer(), context=1009, layers=30, width=16, heads=2)
    make_bundle(place / "other", "decoder", chat_tokenizer(), context=127)
    make_bundle(place / "translator", "encoder-decoder", context=509)
    make_bundle(place / "reader", "encoder")
    make_bundle(place / "runs" / "one" / "checkpoints" / "step-00000030", "decoder", layers=30, width=16, heads=2)
    return place


@pytest.fixture
def server(folder: Path) -> Iterator[Serving]:
    models: dict[str, Any] = {name: folder / name for name in ("writer", "other", "translator", "reader")}
    with serving(models, limits=Limits(rows=3, queue=5), runs=folder / "runs") as running:
        yield running
        wait_until_idle(running.state)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Slow down every block, step and layer of the lens, as in a larger model; returns their count."""
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
    slower(lens, "compute_logits")
    slower(beam, "rank_candidates")
    return steps


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", LOOKS)
def test_look_ends_after_a_disconnect(server: Serving, slow: list[int], name: str) -> None:
    path, fields = LOOKS[name]
    body = {"model": "writer", "text": "a" * 9, **fields}
    worker = server.state.models[body["model"]].worker
    with abandoned_request(server, path, **body):
        until(lambda: slow[0] >= 2)
        assert worker.running == 1, "a look is counted"
        with abandoned_request(server, path, **body):
            until(lambda: worker.queue == 1)
    wait_until_idle(server.state, 1.0)
    seen = slow[0]
    time.sleep(0.4)
    assert slow[0] == seen, "it continued after the disconnect"


def test_look_lets_other_models_compute(server: Serving, slow: list[int]) -> None:
    with abandoned_request(server, "/v1/look/ablate", model="writer", text="a", off=PARTS, target="b"):
        until(lambda: bool(tap._tapes), 20)  # the ablation has begun
        began = time.monotonic()
        assert server.post("/v1/completions", model="other", prompt="a", max_tokens=2).status_code == 200
        assert time.monotonic() - began < 3
        assert server.state.models["writer"].worker.running == 1, "the look continued"


def test_checkpoint_look_ends_after_a_disconnect(
    server: Serving, slow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    load, opening = bundle.load, threading.Event()
    monkeypatch.setattr(bundle, "load", lambda path: (opening.set(), time.sleep(0.5), load(path))[2])
    body = {"checkpoint": 30, "text": "abc", "target": "de", "map": "decoder", "layer": 29, "head": 1}
    with abandoned_request(server, "/v1/runs/one/look", **body):
        opening.wait(5)
        assert not server.state.lock._locked, "served models may compute while it is opened"
        until(lambda: slow[0] >= 2)
        assert server.post("/v1/completions", model="other", prompt="a", max_tokens=2).status_code == 200
    until(lambda: not server.state.lock._locked, 1.0)
    seen = slow[0]
    time.sleep(0.4)
    assert slow[0] == seen < 30, "it continued after the disconnect"


def test_recording_does_not_affect_other_threads(folder: Path) -> None:
    model = torch.nn.Linear(2, 3)
    with tap.edit(model, {}), ThreadPoolExecutor(1) as pool:
        assert tap.is_recording()
        assert not pool.submit(tap.is_recording).result(), "another thread can open the fast engine"


def test_worker_survives_unexpected_exceptions(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    run_batch = embeddings.EmbeddingJob.run_batch

    def too_few(self: Any, jobs: Sequence[Any], yield_turn: Callable[[], None]) -> list[Any]:
        return run_batch(self, jobs, yield_turn)[:-1]

    monkeypatch.setattr(embeddings.EmbeddingJob, "run_batch", too_few)
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
        with abandoned_request(server, "/v1/completions", **long):
            until(lambda: server.state.models["other"].worker.running == 1)
            mate = pool.submit(server.client.post, "/v1/completions", json=long, timeout=5)
            until(lambda: server.state.models["other"].worker.running == 2)
        assert mate.result().status_code == 500, "current requests get the error"
        assert "secret" not in mate.result().text
    monkeypatch.setattr(Scheduler, "cancel", cancel)
    assert server.post("/v1/completions", **{**long, "max_tokens": 3}).status_code == 200


def test_job_that_cannot_start_fails_once(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = server.state.models["other"].worker
    monkeypatch.setattr(worker, "_next_jobs", lambda: 1 / 0)
    answer = server.client.post("/v1/look/tokens", json={"model": "other", "text": "a"}, timeout=5)
    assert answer.status_code == 500
    monkeypatch.undo()
    assert server.post("/v1/look/tokens", model="other", text="a").status_code == 200


def test_responses_contain_no_paths_of_this_machine(folder: Path, tmp_path: Path) -> None:
    checkpoint = make_bundle(tmp_path / "runs" / "bad" / "checkpoints" / "step-00000030", "decoder")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    outside = make_bundle(tmp_path / "runs" / "bad" / "checkpoints" / "step-00000050", "decoder")
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
    for message in ("/home/one/x.json is damaged.", "See 'C:\\Users\\one\\x.json'.", "a (/home/one/x.json)"):
        body = json.dumps(to_request_error(ChumokuError(message)).body)
        assert "one" not in body
        assert "x.json" in body
    unchanged = "Ask it at /v1/completions and/or 1/2 of http://a/b."
    assert to_request_error(ChumokuError(unchanged)).message == unchanged
