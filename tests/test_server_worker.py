"""Workers: whoever leaves frees what he held, what fails fails alone, and the loop never waits for a model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from bundles import chatty, made
from chumoku.server.models import free_name, named
from chumoku.server.security.limits import Limits
from serving import Serving, serving, settled, until
from typer.testing import CliRunner

import chumoku
from chumoku.cli import app
from chumoku.cli import serve as command
from chumoku.decoding import beam
from chumoku.decoding.beam_rules import Rules
from chumoku.decoding.scheduler import Scheduler
from chumoku.errors import MissingExtraError, UsageError
from chumoku.server.fair_lock import Turns
from chumoku.server.worker import paced

LIMITS = Limits(rows=3, queue=5)
LONG = {"model": "writer", "prompt": "a", "max_tokens": 900, "temperature": 0, "logit_bias": {"256": -100}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    made(place / "writer", "decoder", chatty(), context=1009)
    made(place / "translator", "encoder-decoder", context=509)
    return place


@pytest.fixture
def server(folder: Path) -> Iterator[Serving]:
    with serving({name: folder / name for name in ("writer", "translator")}, limits=LIMITS) as running:
        yield running
        settled(running.house)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps as long as those of a larger model."""
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
def left_alone(server: Serving, path: str, **body: object) -> Iterator[socket.socket]:
    """A client that asks, and leaves without a word at the end of the block."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    try:
        connection.sendall(request(path, body))
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_rows(server: Serving, slow: None, stream: bool) -> None:
    worker = server.house.models["writer"].worker
    with left_alone(server, "/v1/completions", **LONG, n=2, stream=stream):
        until(lambda: worker.running == 2 and worker.cache_tokens > 20)
    settled(server.house, 1.0)


def test_a_client_that_leaves_the_queue(server: Serving, slow: None) -> None:
    worker = server.house.models["writer"].worker
    with left_alone(server, "/v1/completions", **LONG, n=3):
        until(lambda: worker.running == 3)
        with left_alone(server, "/v1/completions", **LONG, n=2, stream=True):
            until(lambda: worker.queue == 2)
        until(lambda: worker.queue == 0, 1.0)
        assert worker.running == 3
    settled(server.house, 1.0)


def test_a_client_that_leaves_while_its_prompt_is_read(server: Serving, slow: None) -> None:
    worker = server.house.models["writer"].worker
    with left_alone(server, "/v1/completions", **{**LONG, "prompt": [5] * 1000, "max_tokens": 2}):
        until(lambda: 0 < worker.cache_tokens < 1000)
    assert worker.cache_tokens < 1000
    settled(server.house, 1.0)


def test_a_client_that_leaves_a_translation(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, go_on = [0], beam.go_on

    def slowly(*arguments: object) -> object:
        steps[0] += 1
        time.sleep(0.02)
        return go_on(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(beam, "go_on", slowly)
    # Ten seconds of search, if nobody ends it.
    monkeypatch.setattr(Rules, "done", lambda self, found, live, *, length, limit: length >= limit)
    asked = {"model": "translator", "text": "a" * 400, "max_tokens": 500, "length_penalty": 10.0, "beam": 7}
    with left_alone(server, "/v1/translate", **asked):
        until(lambda: steps[0] > 3)
        assert server.house.models["translator"].worker.running == 1
    settled(server.house, 1.0)
    assert steps[0] < 60, "the search went on without anybody"


def test_others_are_not_disturbed(server: Serving, slow: None) -> None:
    alone = server.post("/v1/completions", **{**LONG, "max_tokens": 40}).json()["choices"][0]["text"]
    with ThreadPoolExecutor(2) as pool, left_alone(server, "/v1/completions", **LONG, n=1):
        mine = pool.submit(server.post, "/v1/completions", **{**LONG, "max_tokens": 40})
        time.sleep(0.2)
    assert mine.result().json()["choices"][0]["text"] == alone


def test_a_full_queue_says_when_to_come_again(server: Serving, slow: None) -> None:
    with left_alone(server, "/v1/completions", **LONG, n=8):
        until(lambda: server.house.models["writer"].load == 8)
        answer = server.post("/v1/completions", **LONG)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"
        # The other model has a queue of its own, and health waits for nobody.
        assert server.post("/v1/translate", model="translator", text="a").status_code == 200
        assert server.client.get("/health").json() == {"status": "ok"}
    settled(server.house, 1.0)
    assert server.post("/v1/completions", **LONG, n=9).status_code == 400, "so many never fit"


def test_health_waits_for_no_model(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    go, step = threading.Event(), Scheduler.step

    def stuck(self: Scheduler) -> object:
        go.wait(10)
        return step(self)

    monkeypatch.setattr(Scheduler, "step", stuck)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/v1/completions", **{**LONG, "max_tokens": 3})
        until(lambda: server.house.models["writer"].load == 1)
        times = []
        for _ in range(50):
            began = time.perf_counter()
            assert server.client.get("/health").status_code == 200
            times.append(time.perf_counter() - began)
        assert sorted(times)[25] < 0.03, "small answers are sent at once"
        go.set()
        assert asked.result().status_code == 200


def test_a_step_that_fails_fails_alone(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert sorted(one.status_code for one in answers) == [200, 200, 500, 500, 500], "those that waited went on"
    failed = next(one for one in answers if one.status_code == 500).json()["error"]
    assert failed["type"] == "server_error"
    assert "secret" not in failed["message"]
    texts = {one.json()["choices"][0]["text"] for one in answers if one.status_code == 200}
    assert texts == {server.post("/v1/completions", **{**LONG, "max_tokens": 30}).json()["choices"][0]["text"]}
    # In a stream the head is sent already: the error is an event.
    broken[0] = True
    body = {**LONG, "max_tokens": 30, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as raw:
        events = [line for line in raw.iter_lines() if line]
    assert len({*map(id, used)}) == 2, "nothing of a scheduler that failed is used again"
    assert '"server_error"' in events[-2]
    assert events[-1] == "data: [DONE]"


def test_a_job_that_fails_fails_alone(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, calls = beam.rank, [0]

    def breaks(logits: object, totals: object, rules: object, *, length: int) -> object:
        calls[0] += 1
        time.sleep(0.005)
        if length == 2 and len(totals) > 1:  # type: ignore[arg-type]
            raise RuntimeError("only together")
        return rank(logits, totals, rules, length=length)  # type: ignore[arg-type]

    monkeypatch.setattr(beam, "rank", breaks)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: server.post("/v1/translate", model="translator", text=f"a{n}"), range(6)))
    assert [one.status_code for one in answers] == [200] * 6, "together they failed, one by one they did not"


def test_no_finite_numbers_are_an_engine_failure(folder: Path) -> None:
    ill = chumoku.load(folder / "writer")
    next(iter(ill.model.parameters())).data.fill_(float("nan"))
    with serving({"writer": ill}) as server:
        answer = server.post("/v1/completions", **{**LONG, "max_tokens": 3})
        assert answer.status_code == 500
        assert "no finite numbers" in answer.json()["error"]["message"]
        settled(server.house)


def test_a_quiet_stream_shows_life(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    from chumoku.server import streaming

    step = Scheduler.step
    monkeypatch.setattr(streaming, "QUIET", 0.05)
    monkeypatch.setattr(Scheduler, "step", lambda self: (time.sleep(0.3), step(self))[1])
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**LONG, "max_tokens": 2, "stream": True}) as raw:
        lines = [line for line in raw.iter_lines() if line]
    assert lines.count(": ") >= 4
    assert lines[-1] == "data: [DONE]"


def test_metrics_tell_what_was_done(server: Serving) -> None:
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


def test_prompts_are_read_at_a_pace_that_lets_others_be_noticed() -> None:
    chunk = 64
    for _ in range(5):
        chunk = paced(chunk, 0.01)
    assert chunk == 256
    for seconds, expected in ((1.0, 128), (0.3, 128), (0.5, 64), (0.05, 128)):
        chunk = paced(chunk, seconds)
        assert chunk == expected
    for _ in range(9):
        chunk = paced(chunk, 3.0)
    assert chunk == 16


def test_turns_go_round() -> None:
    turns, order, ready = Turns(), [], threading.Barrier(3)

    def work(name: str) -> None:
        ready.wait()
        for _ in range(5):
            with turns:
                order.append(name)
                time.sleep(0.002)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(order) == 15
    assert all({*order[place : place + 3]} == {*"abc"} for place in range(0, 12, 3)), order

    inside: list[str] = []

    def guest() -> None:
        with turns:
            inside.append("guest")

    with turns:
        thread = threading.Thread(target=guest)
        thread.start()
        until(lambda: bool(turns._line))
        inside.append("before")
        turns.pass_on()
        inside.append("after")
    thread.join()
    assert inside == ["before", "guest", "after"]


def test_names_come_from_paths(tmp_path: Path) -> None:
    for place in ("runs/demo/last", "runs/demo/best", "x/model"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").touch()
    paths = [str(tmp_path / name) for name in ("runs/demo", "runs/demo/best", "x/model", "a.Q4_1.gguf")]
    assert list(named(paths)) == ["demo", "demo-best", "x", "a.Q4_1"]
    assert named([paths[0]])["demo"].endswith("last")
    assert named([f"mine={paths[3]}"]) == {"mine": paths[3]}
    assert free_name("a.gguf", {"a": "", "-a": ""}) not in ("a", "-a")
    for wrong in (["a=x", "a=y"], ["a/b=x"], []):
        with pytest.raises(UsageError):
            named(wrong)


def test_the_command_refuses_before_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["serve", "nothing-here", *words])
        return getattr(result.exception, "exit_code", result.exit_code), str(result.exception) + result.output

    for host in ("0.0.0.0", "::", "192.168.1.5", "models.example"):
        code, message = said("--host", host)
        assert code == 2, host
        assert "a key is needed" in message
    assert "soon guessed" in said("--host", "0.0.0.0", "--api-key", "abc")[1]
    assert "is no origin" in said("--cors", "a.example/x")[1]
    assert said("--rows", "0")[0] == 2
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chumoku\[serve\]'"):
        command.need("fastapi", "uvicorn")


def test_help_tells_every_limit_and_loads_nothing() -> None:
    code = (
        "import sys, chumoku.cli\n"
        "sys.argv = ['chumoku', 'serve', '--help']\n"
        "try: chumoku.cli.main()\n"
        "except SystemExit as end: sys.exit(end.code or 10 * ('torch' in sys.modules or 'fastapi' in sys.modules))\n"
    )
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    for name in (*Limits.__dataclass_fields__, "api-key", "host-name", "cors", "runs"):
        assert f"--{name.replace('_', '-')}" in done.stdout
    assert "2000000" in done.stdout


def test_sigterm_lets_answers_finish(folder: Path) -> None:
    words = [sys.executable, "-m", "chumoku", "serve", str(folder / "writer"), "--port", "0", "--drain-seconds", "20"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = line.split()[-1]
        assert line.startswith("writer at http://127.0.0.1:")
        until(lambda: answers(url), 20)
        pieces = []
        with httpx.stream("POST", f"{url}/v1/completions", json={**LONG, "n": 8, "stream": True}, timeout=60) as raw:
            for line in raw.iter_lines():
                if line and not pieces:
                    process.send_signal(signal.SIGTERM)
                pieces += [line] if line else []
        assert pieces[-1] == "data: [DONE]"
        assert sum('"finish_reason":"length"' in piece for piece in pieces) == 8, "every answer came to its end"
        assert process.wait(20) == 0
    finally:
        process.kill()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False
