"""Files that may be anybody's, read in threads of their own and within a time.

A disk that does not answer holds the thread that asked it for as long as it likes. So such files are never read in the
threads that others need: whoever waits is told after some seconds, and those who ask for the same wait for one reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from chumoku.server.errors import Refusal, busy

THREADS, MOST = 4, 64  # readings at once, and those that wait too
T = TypeVar("T")


class FileReader:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}

    async def read(self, what: Hashable, work: Callable[..., T], *arguments: Any) -> T:
        """What `work` gives; `what` says which readings are the same."""
        reading = self._under_way.get(what)
        if reading is None:
            if len(self._under_way) >= MOST:
                raise busy("Too many files are being read. Try again later.")
            reading = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
            self._under_way[what] = reading
            reading.add_done_callback(lambda done: self._end(what, done))
        try:
            async with asyncio.timeout(self.seconds):
                result: T = await asyncio.shield(reading)
                return result
        except TimeoutError:
            raise Refusal(
                503,
                f"The files could not be read within {self.seconds:g} seconds. Try again later.",
                headers={"Retry-After": "5"},
            ) from None

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _end(self, what: Hashable, done: asyncio.Future[Any]) -> None:
        self._under_way.pop(what, None)
        if not done.cancelled():
            done.exception()  # where nobody waits any more, nobody else asks for it
