"""The worker: the thread in which one model computes.

    inbox → texts → scheduler, which shares its rows fairly → pieces, delivered to the event loop once per step
          → jobs, run between two steps (translation, embeddings, a look inside); similar jobs run as one batch

A text whose client disconnects is removed before the next step; a job is skipped, or cancelled if it checks for that.
An exception in a step fails the texts of that step; waiting texts continue with a new scheduler. Any other exception
fails the current work only: the thread lives as long as the server.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from chumoku.decoding.logprobs import Likelihood
from chumoku.decoding.scheduler import Event, Request, Scheduler
from chumoku.decoding.stop_strings import TextStream
from chumoku.errors import ChumokuError
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.fair_lock import FairLock
from chumoku.server.jobs import Job as Job
from chumoku.server.jobs import JobCancelled, call_in_loop

log = logging.getLogger("chumoku.server")
MAX_BATCH = 64  # texts in a batch of jobs
SLOW_STEP = 0.4  # seconds; after a slower step, fewer prompt tokens are read, because disconnects wait for its end
MIN_CHUNK, MAX_CHUNK = 16, 256  # prompt tokens in a step


NOT_FINITE = "The model's logits are not finite (NaN or infinity), so no token can be chosen."
NO_JSON = "No token follows the JSON schema: it is too complex (simplify it), or the model's logits are not finite."


class Piece(NamedTuple):
    """What one step added to a text."""

    text_index: int  # within its request
    text: str
    token: int | None = None
    likelihood: Likelihood | None = None
    finish_reason: str | None = None  # stop or length
    error: RequestError | None = None
    cached_tokens: int = 0  # of the prompt, which were not computed for this text


class Listener:
    """Receives the pieces of a request's texts; `disconnected` tells the worker that the client is gone."""

    def __init__(self, client: str = "") -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.pieces: asyncio.Queue[Piece] = asyncio.Queue()
        self.disconnected = False


class TextTask:
    """One text to generate for a listener."""

    def __init__(self, listener: Listener, place: int, request: Request, utterance: TextStream, *, trim: bool) -> None:
        self.listener, self.place, self.request = listener, place, request
        self._utterance, self._trim = utterance, trim

    def process(self, event: Event) -> Piece:
        """Convert an event of the scheduler into a piece."""
        if event.finished == "failed":
            error = ChumokuError(NO_JSON if self.request.constraint is not None else NOT_FINITE)
            return Piece(self.place, "", error=to_request_error(error))
        text, reason = "", None
        if event.token is not None:
            text = self._utterance.push(event.token)
        if self._utterance.stopped:
            reason = "stop"
        elif event.finished is not None:
            text += self._utterance.finish()
            reason = "stop" if event.finished == "end" or self._utterance.stopped else "length"
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        return Piece(self.place, text, event.token, event.likelihood, reason, cached_tokens=event.cached)


class Worker:
    """The thread of one model. `submit_texts`, `submit_job` and `stop` may be called from any thread."""

    def __init__(self, name: str, open_scheduler: Callable[[], Scheduler], lock: FairLock) -> None:
        self.name, self._open_scheduler, self._lock = name, open_scheduler, lock
        self._waiting: deque[TextTask] = deque()  # not yet in the scheduler
        self._jobs: deque[Job] = deque()
        self._texts: dict[int, TextTask] = {}  # by their numbers in the scheduler
        self._scheduler: Scheduler | None = None
        self._wakeup = threading.Condition()
        self._inbox: list[TextTask | Job] = []
        self._stopping = False
        self._running_jobs: list[Job] = []
        self.tokens = {"prompt": 0, "completion": 0}
        self._thread = threading.Thread(target=self._run, name=f"worker-{name}", daemon=True)

    @property
    def queue(self) -> int:
        return len(self._waiting) + len(self._jobs) + len(self._inbox) + self._waiting_in_scheduler

    @property
    def running(self) -> int:
        return len(self._texts) - self._waiting_in_scheduler + sum(job.size for job in self._running_jobs)

    @property
    def _waiting_in_scheduler(self) -> int:
        scheduler = self._scheduler
        return 0 if scheduler is None else scheduler.waiting

    @property
    def cache_tokens(self) -> int:
        """Positions in the key-value cache of texts under way; kept rows of finished ones are not counted."""
        scheduler = self._scheduler
        return 0 if scheduler is None else scheduler.active_tokens

    @property
    def _has_texts(self) -> bool:
        """Whether a step is needed, even if only to clear the rows of cancelled texts."""
        return bool(self._waiting or self._texts or (self._scheduler is not None and not self._scheduler.idle))

    def start(self) -> None:
        self._thread.start()

    def submit_texts(self, texts: Sequence[TextTask]) -> None:
        self._enqueue(texts)

    def submit_job(self, job: Job) -> None:
        self._enqueue([job])

    def stop(self, seconds: float) -> bool:
        """Ask the thread to stop; True if it ended in time."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _enqueue(self, items: Sequence[TextTask | Job]) -> None:
        with self._wakeup:
            self._inbox += items
            self._wakeup.notify()

    def _run(self) -> None:
        while self._receive():
            try:
                self._drop_disconnected()
                if self._has_texts:
                    self._step()
                if self._jobs:
                    self._run_jobs()
            except Exception as error:
                self._fail_current_work(error)

    def _fail_current_work(self, error: Exception) -> None:
        """After an unexpected exception: report it to all current texts and jobs, and keep the thread alive."""
        jobs, self._running_jobs = self._running_jobs, []
        if not jobs and not self._texts:  # a waiting job caused it and must not be tried again
            jobs = [self._jobs.popleft() for _ in range(len(self._jobs))]
        for job in jobs:
            job.finish(None, to_request_error(error))
        self._deliver(self._fail_texts(error))

    def _receive(self) -> bool:
        """Wait for work and sort the inbox into texts and jobs; False when the worker must stop."""
        with self._wakeup:
            while not (self._inbox or self._has_texts or self._jobs or self._stopping):
                self._wakeup.wait()
            for item in self._inbox:
                if isinstance(item, Job):
                    self._jobs.append(item)
                else:
                    self._waiting.append(item)
            self._inbox = []
            return not self._stopping

    def _drop_disconnected(self) -> None:
        self._waiting = deque(text for text in self._waiting if not text.listener.disconnected)
        self._jobs = deque(job for job in self._jobs if not job.disconnected)
        for number, text in list(self._texts.items()):
            if text.listener.disconnected:
                self._cancel_text(number)

    def _cancel_text(self, number: int) -> None:
        if self._scheduler is not None:
            self._scheduler.cancel(number)
        del self._texts[number]

    def _step(self) -> None:
        pieces: list[tuple[TextTask, Piece]] = []
        try:
            with self._lock:
                self._scheduler = self._scheduler or self._open_scheduler()
                self._submit_waiting(self._scheduler, pieces)
                began = time.monotonic()
                events = self._scheduler.step()
                self._scheduler.chunk = adjust_chunk(self._scheduler.chunk, time.monotonic() - began)
            for event in events:
                if (text := self._texts.get(event.number)) is not None:
                    pieces.append((text, self._process_event(text, event)))
        except Exception as error:
            pieces += self._fail_texts(error)
        self._deliver(pieces)

    def _submit_waiting(self, scheduler: Scheduler, pieces: list[tuple[TextTask, Piece]]) -> None:
        """Submit waiting texts to the scheduler; add an error piece for each text that it refuses."""
        while self._waiting:
            text = self._waiting.popleft()
            try:
                number = scheduler.submit(text.request, (text.listener.client, text.listener))
            except ChumokuError as error:
                pieces.append((text, Piece(text.place, "", error=to_request_error(error))))
                continue
            self._texts[number] = text
            self.tokens["prompt"] += len(text.request.prompt)

    def _process_event(self, text: TextTask, event: Event) -> Piece:
        piece = text.process(event)
        self.tokens["completion"] += event.token is not None
        if event.finished is not None:
            del self._texts[event.number]
        elif piece.finish_reason is not None:
            self._cancel_text(event.number)
        return piece

    def _fail_texts(self, error: Exception) -> list[tuple[TextTask, Piece]]:
        """Error pieces for the texts of the failed step; texts that had not begun wait for a new scheduler."""
        begun = set() if self._scheduler is None else self._scheduler.started
        texts = [text for number, text in self._texts.items() if number in begun]
        self._waiting.extendleft(text for number, text in reversed(self._texts.items()) if number not in begun)
        self._texts, self._scheduler = {}, None
        # If no text had begun, the scheduler could not be opened, and waiting would not help.
        texts = texts or [self._waiting.popleft() for _ in range(len(self._waiting))]
        failure = to_request_error(error, task=f"a step of {self.name}")
        return [(text, Piece(text.place, "", error=failure)) for text in texts]

    def _deliver(self, pieces: list[tuple[TextTask, Piece]]) -> None:
        """Send all pieces of a step with one call per event loop; only tests have several loops."""
        loops: dict[asyncio.AbstractEventLoop, list[tuple[TextTask, Piece]]] = {}
        for text, piece in pieces:
            loops.setdefault(text.listener.loop, []).append((text, piece))
        for loop, own_pieces in loops.items():
            call_in_loop(loop, functools.partial(_put_pieces, own_pieces))

    def _run_jobs(self) -> None:
        jobs = self._running_jobs = self._next_jobs()
        outcomes: list[tuple[Any, Exception | None]]
        try:
            with self._lock:
                results = jobs[0].run_batch(jobs, self._yield_turn)
            outcomes = [(result, None) for _, result in zip(jobs, results, strict=True)]
        except JobCancelled:  # nobody reads this if the client disconnected
            outcomes = [(None, RequestError(503, "The server is stopping."))] * len(jobs)
        except Exception as error:
            if len(jobs) > 1:  # perhaps only one of them is at fault, so run each alone
                for job in reversed(jobs):
                    job.key = None
                    self._jobs.appendleft(job)
                jobs = []
            outcomes = [(None, to_request_error(error, task=f"a job of {self.name}")) for _ in jobs]
        self._running_jobs = []
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.finish(*outcome)

    def _next_jobs(self) -> list[Job]:
        """The first job, and those that can run in the same batch."""
        first = self._jobs.popleft()
        jobs, size = [first], first.size
        if first.key is not None:
            for job in [job for job in self._jobs if job.key == first.key]:
                if size + job.size <= MAX_BATCH:
                    jobs.append(job)
                    size += job.size
                    self._jobs.remove(job)
        return jobs

    def _yield_turn(self) -> None:
        """Let other models compute first; raise JobCancelled if the server is stopping."""
        if self._stopping:
            raise JobCancelled
        self._lock.yield_turn()


def adjust_chunk(chunk: int, seconds: float) -> int:
    """Prompt tokens to read in the next step, so that steps stay short and disconnects are noticed soon."""
    if seconds > SLOW_STEP:
        return max(MIN_CHUNK, chunk // 2)
    return min(MAX_CHUNK, 2 * chunk) if seconds < SLOW_STEP / 4 else chunk


def _put_pieces(pieces: list[tuple[TextTask, Piece]]) -> None:
    for text, piece in pieces:
        text.listener.pieces.put_nowait(piece)
