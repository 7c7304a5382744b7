"""The scheduler: many requests, one batch that they enter and leave at any step.

    waiting  →  reading  →  writing  →  finished           rows of the engine:   writing … | reading …

    step     read on in prompts, about `chunk` tokens shared by all who read, so that a long one delays nobody
             choose a token for every row that writes, tell it, and let finished rows leave
             compute what follows for the rows that stay

Memory is bounded by the engine's rows and positions, and the queue by `queue`. Rows and reading are shared as
`fairness` says; a text that has to give up its row is read again later and goes on. A request's text is what it would
be alone: its row sees no other, and its random numbers are its own. On a GPU the next step is under way before the
tokens just chosen are waited for; a row that turns out to have ended has then taken one step in vain.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from chumoku.decoding.batch import close_ranks
from chumoku.decoding.batch_sampling import BROKEN, Chooser
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.fairness import Owner, Waiting, gives_way, settled, shares_of_owners
from chumoku.decoding.logprobs import Likelihood, Measured
from chumoku.decoding.requests import Event as Event
from chumoku.decoding.requests import Request as Request
from chumoku.decoding.requests import Text, check_request
from chumoku.errors import BusyError


class Told:
    """Tokens on their way to the host: on a GPU they travel while the next step is computed."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens
        self._ready: torch.cuda.Event | None = None
        if tokens.is_cuda:
            self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._tokens.copy_(tokens, non_blocking=True)
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def wait(self) -> list[int]:
        if self._ready is not None:
            self._ready.synchronize()
        return self._tokens.tolist()


def travels(tokens: Tensor) -> bool:
    """Whether the host hears of tokens later than they are chosen."""
    return tokens.is_cuda


class Scheduler:
    """Requests over an engine that nobody else uses meanwhile."""

    def __init__(self, engine: Engine, *, queue: int = 1024, chunk: int = 512) -> None:
        self.engine, self.queue, self.chunk = engine, queue, chunk
        engine.take([])
        self._chooser = Chooser(engine.vocabulary, engine.device)
        self._waiting: Waiting[Text] = Waiting()
        self._writing: list[Text] = []  # rows 0 …
        self._reading: list[Text] = []  # the rows behind them
        self._logits: Tensor | None = None  # of the rows that write
        self._told: list[Event] = []  # what is known before a step
        self._submitted = 0

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._writing or self._reading or self._told)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def begun(self) -> set[int]:
        """The numbers of requests under way of which something was computed."""
        return {text.number for text in (*self._waiting, *self._reading, *self._writing) if text.begun}

    @property
    def nbytes(self) -> int:
        return self.engine.nbytes

    def submit(self, request: Request, owner: Owner = (None, None)) -> int:
        """The number under which this request's events will come; rows are shared fairly between owners."""
        if len(self._waiting) >= self.queue:
            raise BusyError(f"{self.queue} requests are waiting, and no more can. Try again when some are finished.")
        check_request(request, self.engine)
        number, self._submitted = self._submitted, self._submitted + 1
        room = min(request.new, self.engine.capacity - len(request.prompt))
        text = Text(number, request, owner, room=room, vocabulary=self.engine.vocabulary)
        if room:
            self._waiting.add(text)
        else:
            self._told.append(Event(number, None, "length"))
        return number

    def cancel(self, number: int) -> bool:
        """Whether the request was still on its way; its last event then comes with the next step."""
        known = (*self._waiting, *self._writing, *self._reading)
        text = next((text for text in known if text.number == number and text.finished is None), None)
        if text is None:
            return False
        text.finished = "cancelled"
        if text not in self._writing and text not in self._reading:
            self._waiting.remove(text)
        self._told.append(Event(number, None, "cancelled"))
        return True

    def close(self) -> None:
        """Everything asked for is dropped, and the engine is empty."""
        self._waiting.clear()
        self._writing, self._reading, self._logits, self._told = [], [], None, []
        self._chooser.take([])
        self.engine.take([])

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Read, choose, compute: a token for each request that writes."""
        events, self._told = self._told, []
        self._clear()
        self._read()
        if self._logits is None:
            return events
        texts = list(self._writing)
        measured = Measured(self._logits, [text.request.logprobs for text in texts])
        chosen = self._chooser.choose(self._logits)
        told, late = Told(chosen), travels(chosen)
        if not late:
            events += self._tell(texts, told.wait(), measured.of(chosen))
        for text in texts:
            # The limit is known before the token is; voices count what they have chosen.
            if text.finished is None and text.voice.written >= text.room:
                text.finished = "length"
        self._go_on(chosen, late=late)
        if late:
            events += self._tell(texts, told.wait(), measured.of(chosen))
        return events

    def _tell(self, texts: Sequence[Text], tokens: Sequence[int], likely: dict[int, Likelihood]) -> list[Event]:
        events = []
        for row, (text, token) in enumerate(zip(texts, tokens, strict=True)):
            if token == BROKEN or token in text.voice.end:
                text.finished = "failed" if token == BROKEN else "end"
                events.append(Event(text.number, None, text.finished))
            else:
                over = text.voice.written >= text.room
                text.tokens.append(token)
                text.read += 1  # by the step that follows
                events.append(Event(text.number, token, "length" if over else None, likely.get(row)))
        return events

    def _go_on(self, chosen: Tensor, *, late: bool) -> None:
        """What follows, for the rows that are not known to be finished."""
        staying = self._leave()
        if not staying:
            self._logits = None
            return
        if len(staying) < len(chosen):
            chosen = chosen[torch.tensor(staying, device=chosen.device)]
        # Of a broken row we hear later; until then it needs some token.
        self._logits = self.engine.step(chosen.clamp(min=0) if late else chosen)

    def _leave(self, paused: Collection[Text] = ()) -> list[int]:
        """Finished and paused rows go; of those that stay and write, which stands where now."""
        count = len(self._writing)
        going = {text for text in (*self._writing, *self._reading) if text.finished or text in paused}
        if not going:
            return list(range(count))
        staying = [row for row, text in enumerate(self._writing) if text not in going]
        order = list(range(count)) if len(staying) == count else close_ranks(staying)
        reading = [row for row, text in enumerate(self._reading, start=count) if text not in going]
        reading = settled(reading, len(order))
        self.engine.take([*order, *reading])
        self._reading = [self._reading[row - count] for row in reading]
        if len(order) < count:
            self._chooser.take(order)
            self._writing = [self._writing[row] for row in order]
        return order

    def _clear(self, paused: Collection[Text] = ()) -> None:
        """Rows found to be finished since the last step, and those that are paused, leave before this one."""
        before = len(self._writing)
        order = self._leave(paused)
        if self._logits is not None and len(order) < before:
            self._logits = self._logits[torch.tensor(order, device=self._logits.device)] if order else None

    def _read(self) -> None:
        """About `chunk` tokens of prompts; those read to their end begin to write."""
        planned = self._plan()
        if not planned:
            return
        entering = [text for text in planned if text not in self._reading]
        if entering:
            for text in entering:
                text.begun = True
            sources = [text.request.source for text in entering if text.request.source is not None]
            self.engine.enter(len(entering), sources or None)
            self._reading += entering
        pieces = [text.tokens[text.read : text.read + planned[text]] for text in self._reading]
        for text in self._reading:
            text.read += planned[text]
        logits = self.engine.read(pieces, first=len(self._writing))
        self._begin(logits)

    def _begin(self, logits: Tensor) -> None:
        """Rows that are read to their end begin to write: they come to stand behind those that do."""
        first = len(self._writing)
        whole = [first + row for row, text in enumerate(self._reading) if not text.unread]
        if not whole:
            return
        part = [first + row for row, text in enumerate(self._reading) if text.unread]
        whole, part = settled(whole, first), settled(part, first + len(whole))
        if part and [*whole, *part] != sorted([*whole, *part]):
            self.engine.take([*range(first), *whole, *part])
        new = logits[torch.tensor([row - first for row in whole], device=logits.device)]
        self._logits = new if self._logits is None else torch.cat([self._logits, new])
        texts, self._reading = self._reading, [self._reading[row - first] for row in part]
        self._writing += [texts[row - first] for row in whole]
        self._chooser.enter([texts[row - first].voice for row in whole])

    def _plan(self) -> dict[Text, int]:
        """How many tokens of which texts are read in this step; whoever is new among them waits no longer."""
        new = self._newcomers()
        texts = [*self._reading, *new]
        given = shares_of_owners([text.owner for text in texts], [text.unread for text in texts], self.chunk)
        planned = dict(zip(texts, given, strict=True))
        left, rows = self.chunk - sum(given), [*self._writing, *texts]
        while left > 0 and self._waiting and len(rows) < self.engine.rows:  # all of these are read to their end
            text = self._waiting.in_order(rows)[0]
            self._waiting.remove(text)
            rows.append(text)
            planned[text] = min(left, text.unread)
            left -= planned[text]
        return planned

    def _newcomers(self) -> list[Text]:
        """A text of every owner that is reading none, while there are rows or somebody has to give one up."""
        rows = [*self._writing, *self._reading]
        new: list[Text] = []
        paused: list[Text] = []
        reading = {text.owner for text in self._reading}
        while self._waiting and len(reading) < self.chunk:
            for text in self._waiting.in_order(rows, without=reading):
                other = None if len(rows) < self.engine.rows else gives_way(text, rows, spared=new)
                if other is not None or len(rows) < self.engine.rows:
                    break
            else:
                break
            if other is not None:
                rows.remove(other)
                paused.append(other)
            self._waiting.remove(text)
            reading.add(text.owner)
            rows.append(text)
            new.append(text)
        for text in paused:
            text.pause()
        if paused:
            self._clear(paused)
        for text in reversed(paused):
            self._waiting.add_first(text)
        return new
