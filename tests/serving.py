"""Starts a server with small models on a free port, in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from browser import PATIENCE
from commands import call_main

from chumoku.pipeline import Pipeline, load
from chumoku.server.fair_lock import FairLock
from chumoku.server.models import ServedModel
from chumoku.server.run import Server, bind_socket, make_server
from chumoku.server.security.limits import Limits
from chumoku.server.state import ServerState

KEY = "a key of the tests"
Started = tuple[subprocess.Popen[str], str]
CERTIFICATES = ssl.create_default_context()  # shared, because each client that loads them takes 50 ms


class Serving(NamedTuple):
    url: str
    state: ServerState
    server: Server
    client: httpx.Client

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)


@contextlib.contextmanager
def serving(
    models: dict[str, Path | str | Pipeline], *, limits: Limits | None = None, **options: Any
) -> Iterator[Serving]:
    """A running server; `options` are fields of ServerState: key, runs, lab, origins, hosts …"""
    limits, lock = limits or Limits(), FairLock()
    opened = {
        name: ServedModel(name, one if isinstance(one, Pipeline) else load(one), limits, lock)
        for name, one in models.items()
    }
    hosts = frozenset({"localhost", "127.0.0.1", "::1"}) | options.pop("hosts", frozenset())
    state = ServerState(opened, limits, hosts=hosts, **options)
    with running(state, bind_socket("127.0.0.1", 0)) as one:
        yield one


@contextlib.contextmanager
def running(state: ServerState, listening: socket.socket) -> Iterator[Serving]:
    """A server in a thread of this process."""
    server = make_server(state)
    # Signals are handled by the tests.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    state.start()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    headers = {"Authorization": f"Bearer {state.key}"} if state.key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=60, verify=CERTIFICATES) as client:
        until(lambda: server.started)
        try:
            yield Serving(url, state, server, client)
        finally:
            client.close()
            server.should_exit = True
            thread.join(20)
            listening.close()
            assert not thread.is_alive(), "the server did not stop"
            assert state.stop(10), "a worker did not stop"


@contextlib.contextmanager
def serve_command(*words: str) -> Iterator[Serving]:
    """`chumoku serve` on a free port: what the command prepares runs in a thread of this process."""
    prepared: list[tuple[ServerState, socket.socket]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chumoku.server.run.serve", lambda *given: prepared.append(given))
        patch.setattr(sys, "argv", ["chumoku", "serve", *words, "--port", "0"])
        assert call_main() == 0, words
    with running(*prepared[0]) as server:
        yield server


@contextlib.contextmanager
def serve_in_process(*words: str) -> Iterator[Started]:
    """`chumoku serve` in another process, and the first line that it prints, which ends with the address."""
    command = [sys.executable, "-m", "chumoku", "serve", *words, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        until(lambda: is_healthy(line.split()[-1]), 30)
        yield process, line
    finally:
        process.kill()
        process.wait()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", verify=CERTIFICATES).status_code == 200
    except httpx.HTTPError:
        return False


def wait_until_idle(state: ServerState, seconds: float = PATIENCE) -> None:
    """Wait until no request occupies anything: no text, no row, no key-value cache."""
    until(
        lambda: all(
            (one.worker.queue, one.worker.running, one.worker.cache_tokens, one.pending) == (0, 0, 0, 0)
            for one in state.models.values()
        ),
        seconds,
    )


def until(condition: Any, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.005)
