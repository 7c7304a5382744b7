"""Runs the app in uvicorn and shuts it down gracefully.

SIGTERM     no new requests are accepted; running ones share `drain_seconds` to finish; then everything is closed
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
from chumoku.server.security.connection import KEEP_ALIVE_SECONDS, MAX_HEAD_BYTES, LimitedProtocol, make_protocol
from chumoku.server.state import ServerState

SHUTDOWN_SECONDS = 1.0  # for threads whose results are no longer needed
SWEEP_TICKS = 5  # uvicorn ticks, a tenth of a second each


class Server(uvicorn.Server):
    """uvicorn.Server that sets `draining` when the shutdown begins."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's version, do not raise the signal again: a requested shutdown is not a failure."""
        previous = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in previous.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._state.draining = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % SWEEP_TICKS == 0:
            self._close_idle()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close connections; uvicorn's version would cancel the remaining tasks and log them as errors."""
        self._state.draining = True
        for one in (*self.servers, *(sockets or ())):
            one.close()
        for connection in self._connections:
            connection.shutdown()
        await self._wait_until_idle(self._state.limits.drain_seconds)
        for connection in self._connections:
            connection.transport.abort()
        await self._wait_until_idle(SHUTDOWN_SECONDS)

    async def _wait_until_idle(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (self.server_state.tasks or self.server_state.connections) and time.monotonic() < end:
            if self.force_exit:
                return
            self._close_idle()
            await asyncio.sleep(0.05)

    @property
    def _connections(self) -> list[LimitedProtocol]:
        return [one for one in self.server_state.connections if isinstance(one, LimitedProtocol)]

    def _close_idle(self) -> None:
        now = time.monotonic()
        for connection in self._connections:
            connection.close_if_idle(now)


def make_server(state: ServerState, **options: Any) -> Server:
    config = uvicorn.Config(
        make_app(state, options.pop("assets", None)),
        http=make_protocol(state),
        ws="none",
        lifespan="off",
        loop="asyncio",
        server_header=False,
        date_header=False,
        access_log=False,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        proxy_headers=False,
        **options,
    )
    return Server(config, state)


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening TCP socket; raises UsageError if the address is not available."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sets TCP_NODELAY only if the protocol is given; without it small responses take 40 ms.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        raise UsageError(
            f"Cannot listen on {host}, port {port}: {error.strerror or error}. Choose another address with --host or "
            "--port."
        ) from error
    bound.listen(2048)
    return bound


def serve(state: ServerState, listening: socket.socket) -> None:
    """Serve requests until the process is told to stop."""
    server = make_server(state)
    state.start()
    try:
        server.run(sockets=[listening])
    finally:
        stopped = state.stop(SHUTDOWN_SECONDS)
    if not (stopped and wait_for_threads(SHUTDOWN_SECONDS)):
        exit_now()


def wait_for_threads(seconds: float) -> bool:
    """Whether all non-daemon threads ended in time."""
    end = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                return False
    return True


def exit_now() -> None:
    """End the process at once: a normal exit would wait for reader threads and crash native code in workers."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
