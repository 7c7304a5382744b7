"""Workers: a disconnect frees rows, failures stay isolated, and the event loop never waits for a model."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from bundles import chat_tokenizer, make_bundle
from commands import show_help
from serving import Serving, serve_in_process, serving, until, wait_until_idle
from typer.testing import CliRunner

import chumoku
from chumoku.cli import app
from chumoku.cli import serve as command
from chumoku.decoding import beam
from chumoku.decoding.beam_rules import Rules
from chumoku.decoding.scheduler import Scheduler
from chumoku.errors import MissingExtraError, UsageError
from chumoku.models.config import RotarySettings
from chumoku.server.fair_lock import FairLock
from chumoku.server.models import name_models, pick_name
from chumoku.server.security.limits import Limits
from chumoku.server.state import ServerState
from chumoku.server.worker import adjust_chunk

LIMITS = Limits(rows=3, queue=5)
LONG = {"model": "writer", "prompt": "a", "max_tokens": 900, "temperature": 0, "logit_bias": {"256": -100}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    make_bundle(place / "writer", "decoder", chat_tokenizer(), context=1009)
    make_bundle(place / "translator", "encoder-decoder", context=509)
    return place


@pytest.fixture
def server(folder: Path) -> Iterator[Serving]:
    with serving({name: folder / name for name in ("writer", "translator")}, limits=LIMITS) as running:
        yield running
        wait_until_idle(running.state)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow down steps, as in a larger model."""
    step = Scheduler.step

    def slowly(self: Scheduler) -> object:
        time.sleep(0.02)
        return step(self)

    monkeypatch.setattr(Scheduler, "step", slowly)


def request(path: str, body: dict) -> bytes:
    data = json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + data


@contextlib.contextmanager
def abandoned_request(server: Serving, path: str, **body: object) -> Iterator[socket.socket]:
    """A client that sends a request and disconnects at the end of the block."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    try:
        connection.sendall(request(path, body))
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_frees_rows(server: Serving, slow: None, stream: bool) -> None:
    worker = server.state.models["writer"].worker
    with abandoned_request(server, "/v1/completions", **LONG, n=2, stream=stream):
        until(lambda: worker.running == 2 and worker.cache_tokens > 20)
    wait_until_idle(server.state, 1.0)
    later = server.client.post("/v1/completions", json={**LONG, "n": LIMITS.rows, "max_tokens": 2})
    assert [one["finish_reason"] for one in later.json()["choices"]] == ["length"] * LIMITS.rows


def test_disconnect_in_the_queue(server: Serving, slow: None) -> None:
    worker = server.state.models["writer"].worker
    with abandoned_request(server, "/v1/completions", **LONG, n=3):
        until(lambda: worker.running == 3)
        with abandoned_request(server, "/v1/completions", **LONG, n=2, stream=True):
            until(lambda: worker.queue == 2)
        until(lambda: worker.queue == 0, 1.0)
        assert worker.running == 3
    wait_until_idle(server.state, 1.0)


def test_disconnect_while_the_prompt_is_read(server: Serving, slow: None) -> None:
    worker = server.state.models["writer"].worker
    with abandoned_request(server, "/v1/completions", **{**LONG, "prompt": [5] * 1000, "max_tokens": 2}):
        until(lambda: 0 < worker.cache_tokens < 1000)
    assert worker.cache_tokens < 1000
    wait_until_idle(server.state, 1.0)


def test_disconnect_during_a_translation(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, go_on = [0], beam.rank_candidates

    def slowly(*arguments: Any, **options: Any) -> object:
        steps[0] += 1
        time.sleep(0.02)
        return go_on(*arguments, **options)

    monkeypatch.setattr(beam, "rank_candidates", slowly)
    # The search takes ten seconds if it is not cancelled.
    monkeypatch.setattr(
        Rules, "done", lambda self, scores, live, numbers, *, length: length >= self.limit_array[numbers]
    )
    asked = {"model": "translator", "text": "a" * 400, "max_tokens": 500, "length_penalty": 10.0, "beam": 7}
    with abandoned_request(server, "/v1/translate", **asked):
        until(lambda: steps[0] > 3)
        assert server.state.models["translator"].worker.running == 1
    wait_until_idle(server.state, 1.0)
    assert steps[0] < 60, "the search continued after the disconnect"


def test_disconnect_does_not_change_other_texts(server: Serving, slow: None) -> None:
    alone = server.post("/v1/completions", **{**LONG, "max_tokens": 40}).json()["choices"][0]["text"]
    with ThreadPoolExecutor(2) as pool, abandoned_request(server, "/v1/completions", **LONG, n=1):
        mine = pool.submit(server.post, "/v1/completions", **{**LONG, "max_tokens": 40})
        time.sleep(0.2)
    assert mine.result().json()["choices"][0]["text"] == alone


def test_full_queue_gets_retry_after(server: Serving, slow: None) -> None:
    with abandoned_request(server, "/v1/completions", **LONG, n=8):
        until(lambda: server.state.models["writer"].pending == 8)
        answer = server.post("/v1/completions", **LONG)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"
        # The other model has its own queue, and /health never waits.
        assert server.post("/v1/translate", model="translator", text="a").status_code == 200
        assert server.client.get("/health").json() == {"status": "ok"}
    wait_until_idle(server.state, 1.0)
    assert server.post("/v1/completions", **LONG, n=9).status_code == 400, "more than the queue can ever hold"


def test_health_does_not_wait_for_models(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    go, step = threading.Event(), Scheduler.step

    def stuck(self: Scheduler) -> object:
        go.wait(10)
        return step(self)

    monkeypatch.setattr(Scheduler, "step", stuck)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/v1/completions", **{**LONG, "max_tokens": 3})
        until(lambda: server.state.models["writer"].pending == 1)
        times = []
        for _ in range(50):
            began = time.perf_counter()
            assert server.client.get("/health").status_code == 200
            times.append(time.perf_counter() - began)
        assert sorted(times)[25] < 0.03, "small responses are sent at once"
        go.set()
        assert asked.result().status_code == 200


def test_failed_step_fails_only_its_texts(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    step, broken, used = Scheduler.step, [True], []

    def breaks(self: Scheduler) -> object:
        time.sleep(0.02)
        used.append(self)
        if broken[0] and self.engine.lengths and self.engine.lengths[0] > 9:
            broken[0] = False
            raise RuntimeError("a secret place: /home/someone")
        return step(self)

    monkeypatch.setattr(Scheduler, "step", breaks)
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(server.post, "/v1/completions", **{**LONG, "max_tokens": 30}) for _ in range(5)]
        answers = [one.result() for one in asked]
    assert sorted(one.status_code for one in answers) == [200, 200, 500, 500, 500], "waiting texts continued"
    failed = next(one for one in answers if one.status_code == 500).json()["error"]
    assert failed["type"] == "server_error"
    assert "secret" not in failed["message"]
    texts = {one.json()["choices"][0]["text"] for one in answers if one.status_code == 200}
    assert texts == {server.post("/v1/completions", **{**LONG, "max_tokens": 30}).json()["choices"][0]["text"]}
    # In a stream, the status was already sent: the error is an event.
    broken[0] = True
    body = {**LONG, "max_tokens": 30, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as raw:
        events = [line for line in raw.iter_lines() if line]
    assert len({*map(id, used)}) == 2, "a failed scheduler is not used again"
    assert '"server_error"' in events[-2]
    assert events[-1] == "data: [DONE]"


def test_failed_batch_of_jobs_is_retried_one_by_one(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, calls = beam.rank_candidates, [0]

    def breaks(logits: object, totals: object, rules: object, *, length: int) -> object:
        calls[0] += 1
        time.sleep(0.005)
        if length == 2 and len(totals) > 1:  # type: ignore[arg-type]
            raise RuntimeError("only together")
        return rank(logits, totals, rules, length=length)  # type: ignore[arg-type]

    monkeypatch.setattr(beam, "rank_candidates", breaks)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: server.post("/v1/translate", model="translator", text=f"a{n}"), range(6)))
    assert [one.status_code for one in answers] == [200] * 6, "they failed only as a batch"


def test_nan_logits_are_an_engine_failure(folder: Path) -> None:
    broken = chumoku.load(folder / "writer")
    next(iter(broken.model.parameters())).data.fill_(float("nan"))
    with serving({"writer": broken}) as server:
        answer = server.post("/v1/completions", **{**LONG, "max_tokens": 3})
        assert answer.status_code == 500
        assert "are not finite" in answer.json()["error"]["message"]
        wait_until_idle(server.state)


def test_quiet_stream_sends_keep_alive_comments(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    from chumoku.server import streaming

    step = Scheduler.step
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(Scheduler, "step", lambda self: (time.sleep(0.3), step(self))[1])
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**LONG, "max_tokens": 2, "stream": True}) as raw:
        lines = [line for line in raw.iter_lines() if line]
    assert lines.count(": ") >= 4
    assert lines[-1] == "data: [DONE]"


def test_metrics(server: Serving) -> None:
    server.post("/v1/completions", **{**LONG, "prompt": [5] * 7, "max_tokens": 11})
    server.client.get("/nothing/of/the/kind")
    text = server.client.get("/metrics").text
    for line in (
        'chumoku_requests_total{route="/v1/completions",status="200"} 1',
        'chumoku_requests_total{route="other",status="404"} 1',
        'chumoku_tokens_total{model="writer",kind="prompt"} 7',
        'chumoku_tokens_total{model="writer",kind="completion"} 11',
        'chumoku_queue{model="translator"} 0',
        'chumoku_running{model="writer"} 0',
        'chumoku_cache_bytes{model="writer"} 0',
        'chumoku_first_token_seconds_count{model="writer"} 1',
        'chumoku_request_seconds_bucket{route="/v1/completions",le="+Inf"} 1',
    ):
        assert line in text.splitlines(), line
    assert "/nothing" not in text


def test_chunk_size_follows_the_step_time() -> None:
    chunk = 64
    for _ in range(5):
        chunk = adjust_chunk(chunk, 0.01)
    assert chunk == 256
    for seconds, expected in ((1.0, 128), (0.3, 128), (0.5, 64), (0.05, 128)):
        chunk = adjust_chunk(chunk, seconds)
        assert chunk == expected
    for _ in range(9):
        chunk = adjust_chunk(chunk, 3.0)
    assert chunk == 16


def test_fair_lock() -> None:
    lock, order = FairLock(), list[str]()

    def work(name: str) -> None:
        for _ in range(5):
            with lock:
                order.append(name)
                until(lambda: len(lock._waiters) == 2 or len(order) > 12)  # the other two wait for their next turn

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    with lock:
        for one in threads:
            one.start()
        until(lambda: len(lock._waiters) == 3)
    for one in threads:
        one.join()
    assert len(order) == 15
    assert all({*order[place : place + 3]} == {*"abc"} for place in range(0, 12, 3)), order

    inside: list[str] = []

    def guest() -> None:
        with lock:
            inside.append("guest")

    with lock:
        thread = threading.Thread(target=guest)
        thread.start()
        until(lambda: bool(lock._waiters))
        inside.append("before")
        lock.yield_turn()
        inside.append("after")
    thread.join()
    assert inside == ["before", "guest", "after"]


def test_model_names_come_from_paths(tmp_path: Path) -> None:
    for place in ("runs/demo/last", "runs/demo/best", "x/model"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").touch()
    paths = [str(tmp_path / name) for name in ("runs/demo", "runs/demo/best", "x/model", "a.Q4_1.gguf")]
    assert list(name_models(paths)) == ["demo", "demo-best", "x", "a.Q4_1"]
    assert name_models([paths[0]])["demo"].endswith("last")
    assert name_models([f"mine={paths[3]}"]) == {"mine": paths[3]}
    assert pick_name("a.gguf", {"a": "", "-a": ""}) not in ("a", "-a")
    for wrong in (["a=x", "a=y"], ["a/b=x"], []):
        with pytest.raises(UsageError):
            name_models(wrong)


def test_command_checks_options_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_command(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["serve", "nothing-here", *words])
        return getattr(result.exception, "exit_code", result.exit_code), str(result.exception) + result.output

    for host in ("0.0.0.0", "::", "192.168.1.5", "models.example"):
        code, message = run_command("--host", host)
        assert code == 2, host
        assert "a key is required" in message
    assert "easy to guess" in run_command("--host", "0.0.0.0", "--api-key", "abc")[1]
    assert "is not an origin" in run_command("--cors", "a.example/x")[1]
    assert run_command("--rows", "0")[0] == 2
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chumoku\[serve\]'"):
        command.require_modules("fastapi", "uvicorn")


def test_sigterm_while_models_load_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even as process 1 of a container, which ignores signals without a handler."""

    def open_models(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("The signal was ignored.")

    monkeypatch.setattr("chumoku.server.models.open_models", open_models)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        result = CliRunner().invoke(app, ["serve", "ja-en", "--port", "0"])
        assert (result.exit_code, result.stderr) == (0, "Stopped by SIGTERM.\n")
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_context_decides_the_frequencies_of_longrope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in generate: only if it is given, and at most the model's own. Other models are only limited."""
    factors = {"short_factors": [1.0, 1.3], "long_factors": [1.7, 5.0]}
    rotary = RotarySettings(scaling="longrope", factor=3.0, original=4099, **factors)
    models: dict[str, dict[str, Any]] = {
        "phi": {"position": "rotary", "rotary": rotary, "context": 4999},
        "gpt": {"position": "learned"},
    }
    paths = [str(make_bundle(tmp_path / name, "decoder", chat_tokenizer(), **keys)) for name, keys in models.items()]
    states: list[ServerState] = []

    def keep(state: ServerState, listening: socket.socket) -> None:
        listening.close()
        states.append(state)

    monkeypatch.setattr("chumoku.server.run.serve", keep)
    ids = torch.randint(250, (2, 13), generator=torch.Generator().manual_seed(1))
    for given, contexts in ((None, (4096, 4999, 61)), (17, (17, 17, 17)), (5003, (4999, 4999, 61))):
        words = [] if given is None else ["--context", str(given)]
        result = CliRunner().invoke(app, ["serve", *paths, "--port", "0", *words])
        assert result.exit_code == 0, result.output
        phi, gpt = (states[-1].models[name] for name in ("phi", "gpt"))
        assert (phi.capacity, phi.pipeline.config.context, gpt.capacity) == contexts
        expected = chumoku.load(paths[0], context=contexts[1]).model(ids).logits
        assert torch.equal(phi.pipeline.model(ids).logits, expected)


def test_help_lists_every_limit_and_loads_nothing() -> None:
    output = show_help("serve")
    for name in (*Limits.__dataclass_fields__, "api-key", "host-name", "cors", "runs"):
        assert f"--{name.replace('_', '-')}" in output
    assert "2000000" in output


@pytest.mark.slow
def test_sigterm_lets_requests_finish(folder: Path) -> None:
    with serve_in_process(str(folder / "writer"), "--drain-seconds", "20") as (process, line):
        assert line.startswith("writer at http://127.0.0.1:")
        pieces, body = [], {**LONG, "n": 8, "stream": True}
        with httpx.stream("POST", f"{line.split()[-1]}/v1/completions", json=body, timeout=60) as raw:
            for line in raw.iter_lines():
                if line and not pieces:
                    process.send_signal(signal.SIGTERM)
                pieces += [line] if line else []
        assert pieces[-1] == "data: [DONE]"
        assert sum('"finish_reason":"length"' in piece for piece in pieces) == 8, "every text was finished"
        assert process.wait(20) == 0
