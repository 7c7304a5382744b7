"""What every answer needs: the models, the limits, the readers, the counters."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from chumoku.server.errors import busy
from chumoku.server.fair_lock import Turns
from chumoku.server.file_reader import FileReader
from chumoku.server.jobs import Left
from chumoku.server.metrics import Metrics
from chumoku.server.models import Served
from chumoku.server.request_body import parsed
from chumoku.server.runs import Runs
from chumoku.server.security.limits import Limits

READERS = 2
LARGE = 1 << 15  # bytes of a body from which on it is not read in the loop
T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)


@dataclass
class House:
    models: dict[str, Served]
    limits: Limits = field(default_factory=Limits)
    key: str | None = None
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()  # other pages that may ask
    any_address: bool = False  # bound to every address, so any address may be the Host
    runs: Path | None = None
    lab: Path | None = None
    draining: bool = False

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.turns = next((served.turns for served in self.models.values()), Turns())
        self.runs_there = None if self.runs is None else Runs(self.runs)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self.files = FileReader(self.limits.file_seconds)
        # Models of runs are asked apart: readers that waited for a turn would make texts wait too.
        self._visitor = ThreadPoolExecutor(1, thread_name_prefix="visitor")
        self._visits = 0

    def start(self) -> None:
        for served in self.models.values():
            served.worker.start()

    def stop(self, seconds: float = 5.0) -> bool:
        """Whether all workers have ended by then; they share the time."""
        self.files.stop()
        for pool in (self._readers, self._visitor):
            pool.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + seconds
        workers = [served.worker for served in self.models.values()]
        for worker in workers:
            worker.stop(0)  # told all at once, then waited for
        return all(worker.stop(max(0.0, end - time.monotonic())) for worker in workers)

    async def aside(self, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Done by a reader: whatever takes longer than the loop may wait."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, functools.partial(work, *arguments, **named))

    async def visit(self, work: Callable[[Turns, Callable[[], None]], T]) -> T:
        """Done by the visitor, one after the other, and not too many wait.

        It is given the turns, to compute while no model that is served does, and what to ask meanwhile.
        """
        if self._visits >= self.limits.queue:
            raise busy("Too many looks at runs are waiting. Try again later.")

        left = threading.Event()

        def going() -> None:
            self.turns.pass_on()
            if left.is_set():
                raise Left

        self._visits += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._visitor, work, self.turns, going)
        finally:
            self._visits -= 1
            left.set()

    async def asked(self, request: Request, schema: type[B]) -> B:
        """The body as what its schema says."""
        body = await request.body()
        return await self.aside(parsed, schema, body) if len(body) > LARGE else parsed(schema, body)


def house_of(request: Request) -> House:
    house: House = request.app.state.house
    return house
