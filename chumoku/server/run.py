"""The sockets: uvicorn over the app, with time limits that it lacks, and an end that lets answers finish.

head        so many seconds for a request's head, also on a connection that is kept (slow clients hold no socket)
taking      so many seconds in which a client takes nothing of what is sent
SIGTERM     nothing new is taken, answers under way have so many seconds, then everything ends
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from chumoku.errors import UsageError
from chumoku.server.answers import encoded
from chumoku.server.app import make_app
from chumoku.server.house import House
from chumoku.server.limits import Limits
from chumoku.server.refusals import Refusal

LARGEST_HEAD = 1 << 15
KEPT = 5  # seconds of silence on a connection
FULL = Refusal(503, "Too many connections are open. Try again later.", headers={"Retry-After": "1"})


class Timed(H11Protocol):
    """uvicorn's protocol with this server's limits."""

    limits: ClassVar[Limits] = Limits()
    _head: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.write(_full())
            transport.close()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_head")
        self._stop("_taking")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop("_taking")
        self._taking = self.loop.call_later(self.limits.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("_taking")
        super().resume_writing()

    def _await_head(self) -> None:
        """The clock runs while a head has begun and is not whole; a connection just opened counts as begun."""
        reading = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if not reading or self.transport.is_closing():
            self._stop("_head")
        elif self._head is None:
            self._head = self.loop.call_later(self.limits.header_seconds, self.transport.abort)

    def _stop(self, name: str) -> None:
        if (timer := getattr(self, name)) is not None:
            timer.cancel()
            setattr(self, name, None)


def protocol(house: House) -> type[H11Protocol]:
    return type("Timed", (Timed,), {"limits": house.limits})


def _full() -> bytes:
    body = encoded(FULL.body)
    head = f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}retry-after: 1\r\nconnection: close\r\n\r\n".encode() + body


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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._house.draining = True
        await super().shutdown(sockets)


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
        timeout_graceful_shutdown=max(1, round(house.limits.drain_seconds)),
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
        house.stop()
