"""uvicorn over the app, and an end that lets answers finish.

SIGTERM     nothing new is taken; answers under way have so many seconds, all of them the same; then everything ends
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn

from chumoku.errors import UsageError
from chumoku.server.app import make_app
from chumoku.server.security.connection import KEPT, LARGEST_HEAD, Timed, protocol
from chumoku.server.state import House

ENDING = 1.0  # seconds for threads that nobody waits for any more
SWEEP = 5  # ticks of uvicorn's, a tenth of a second each


class Server(uvicorn.Server):
    """Tells the house when the end has begun."""

    def __init__(self, config: uvicorn.Config, house: House) -> None:
        super().__init__(config)
        self._house = house

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """An end that was asked for is no failure: the signal is not raised again afterwards."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._house.draining = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % SWEEP == 0:
            self._sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own would cancel what is left, which its log takes for failures; here the connections end."""
        self._house.draining = True
        for one in (*self.servers, *(sockets or ())):
            one.close()
        for connection in self._connections:
            connection.shutdown()
        await self._until_idle(self._house.limits.drain_seconds)
        for connection in self._connections:
            connection.transport.abort()
        await self._until_idle(ENDING)

    async def _until_idle(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (self.server_state.tasks or self.server_state.connections) and time.monotonic() < end:
            if self.force_exit:
                return
            self._sweep()
            await asyncio.sleep(0.05)

    @property
    def _connections(self) -> list[Timed]:
        return [one for one in self.server_state.connections if isinstance(one, Timed)]

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection in self._connections:
            connection.sweep(now)


def make_server(house: House, **options: Any) -> Server:
    config = uvicorn.Config(
        make_app(house, options.pop("assets", None)),
        http=protocol(house),
        ws="none",
        lifespan="off",
        loop="asyncio",
        server_header=False,
        date_header=False,
        access_log=False,
        log_level="warning",
        timeout_keep_alive=KEPT,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        proxy_headers=False,
        **options,
    )
    return Server(config, house)


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address, or a sentence that says why there is none."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Said to be TCP, or asyncio leaves small answers waiting for each other: 40 ms each.
        taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
    except OSError as error:
        raise UsageError(
            f"The address {host}, port {port}, cannot be listened at: {error.strerror or error}. Choose another with "
            "--host or --port."
        ) from error
    taken.listen(2048)
    return taken


def serve(house: House, listening: socket.socket) -> None:
    """Answer until told to end."""
    server = make_server(house)
    house.start()
    try:
        server.run(sockets=[listening])
    finally:
        ended = house.stop(ENDING)
    if not (ended and alone(ENDING)):
        leave()


def alone(seconds: float) -> bool:
    """Whether every thread that Python would wait for has ended."""
    end = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                return False
    return True


def leave() -> None:
    """End at once. Something still computes for nobody: Python would wait for a reader until it is done, however long,
    and take the ground from under a worker, which the libraries below it answer with an abort."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
