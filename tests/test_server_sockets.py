"""Raw connections: clients that send too little or too much, or read nothing, are disconnected."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import CERTIFICATES, KEY, Serving, serving, until, wait_until_idle

from chumoku.server.security.limits import Limits

HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
LONG = b"Content-Length: 1000000\r\n\r\n"
UNFINISHED = {
    401: b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + LONG,
    403: b"POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\n" + JSON + LONG,
    415: b"POST /v1/session HTTP/1.1\r\n" + HOST + b"Content-Type: text/plain\r\n" + LONG,
    413: b"POST /v1/session HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 9000000\r\n\r\n",
    408: b"POST /v1/session HTTP/1.1\r\n" + HOST + JSON + LONG,
    204: b"OPTIONS /v1/models HTTP/1.1\r\n" + HOST + b"Access-Control-Request-Method: POST\r\n" + LONG,
}
LIMITS = Limits(body_seconds=0.7, header_seconds=1.3, connections=23)


@pytest.fixture(scope="module")
def locked(writer: Path) -> Iterator[Serving]:
    with serving({"writer": writer}, limits=LIMITS, key=KEY) as running:
        yield running


def connect(server: Serving, **options: int) -> socket.socket:
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.connect(("127.0.0.1", server.port))
    connection.settimeout(10)
    return connection


def read_until_closed(connection: socket.socket, seconds: float = 10) -> bytes:
    """Everything that the server sends until it closes the connection."""
    received, end = b"", time.monotonic() + seconds
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            received += part
            assert time.monotonic() < end
    return received


@pytest.mark.parametrize("status", UNFINISHED)
@pytest.mark.parametrize("trickle", [False, True])
def test_response_before_the_body_closes_the_connection(locked: Serving, status: int, trickle: bool) -> None:
    with connect(locked) as connection:
        connection.sendall(UNFINISHED[status])
        if trickle:
            time.sleep(0.1)
            connection.sendall(b"x")
        received = read_until_closed(connection, 3)
        assert received.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"connection: close" in received.lower()
        # The server has closed the connection; this side has not.
        until(lambda: not locked.server.server_state.connections, 3)


def test_incomplete_bodies_do_not_use_up_connections(locked: Serving) -> None:
    connections = [connect(locked) for _ in range(LIMITS.connections - 1)]
    for one in connections:
        one.sendall(UNFINISHED[401])
    time.sleep(0.2)
    for one in connections:
        one.sendall(b"x")
    until(lambda: not locked.server.server_state.connections, 4)
    assert httpx.get(f"{locked.url}/health").status_code == 200
    for one in connections:
        one.close()


def test_client_that_is_still_sending_can_read_the_error(locked: Serving) -> None:
    for size in (10, 1_000_000, 5_000_000):
        answer = httpx.post(f"{locked.url}/v1/completions", content=b" " * size, headers={"Content-Type": "text/plain"})
        assert answer.status_code == 401
        assert "connection" not in answer.headers, "the body was complete, so the connection stays open"


def test_expect_continue_is_refused_at_once(locked: Serving) -> None:
    began = time.monotonic()
    with connect(locked) as connection:
        connection.sendall(b"POST /v1/models HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\n" + LONG)
        received = read_until_closed(connection)
    assert received.startswith(b"HTTP/1.1 401")
    assert time.monotonic() - began < 0.7


@pytest.mark.parametrize("again", [b"", b"\r\n", b"G"])
def test_keep_alive_connection_times_out(locked: Serving, monkeypatch: pytest.MonkeyPatch, again: bytes) -> None:
    monkeypatch.setattr(locked.server.config, "timeout_keep_alive", 0.5)
    with connect(locked) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        if again:
            connection.sendall(again)
        until(lambda: not locked.server.server_state.connections, 3)


def test_half_closed_connections_are_closed(locked: Serving) -> None:
    for start_of_request in (b"", b"GET /hea", UNFINISHED[401], UNFINISHED[408] + b"x"):
        with connect(locked) as connection:
            connection.sendall(start_of_request)
            connection.shutdown(socket.SHUT_WR)
            received = read_until_closed(connection, 3)
            assert not received.startswith(b"HTTP/1.1 408"), "it is closed before any timeout"
            until(lambda: not locked.server.server_state.connections, 3)


def test_client_that_reads_nothing_is_disconnected(locked: Serving) -> None:
    """The response is below uvicorn's high-water mark, so that writing is never paused."""
    with connect(locked, SO_RCVBUF=2048) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        until(lambda: bool(locked.server.server_state.connections))
        (protocol,) = locked.server.server_state.connections
        protocol.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        locked.server.servers[0].get_loop().call_soon_threadsafe(protocol.transport.write, b"x" * 60_000)
        until(lambda: bool(protocol.transport.get_write_buffer_size()))
        locked.server.servers[0].get_loop().call_soon_threadsafe(protocol.transport.close)
        until(lambda: not locked.server.server_state.connections, 4)
        assert len(read_until_closed(connection)) < 60_000, "the rest was never sent"


def test_disconnect_after_pipelined_data_is_noticed(writer: Path) -> None:
    body = b'{"model":"writer","prompt":"a","max_tokens":4000,"min_tokens":4000}'
    with serving({"writer": writer}, limits=Limits(context=1 << 20)) as running:
        worker = running.state.models["writer"].worker
        step = worker._step

        def slowly() -> None:
            time.sleep(0.05)
            step()

        worker._step = slowly  # type: ignore[method-assign]
        with connect(running) as connection:
            head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n\r\n" % len(body)
            connection.sendall(head + body + b"GET /health HTTP/1.1\r\n")
            until(lambda: worker.running == 1)
            connection.sendall(HOST + b"\r\n")
        wait_until_idle(running.state, 1.0)
        assert 'route="/v1/completions",status="499"} 1' in running.client.get("/metrics").text


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /health\r\n\r\n", 400),
        (b"POST /v1/session HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 33_000, 431),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 31_000 + b"\r\n\r\n", 200),
    ],
)
def test_malformed_requests_get_the_usual_headers(locked: Serving, sent: bytes, status: int) -> None:
    with connect(locked) as connection:
        connection.sendall(sent)
        received = connection.recv(4096)
        assert received.startswith(f"HTTP/1.1 {status} ".encode()), received[:200]
        assert b"content-security-policy: default-src 'none'" in received
        assert b"x-content-type-options: nosniff" in received
        if status != 200:
            assert b'{"error":{"message":' in received
            assert b"connection: close" in received
    until(lambda: not locked.server.server_state.connections, 3)


def test_too_many_connections_get_the_usual_headers(locked: Serving) -> None:
    connections = [connect(locked) for _ in range(LIMITS.connections + 1)]
    received = read_until_closed(connections[-1])
    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"content-security-policy: default-src 'none'" in received
    for one in connections:
        one.close()
    until(lambda: not locked.server.server_state.connections, 3)


CHILD = """
import sys, time
from chumoku.server import worker
from chumoku.server.openai import routes
from chumoku.server.state import ServerState
from chumoku.server.security.limits import Limits
from chumoku.server.run import bind_socket, serve
from chumoku.server.models import open_models

slow = lambda *_: time.sleep(60)
if sys.argv[2] == "reader":
    routes._make_plan = slow
elif sys.argv[2] == "worker":
    worker.Worker._step = slow
limits, listening = Limits(drain_seconds=float(sys.argv[3])), bind_socket("127.0.0.1", 0)
models = open_models([f"{name}={sys.argv[1]}" for name in ("writer", "second", "third")], limits)
state = ServerState(models, limits, hosts=frozenset({"127.0.0.1"}))
print(listening.getsockname()[1], flush=True)
serve(state, listening)
print("the end")
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(("busy", "drain"), [("reader", 1.0), ("worker", 1.0), ("reader", 0.0), ("nothing", 30.0)])
def test_shutdown_in_time(writer: Path, busy: str, drain: float) -> None:
    command = [sys.executable, "-c", CHILD, str(writer), busy, str(drain)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            port = int(child.stdout.readline())  # type: ignore[union-attr]
            until(lambda: _answers(port), 20)
            connections = []
            for name in ("writer", "second", "third") if busy != "nothing" else ():
                body = b'{"model":"%s","prompt":"a"}' % name.encode()
                one = socket.create_connection(("127.0.0.1", port))
                one.sendall(b"POST /v1/completions HTTP/1.1\r\n" + HOST.replace(b"localhost", b"127.0.0.1") + JSON)
                one.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
                connections.append(one)
            time.sleep(0.3)
            began = time.monotonic()
            child.send_signal(signal.SIGTERM)
            received, errors = child.communicate(timeout=30)
            took = time.monotonic() - began
        finally:
            child.kill()
    assert child.returncode == 0
    assert errors == ""
    assert drain * (busy != "nothing") <= took < (drain + 3.5 if busy != "nothing" else 10)
    assert (received == "the end\n") == (busy == "nothing")


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/health", verify=CERTIFICATES).status_code == 200
    return False
