"""One connection: uvicorn's protocol with additional limits, so that every connection has a timeout at any time.

    head          seconds and bytes for the head of a request, also on a keep-alive connection
    keep-alive    seconds between two requests (uvicorn's own timeout)
    write         seconds in which a client reads nothing of the response
    close         the same for the end of the response; `close_if_idle` then closes the connection

While the app handles a request, it has its own timeouts. Data that a client sends in the meantime is dropped
(pipelining is not supported), because a disconnect is noticed only on a socket that is being read.
"""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from chumoku.server.errors import RequestError
from chumoku.server.security.limits import Limits
from chumoku.server.security.middleware import HEADERS
from chumoku.server.state import ServerState
from chumoku.server.streaming import encode_json

MAX_HEAD_BYTES = 1 << 15
KEEP_ALIVE_SECONDS = 5
IDLE_SECONDS = 2.0  # before a connection without a timer is closed
HEAD_END = re.compile(rb"\n\r?\n")
TOO_MANY_CONNECTIONS = RequestError(503, "Too many connections. Try again later.", headers={"Retry-After": "1"})
BAD_REQUEST = RequestError(400, "This is not a valid HTTP request.")
HEAD_TOO_LARGE = RequestError(431, f"The head of this request is larger than the limit of {MAX_HEAD_BYTES:,} bytes.")


class LimitedProtocol(H11Protocol):
    limits: ClassVar[Limits] = Limits()
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _idle_since: float | None = None  # since when no timer has been active

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._close_with_error(TOO_MANY_CONNECTIONS)
        else:
            self._update_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer("_head_timer")
        self._cancel_timer("_write_timer")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._responding and self.conn.their_state in (h11.DONE, h11.MUST_CLOSE):
            self._disable_keep_alive()
            return
        if self.conn.their_state is h11.IDLE and self._too_large(data):
            self._close_with_error(HEAD_TOO_LARGE)
            return
        super().data_received(data)
        if self._responding and self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            self._disable_keep_alive()
        self._update_head_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_head_timer()

    def send_400_response(self, msg: str) -> None:
        self._close_with_error(BAD_REQUEST)

    def shutdown(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_timer("_write_timer")
        self._write_timer = self.loop.call_later(self.limits.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_timer("_write_timer")
        super().resume_writing()

    def close_if_idle(self, now: float) -> None:
        """Close a connection that has had no timer and no request for some time."""
        timers = (self._head_timer, self._write_timer, self.timeout_keep_alive_task)
        watched = self._responding or any(timer is not None for timer in timers)
        if watched and not self.transport.is_closing():
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        else:
            limit = self.limits.body_seconds if self.transport.get_write_buffer_size() else IDLE_SECONDS
            if now - self._idle_since > limit:
                self.transport.abort()

    @property
    def _responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _disable_keep_alive(self) -> None:
        self.cycle.keep_alive = False
        self.flow.resume_reading()

    def _too_large(self, data: bytes) -> bool:
        """Whether the head exceeds the limit; h11 checks this only while the head is incomplete."""
        received = self.conn.trailing_data[0] + data
        end = HEAD_END.search(received, 0, MAX_HEAD_BYTES)
        return end is None and len(received) > MAX_HEAD_BYTES

    def _close_with_error(self, error: RequestError) -> None:
        """Send an error without the app and h11, which have no request to respond to."""
        if self._responding:
            # The app may be responding: tell it that the client disconnected, and leave its response unfinished.
            started, self.cycle.disconnected = self.cycle.response_started, True
            self.cycle.message_event.set()
            if started:
                self.transport.close()
                return
        self.transport.write(raw_response(error))
        self.transport.close()

    def _update_head_timer(self) -> None:
        """Run the timer while a head is incomplete; a new connection counts as having an incomplete head."""
        reading = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if not reading or self.transport.is_closing():
            self._cancel_timer("_head_timer")
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.header_seconds, self.transport.abort)

    def _cancel_timer(self, name: str) -> None:
        if (timer := getattr(self, name)) is not None:
            timer.cancel()
            setattr(self, name, None)


def make_protocol(state: ServerState) -> type[LimitedProtocol]:
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": state.limits})


def raw_response(error: RequestError) -> bytes:
    """The same response as the app would send, with "connection: close"."""
    body = encode_json(error.body)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **{name.lower(): value for name, value in error.headers.items()},
        **HEADERS,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    phrase = STATUS_PHRASES[error.status].decode()
    return f"HTTP/1.1 {error.status} {phrase}\r\n{lines}\r\n".encode() + body
