"""Responses: JSON at once, or server-sent events one by one.

data: {…}⏎⏎  data: {…}⏎⏎  …  data: [DONE]⏎⏎         a comment line ": " now and then keeps the connection open
event: TYPE⏎data: {"type": TYPE, …}⏎⏎  …             events with a type, as those of /v1/responses
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chumoku.probe.json_values import replace_non_finite
from chumoku.server.disconnect import wait_for_disconnect
from chumoku.server.errors import RequestError, to_request_error

KEEP_ALIVE_SECONDS = 10.0  # without an event, after which a comment line is sent
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": \n\n"


def encode_json(value: Any) -> bytes:
    """JSON; NaN and infinities become the strings "NaN", "Infinity" and "-Infinity"."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(replace_non_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response; bytes are sent as already encoded JSON."""
    content = value if isinstance(value, bytes) else encode_json(value)
    return Response(content, status, headers, media_type="application/json")


def error_response(error: RequestError) -> Response:
    return json_response(error.body, error.status, error.headers)


def encode_event(value: Mapping[str, Any]) -> bytes:
    name = f"event: {value['type']}\n".encode() if "type" in value else b""
    return name + b"data: " + encode_json(value) + b"\n\n"


class EventStream(Response):
    """Sends events as they arrive, then `end`; closes `resources`, also when the client disconnects early."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], resources: contextlib.ExitStack, *, end: bytes = DONE) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream; charset=utf-8")
        del self.headers["content-length"]
        self._events, self._resources, self._end = events, resources, end
        self._next_event: asyncio.Task[bytes | None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        disconnect = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while (part := await self._next(disconnect)) is not None:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            if not disconnect.done():
                await send({"type": "http.response.body", "body": self._end})
        finally:
            tasks = [task for task in (disconnect, self._next_event) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._events.aclose()
            self._resources.close()

    async def _next(self, disconnect: asyncio.Task[None]) -> bytes | None:
        """The next event, a comment line after some seconds without an event, or None at the end."""
        if self._next_event is None:
            self._next_event = asyncio.create_task(self._pull())
        tasks = {self._next_event, disconnect}
        await asyncio.wait(tasks, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self._next_event.done():
            done, self._next_event = self._next_event, None
            return done.result()
        return None if disconnect.done() else KEEP_ALIVE

    async def _pull(self) -> bytes | None:
        try:
            return await anext(self._events, None)
        except Exception as error:
            # The status was already sent, so the error becomes the last event.
            return encode_event(to_request_error(error).body)
