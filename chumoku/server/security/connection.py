"""One connection: uvicorn's protocol with the limits that it lacks. No connection is without a clock.

    head       so many seconds for a request's head, also on a connection that is kept; and so many bytes
    kept       so many seconds of silence between two requests                                  (uvicorn's own)
    taking     so many seconds in which a client takes nothing of what is sent
    closing    the same for the last of it; then it is closed, whatever the client does: `sweep` looks for these

While an answer is made the app has its own clocks. What a client sends meanwhile is not kept (nobody pipelines), so
that its leaving is heard: a socket that is not read tells nothing.
"""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from chumoku.server.errors import Refusal
from chumoku.server.security.limits import Limits
from chumoku.server.security.middleware import HEADERS
from chumoku.server.state import House
from chumoku.server.streaming import encoded

LARGEST_HEAD = 1 << 15
KEPT = 5  # seconds of silence on a connection
CLOSING = 2.0  # seconds for a connection on which nothing is to be done
END = re.compile(rb"\n\r?\n")
FULL = Refusal(503, "Too many connections are open. Try again later.", headers={"Retry-After": "1"})
WRONG = Refusal(400, "This is no HTTP request that can be read.")
LARGE = Refusal(431, f"The head of this request is larger than {LARGEST_HEAD:,} bytes, the most this server takes.")


class Timed(H11Protocol):
    limits: ClassVar[Limits] = Limits()
    _head: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None
    _unwatched: float | None = None  # since when no clock has run

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._end_with(FULL)
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_head")
        self._stop("_taking")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._answering and self.conn.their_state in (h11.DONE, h11.MUST_CLOSE):
            self._not_kept()
            return
        if self.conn.their_state is h11.IDLE and self._too_large(data):
            self._end_with(LARGE)
            return
        super().data_received(data)
        if self._answering and self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            self._not_kept()
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def send_400_response(self, msg: str) -> None:
        self._end_with(WRONG)

    def shutdown(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop("_taking")
        self._taking = self.loop.call_later(self.limits.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("_taking")
        super().resume_writing()

    def sweep(self, now: float) -> None:
        """Let go of a connection that no clock watches and nobody works for."""
        clocks = (self._head, self._taking, self.timeout_keep_alive_task)
        watched = self._answering or any(clock is not None for clock in clocks)
        if watched and not self.transport.is_closing():
            self._unwatched = None
        elif self._unwatched is None:
            self._unwatched = now
        elif now - self._unwatched > (self.limits.body_seconds if self.transport.get_write_buffer_size() else CLOSING):
            self.transport.abort()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _not_kept(self) -> None:
        self.cycle.keep_alive = False
        self.flow.resume_reading()

    def _too_large(self, data: bytes) -> bool:
        """h11 looks at this only while a head is not whole."""
        begun = self.conn.trailing_data[0] + data
        end = END.search(begun, 0, LARGEST_HEAD)
        return end is None and len(begun) > LARGEST_HEAD

    def _end_with(self, refusal: Refusal) -> None:
        """Said past the app and h11, where neither has a request to answer."""
        if self._answering:
            # The app may be answering: it hears that the client is gone, and what it began stays unfinished.
            begun, self.cycle.disconnected = self.cycle.response_started, True
            self.cycle.message_event.set()
            if begun:
                self.transport.close()
                return
        self.transport.write(raw(refusal))
        self.transport.close()

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


def protocol(house: House) -> type[Timed]:
    return type("Timed", (Timed,), {"limits": house.limits})


def raw(refusal: Refusal) -> bytes:
    """The same answer as the app's, and the connection's last."""
    body = encoded(refusal.body)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **{name.lower(): value for name, value in refusal.headers.items()},
        **HEADERS,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    phrase = STATUS_PHRASES[refusal.status].decode()
    return f"HTTP/1.1 {refusal.status} {phrase}\r\n{lines}\r\n".encode() + body
