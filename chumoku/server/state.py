"""State shared by all request handlers: models, limits, thread pools, metrics."""

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

from chumoku.server.errors import busy_error
from chumoku.server.fair_lock import FairLock
from chumoku.server.file_reader import FileReader
from chumoku.server.jobs import JobCancelled
from chumoku.server.metrics import Metrics
from chumoku.server.models import ServedModel
from chumoku.server.request_body import parse_body
from chumoku.server.runs import Runs
from chumoku.server.security.limits import Limits

READERS = 2
LARGE = 1 << 15  # bytes; larger bodies are parsed in a reader thread, not in the event loop
T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)


@dataclass
class ServerState:
    models: dict[str, ServedModel]  # by name
    limits: Limits = field(default_factory=Limits)
    key: str | None = None  # API key that clients must send
    hosts: frozenset[str] = frozenset()  # allowed names in the Host header
    origins: frozenset[str] = frozenset()  # other pages that may call this server (CORS)
    any_address: bool = False  # the server listens on all addresses, so any IP address is allowed as Host
    runs: Path | None = None  # folder of training runs
    lab: Path | None = None  # folder of the lab report
    draining: bool = False  # shutting down, no new requests

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.lock = next((served.lock for served in self.models.values()), FairLock())
        self.training_runs = None if self.runs is None else Runs(self.runs)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self.files = FileReader(self.limits.file_seconds)
        # Looks at checkpoints wait for the lock, so they must not occupy the reader threads.
        self._look_thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-look")
        self._looks = 0

    def start(self) -> None:
        for served in self.models.values():
            served.worker.start()

    def stop(self, seconds: float = 5.0) -> bool:
        """Stop all threads; True if every worker ended within `seconds` in total."""
        self.files.stop()
        for pool in (self._readers, self._look_thread):
            pool.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + seconds
        workers = [served.worker for served in self.models.values()]
        for worker in workers:
            worker.stop(0)  # ask all of them to stop before waiting for the first
        return all(worker.stop(max(0.0, end - time.monotonic())) for worker in workers)

    async def run_in_reader(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run work that would block the event loop in a reader thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, functools.partial(work, *arguments, **options))

    async def run_checkpoint_look(self, work: Callable[[FairLock, Callable[[], None]], T]) -> T:
        """Run `work(lock, check_interrupt)` in its own thread, one call at a time."""
        if self._looks >= self.limits.queue:
            raise busy_error("Too many requests for checkpoints of runs are waiting. Try again later.")

        cancelled = threading.Event()

        def check_interrupt() -> None:
            self.lock.yield_turn()
            if cancelled.is_set():
                raise JobCancelled

        self._looks += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._look_thread, work, self.lock, check_interrupt)
        finally:
            self._looks -= 1
            cancelled.set()

    async def read_body(self, request: Request, schema: type[B]) -> B:
        """The request body, parsed and checked by its schema."""
        body = await request.body()
        return await self.run_in_reader(parse_body, schema, body) if len(body) > LARGE else parse_body(schema, body)


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state
