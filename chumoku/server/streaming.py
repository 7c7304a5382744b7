"""How answers are sent: JSON at once, or server-sent events as they come.

data: {…}⏎⏎  data: {…}⏎⏎  …  data: [DONE]⏎⏎         a line ": " now and then, so that nobody thinks the line is dead
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chumoku.server.disconnect import departure
from chumoku.server.errors import Refusal, from_error

QUIET = 10.0  # seconds after which something is said, be it nothing
DONE = b"data: [DONE]\n\n"
STILL_HERE = b": \n\n"


def encoded(value: Any) -> bytes:
    """JSON; numbers that are none as the words NaN, Infinity and -Infinity."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(worded(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def worded(value: Any) -> Any:
    """The same with numbers that are none as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: worded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [worded(each) for each in value]
    return value


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    content = value if isinstance(value, bytes) else encoded(value)
    return Response(content, status, headers, media_type="application/json")


def refused(refusal: Refusal) -> Response:
    return answer(refusal.body, refusal.status, refusal.headers)


def event(value: Any) -> bytes:
    return b"data: " + encoded(value) + b"\n\n"


class EventStream(Response):
    """Events as they come. When they end, or the client has left, be it before the first, `held` is let go."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], held: contextlib.ExitStack) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream; charset=utf-8")
        del self.headers["content-length"]
        self._events, self._held = events, held
        self._coming: asyncio.Task[bytes | None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(departure(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while (part := await self._next(leaving)) is not None:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            if not leaving.done():
                await send({"type": "http.response.body", "body": DONE})
        finally:
            tasks = [task for task in (leaving, self._coming) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._events.aclose()
            self._held.close()

    async def _next(self, leaving: asyncio.Task[None]) -> bytes | None:
        """The next events; a sign of life where there are none for long; None at the end."""
        if self._coming is None:
            self._coming = asyncio.create_task(self._pull())
        await asyncio.wait({self._coming, leaving}, timeout=QUIET, return_when=asyncio.FIRST_COMPLETED)
        if self._coming.done():
            coming, self._coming = self._coming, None
            return coming.result()
        return None if leaving.done() else STILL_HERE

    async def _pull(self) -> bytes | None:
        try:
            return await anext(self._events, None)
        except Exception as error:
            # The head is sent already, so what went wrong is an event, and the last one.
            return event(from_error(error).body)
