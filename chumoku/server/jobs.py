"""Jobs: what is computed between two steps of a worker, and how it finds out that nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any


class Left(Exception):
    """Nobody waits for this any more, or nothing can wait for it: what is under way ends here."""


class Job:
    """Something to be computed between two steps. Those of one `key` may be done together."""

    key: Hashable | None = None
    size = 1

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[Any] = self.loop.create_future()
        self.gone = False

    def together(self, jobs: Sequence[Any], pass_on: Callable[[], None]) -> list[Any]:
        """The results of these jobs, of which this is one; `pass_on` lets other models have a turn."""
        raise NotImplementedError

    def going(self, pass_on: Callable[[], None]) -> Callable[[], None]:
        """To be called again and again by what this job does alone: others have a turn, and Left ends it."""

        def ask() -> None:
            pass_on()
            if self.gone:
                raise Left

        return ask

    def answer(self, result: Any, error: Exception | None) -> None:
        def tell() -> None:
            if self.result.done():
                return
            if error is not None:
                self.result.set_exception(error)
            else:
                self.result.set_result(result)

        call(self.loop, tell)


def call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody who listens
        loop.call_soon_threadsafe(what)
