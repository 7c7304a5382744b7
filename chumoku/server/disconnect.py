"""Waiting for a result, and stopping early when the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from chumoku.server.worker import Job, Listener, Piece, Worker

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client closed its connection before the response was sent."""


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(request: Request, result: Awaitable[T]) -> T:
    """Await the result; cancel it and raise ClientDisconnected if the client disconnects first."""
    work = asyncio.ensure_future(result)
    disconnect = asyncio.create_task(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnected
        return work.result()
    finally:
        for task in (work, disconnect):
            task.cancel()
        # Retrieve the exception of a task that failed while it was being cancelled.
        await asyncio.gather(work, disconnect, return_exceptions=True)


async def run_job(request: Request, worker: Worker, job: Job) -> Any:
    """Run a job in the worker and return its result."""
    worker.submit_job(job)
    try:
        return await cancel_on_disconnect(request, job.result)
    finally:
        job.disconnected = True


@contextlib.contextmanager
def open_listener(client: str) -> Any:
    """A listener for one request, marked as disconnected when the block ends."""
    listener = Listener(client)
    try:
        yield listener
    finally:
        listener.disconnected = True


async def read_pieces(listener: Listener, texts: int) -> AsyncIterator[Piece]:
    """Yield pieces until all texts are finished; raise the error of the first text that fails."""
    while texts:
        piece = await listener.pieces.get()
        if piece.error is not None:
            raise piece.error
        texts -= piece.finish_reason is not None
        yield piece
