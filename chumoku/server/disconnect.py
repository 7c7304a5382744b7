"""Waiting for an answer, and noticing when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from chumoku.server.worker import Job, Listener, Piece, Worker

T = TypeVar("T")


class Gone(Exception):
    """The client has left; there is nobody to answer."""


async def departure(receive: Receive) -> None:
    """Ends when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, answer: Awaitable[T]) -> T:
    """The answer; or Gone, as soon as the client is."""
    working = asyncio.ensure_future(answer)
    leaving = asyncio.create_task(departure(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        # A cancelled task that failed at the same moment has nobody else to tell.
        await asyncio.gather(working, leaving, return_exceptions=True)


async def done(request: Request, worker: Worker, job: Job) -> Any:
    """What a job gives."""
    worker.do(job)
    try:
        return await unless_gone(request, job.result)
    finally:
        job.gone = True


@contextlib.contextmanager
def listening(client: str) -> Any:
    """A listener that is gone when its reader is."""
    listener = Listener(client)
    try:
        yield listener
    finally:
        listener.gone = True


async def pieces_of(listener: Listener, texts: int) -> AsyncIterator[Piece]:
    """Every piece, until all texts are finished or one has failed."""
    while texts:
        piece = await listener.pieces.get()
        if piece.failure is not None:
            raise piece.failure
        texts -= piece.finished is not None
        yield piece
