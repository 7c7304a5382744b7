"""Reads untrusted files in separate threads and with a time limit.

A disk that does not respond blocks the thread that reads from it. These files are therefore never read in the threads
that other requests need; a request gives up after some seconds, and requests for the same files share one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from chumoku.server.errors import RequestError, busy_error

THREADS, MAX_PENDING = 4, 64  # reads at once, and reads including those that wait for a thread
T = TypeVar("T")


class FileReader:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")
        self._pending: dict[Hashable, asyncio.Future[Any]] = {}

    async def read(self, key: Hashable, work: Callable[..., T], *arguments: Any) -> T:
        """Result of `work(*arguments)`; calls with the same `key` at the same time share one read."""
        pending = self._pending.get(key)
        if pending is None:
            if len(self._pending) >= MAX_PENDING:
                raise busy_error("Too many files are being read. Try again later.")
            pending = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
            self._pending[key] = pending
            pending.add_done_callback(lambda done: self._finish(key, done))
        try:
            async with asyncio.timeout(self.seconds):
                result: T = await asyncio.shield(pending)
                return result
        except TimeoutError:
            raise RequestError(
                503,
                f"The files could not be read within {self.seconds:g} seconds. Try again later.",
                headers={"Retry-After": "5"},
            ) from None

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _finish(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        self._pending.pop(key, None)
        if not done.cancelled():
            done.exception()  # mark it as retrieved, or asyncio logs a warning when no request waits any more
