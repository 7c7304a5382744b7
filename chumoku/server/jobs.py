"""Jobs: work that a model's worker does between two generation steps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any


class JobCancelled(Exception):
    """The client disconnected or the server is stopping, so the job ends here."""


class Job:
    """Work to be done between two steps. Jobs with the same `key` may run as one batch."""

    key: Hashable | None = None
    size = 1  # number of texts

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[Any] = self.loop.create_future()
        self.disconnected = False

    def run_batch(self, jobs: Sequence[Any], yield_turn: Callable[[], None]) -> list[Any]:
        """Results of the jobs (self included); call `yield_turn` regularly to let other models compute."""
        raise NotImplementedError

    def cancellation_check(self, yield_turn: Callable[[], None]) -> Callable[[], None]:
        """A function that the job calls regularly: it yields to other models and may raise JobCancelled."""

        def check() -> None:
            yield_turn()
            if self.disconnected:
                raise JobCancelled

        return check

    def finish(self, result: Any, error: Exception | None) -> None:
        def set_result() -> None:
            if self.result.done():
                return
            if error is not None:
                self.result.set_exception(error)
            else:
                self.result.set_result(result)

        call_in_loop(self.loop, set_result)


def call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the call
        loop.call_soon_threadsafe(function)
