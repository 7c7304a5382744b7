"""A worker: the thread in which one model computes.

    inbox → scheduler, which shares its rows fairly → pieces, handed to the loop once a step
            jobs    → one between two steps (a translation, vectors, a look inside); like ones together

Whoever no longer listens is `gone`: a text leaves the queue or its row before the next step, a job before it begins or,
where it asks, between its own steps. What a step raises fails the texts that were in it; those that wait go on with a
fresh scheduler. Whatever else goes wrong fails what was at hand: the thread lives as long as its server.
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
from chumoku.server.errors import Refusal, from_error
from chumoku.server.fair_lock import Turns
from chumoku.server.jobs import Job as Job
from chumoku.server.jobs import Left, call

log = logging.getLogger("chumoku.server")
TOGETHER = 64  # texts of like jobs that are done at once
SLOW = 0.4  # seconds of a step, at which less of prompts is read in one: whoever leaves waits for no more than a step
LEAST, MOST = 16, 256  # tokens of prompts in a step


class Piece(NamedTuple):
    """What became known of a text in one step."""

    text: int  # which of its request
    words: str
    token: int | None = None
    likelihood: Likelihood | None = None
    finished: str | None = None  # stop or length
    failure: Refusal | None = None


class Listener:
    """Where the pieces of a request's texts arrive; when its client has gone, `gone` says so to the worker."""

    def __init__(self, client: str = "") -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.pieces: asyncio.Queue[Piece] = asyncio.Queue()
        self.gone = False


class Text:
    """One text to be written, for a listener."""

    def __init__(self, listener: Listener, place: int, request: Request, utterance: TextStream, *, trim: bool) -> None:
        self.listener, self.place, self.request = listener, place, request
        self._utterance, self._trim = utterance, trim

    def hear(self, event: Event) -> Piece:
        """The piece that an event of the scheduler becomes."""
        if event.finished == "failed":
            error = ChumokuError("The model's answers are no finite numbers, so no token is likelier than another.")
            return Piece(self.place, "", failure=from_error(error))
        words, finished = "", None
        if event.token is not None:
            words = self._utterance.push(event.token)
        if self._utterance.stopped:
            finished = "stop"
        elif event.finished is not None:
            words += self._utterance.finish()
            finished = "stop" if event.finished == "end" or self._utterance.stopped else "length"
        if self._trim:
            words = words.lstrip()
            self._trim = not words
        return Piece(self.place, words, event.token, event.likelihood, finished)


class Worker:
    """The thread of one model. `submit`, `do` and `stop` may be called from anywhere."""

    def __init__(self, name: str, open_scheduler: Callable[[], Scheduler], turns: Turns) -> None:
        self.name, self._open, self._turns = name, open_scheduler, turns
        self._waiting: deque[Text] = deque()  # until the next step
        self._jobs: deque[Job] = deque()
        self._texts: dict[int, Text] = {}  # of the scheduler, by its numbers
        self._scheduler: Scheduler | None = None
        self._news = threading.Condition()
        self._inbox: list[Text | Job] = []
        self._ending = False
        self._doing: list[Job] = []  # the jobs under way
        self.tokens = {"prompt": 0, "completion": 0}
        self._thread = threading.Thread(target=self._work, name=f"worker-{name}", daemon=True)

    @property
    def queue(self) -> int:
        return len(self._waiting) + len(self._jobs) + len(self._inbox) + self._without_row

    @property
    def running(self) -> int:
        return len(self._texts) - self._without_row + sum(job.size for job in self._doing)

    @property
    def _without_row(self) -> int:
        scheduler = self._scheduler
        return 0 if scheduler is None else scheduler.waiting

    @property
    def cache_tokens(self) -> int:
        """Positions of keys and values that are somebody's."""
        scheduler = self._scheduler
        return 0 if scheduler is None else sum(scheduler.engine.lengths)

    @property
    def _writing(self) -> bool:
        """Whether a step has something to do, be it only to clear rows that were given up."""
        return bool(self._waiting or self._texts or (self._scheduler is not None and not self._scheduler.idle))

    def start(self) -> None:
        self._thread.start()

    def submit(self, texts: Sequence[Text]) -> None:
        self._post(texts)

    def do(self, job: Job) -> None:
        self._post([job])

    def stop(self, seconds: float) -> bool:
        """Whether the thread has ended in time."""
        with self._news:
            self._ending = True
            self._news.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _post(self, what: Sequence[Text | Job]) -> None:
        with self._news:
            self._inbox += what
            self._news.notify()

    def _work(self) -> None:
        while self._receive():
            try:
                self._forget()
                if self._writing:
                    self._step()
                if self._jobs:
                    self._one_job()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """What no one was prepared for: all that was at hand hears of it, and the thread goes on."""
        jobs, self._doing = self._doing, []
        if not jobs and not self._texts:  # then it is among those that wait, and must not come again
            jobs = [self._jobs.popleft() for _ in range(len(self._jobs))]
        for job in jobs:
            job.answer(None, from_error(error))
        self._deliver(self._failed(error))

    def _receive(self) -> bool:
        """What came in goes to its queue; where there is nothing to do, this waits."""
        with self._news:
            while not (self._inbox or self._writing or self._jobs or self._ending):
                self._news.wait()
            for one in self._inbox:
                if isinstance(one, Job):
                    self._jobs.append(one)
                else:
                    self._waiting.append(one)
            self._inbox = []
            return not self._ending

    def _forget(self) -> None:
        """Nobody waits any more for these."""
        self._waiting = deque(text for text in self._waiting if not text.listener.gone)
        self._jobs = deque(job for job in self._jobs if not job.gone)
        for number, text in list(self._texts.items()):
            if text.listener.gone:
                self._drop(number)

    def _drop(self, number: int) -> None:
        if self._scheduler is not None:
            self._scheduler.cancel(number)
        del self._texts[number]

    def _step(self) -> None:
        pieces: list[tuple[Text, Piece]] = []
        try:
            with self._turns:
                self._scheduler = self._scheduler or self._open()
                self._enter(self._scheduler, pieces)
                began = time.monotonic()
                events = self._scheduler.step()
                self._scheduler.chunk = paced(self._scheduler.chunk, time.monotonic() - began)
            for event in events:
                if (text := self._texts.get(event.number)) is not None:
                    pieces.append((text, self._heard(text, event)))
        except Exception as error:
            pieces += self._failed(error)
        self._deliver(pieces)

    def _enter(self, scheduler: Scheduler, pieces: list[tuple[Text, Piece]]) -> None:
        """Whoever came goes to the scheduler; what cannot be asked is told to whoever asked it."""
        while self._waiting:
            text = self._waiting.popleft()
            try:
                number = scheduler.submit(text.request, (text.listener.client, text.listener))
            except ChumokuError as error:
                pieces.append((text, Piece(text.place, "", failure=from_error(error))))
                continue
            self._texts[number] = text
            self.tokens["prompt"] += len(text.request.prompt)

    def _heard(self, text: Text, event: Event) -> Piece:
        piece = text.hear(event)
        self.tokens["completion"] += event.token is not None
        if event.finished is not None:
            del self._texts[event.number]
        elif piece.finished is not None:
            self._drop(event.number)
        return piece

    def _failed(self, error: Exception) -> list[tuple[Text, Piece]]:
        """Those that were in the step hear of it; the next one begins with nothing of it."""
        begun = set() if self._scheduler is None else self._scheduler.started
        texts = [text for number, text in self._texts.items() if number in begun]
        self._waiting.extendleft(text for number, text in reversed(self._texts.items()) if number not in begun)
        self._texts, self._scheduler = {}, None
        # Where no scheduler could be opened nobody had a row yet, and waiting would not help.
        texts = texts or [self._waiting.popleft() for _ in range(len(self._waiting))]
        failure = from_error(error, by=f"a step of {self.name}")
        return [(text, Piece(text.place, "", failure=failure)) for text in texts]

    def _deliver(self, pieces: list[tuple[Text, Piece]]) -> None:
        """All of a step in one call of each loop; there is one loop but in tests."""
        loops: dict[asyncio.AbstractEventLoop, list[tuple[Text, Piece]]] = {}
        for text, piece in pieces:
            loops.setdefault(text.listener.loop, []).append((text, piece))
        for loop, some in loops.items():
            call(loop, functools.partial(_hand_out, some))

    def _one_job(self) -> None:
        jobs = self._doing = self._next_jobs()
        answers: list[tuple[Any, Exception | None]]
        try:
            with self._turns:
                results = jobs[0].together(jobs, self._pass_on)
            answers = [(result, None) for _, result in zip(jobs, results, strict=True)]
        except Left:  # who has left hears nothing of it
            answers = [(None, Refusal(503, "The server is stopping."))] * len(jobs)
        except Exception as error:
            if len(jobs) > 1:  # one of them may be to blame, and the others are not
                for job in reversed(jobs):
                    job.key = None
                    self._jobs.appendleft(job)
                jobs = []
            answers = [(None, from_error(error, by=f"a job of {self.name}")) for _ in jobs]
        self._doing = []
        for job, answer in zip(jobs, answers, strict=True):
            job.answer(*answer)

    def _next_jobs(self) -> list[Job]:
        """The first, and those that can be done with it."""
        first = self._jobs.popleft()
        jobs, size = [first], first.size
        if first.key is not None:
            for job in [job for job in self._jobs if job.key == first.key]:
                if size + job.size <= TOGETHER:
                    jobs.append(job)
                    size += job.size
                    self._jobs.remove(job)
        return jobs

    def _pass_on(self) -> None:
        """Other models first; where the server stops, nothing goes on."""
        if self._ending:
            raise Left
        self._turns.pass_on()


def paced(chunk: int, seconds: float) -> int:
    """How much of prompts is read in the next step: so much that whoever leaves meanwhile is noticed soon."""
    if seconds > SLOW:
        return max(LEAST, chunk // 2)
    return min(MOST, 2 * chunk) if seconds < SLOW / 4 else chunk


def _hand_out(pieces: list[tuple[Text, Piece]]) -> None:
    for text, piece in pieces:
        text.listener.pieces.put_nowait(piece)
