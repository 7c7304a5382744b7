"""A server on a free port, in a thread of this process, over small models."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from chumoku.server.models import Served
from chumoku.server.security.limits import Limits

from chumoku.pipeline import Speaker, load
from chumoku.server.fair_lock import Turns
from chumoku.server.run import Server, bound, make_server
from chumoku.server.state import House

KEY = "a key of the tests"


class Serving(NamedTuple):
    url: str
    house: House
    server: Server
    client: httpx.Client

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)


@contextlib.contextmanager
def serving(
    models: dict[str, Path | str | Speaker], *, limits: Limits | None = None, **options: Any
) -> Iterator[Serving]:
    """`options` are those of House: key, runs, lab, origins, hosts …"""
    limits, turns = limits or Limits(), Turns()
    opened = {
        name: Served(name, one if isinstance(one, Speaker) else load(one), limits, turns)
        for name, one in models.items()
    }
    hosts = frozenset({"localhost", "127.0.0.1", "::1"}) | options.pop("hosts", frozenset())
    house = House(opened, limits, hosts=hosts, **options)
    listening = bound("127.0.0.1", 0)
    server = make_server(house)
    # The signals are the tests' own.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    house.start()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    headers = {"Authorization": f"Bearer {house.key}"} if house.key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        _until(lambda: server.started)
        try:
            yield Serving(url, house, server, client)
        finally:
            client.close()
            server.should_exit = True
            thread.join(20)
            listening.close()
            assert not thread.is_alive(), "the server did not end"
            assert house.stop(10), "a worker did not end"


def settled(house: House, seconds: float = 5.0) -> None:
    """Wait until nothing is left of any request: no text, no row, no position of keys and values."""
    _until(
        lambda: all(
            (one.worker.queue, one.worker.running, one.worker.cache_tokens, one.load) == (0, 0, 0, 0)
            for one in house.models.values()
        ),
        seconds,
    )


def _until(true: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.005)


until = _until
