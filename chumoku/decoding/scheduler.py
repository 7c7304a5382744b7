"""The scheduler: many requests, one batch that they enter and leave at any step.

    waiting  →  reading  →  writing  →  finished           rows of the engine:   writing … | the one being read

    step     read on in prompts, at most `chunk` tokens, so that a long one does not make the others wait
             choose a token for every row that writes, tell it, and let finished rows leave
             compute what follows for the rows that stay

Memory is bounded by the engine's rows and positions, and the queue by `queue`. A request's text is what it would be
alone: its row sees no other, and its random numbers are its own. On a GPU the next step is under way before the tokens
just chosen are waited for; a row that turns out to have ended has then taken one step in vain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from chumoku.decoding.batch import close_ranks, longest
from chumoku.decoding.choosers import Choice
from chumoku.decoding.chosen import BROKEN, Chooser, Voice
from chumoku.decoding.engine import Engine
from chumoku.decoding.measured import Likelihood, Measured
from chumoku.errors import BusyError, LengthError, UsageError

# failed: the model answered a row with no finite numbers; the others go on.
Reason = Literal["end", "length", "cancelled", "failed"]


@dataclass(frozen=True)
class Request:
    """A text to be written: at most `new` tokens behind the prompt, at least `least`, up to a token of `end`.

    With `logprobs`, each token comes with how likely it was, and so many of the likeliest beside it.
    """

    prompt: Sequence[int]
    new: int
    choice: Choice = field(default_factory=Choice)
    end: Sequence[int] = ()
    least: int = 0
    source: Sequence[int] | None = None
    logprobs: int | None = None


class Event(NamedTuple):
    """What happened to a request: a token was written, or it is finished, or both."""

    number: int
    token: int | None
    finished: Reason | None = None
    likelihood: Likelihood | None = None


class Text:
    """A request on its way."""

    def __init__(self, number: int, request: Request, *, room: int, vocabulary: int) -> None:
        self.number, self.request, self.room = number, request, room
        self.voice = Voice(
            request.choice, vocabulary=vocabulary, prompt=request.prompt, end=request.end, least=request.least
        )
        self.read = 0  # tokens of the prompt
        self.finished: Reason | None = None


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
        self._waiting: deque[Text] = deque()
        self._writing: list[Text] = []  # rows 0 …
        self._reading: Text | None = None  # the row behind them
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
    def nbytes(self) -> int:
        return self.engine.nbytes

    def submit(self, request: Request) -> int:
        """The number under which this request's events will come."""
        if len(self._waiting) >= self.queue:
            raise BusyError(f"{self.queue} requests are waiting, and no more can. Try again when some are finished.")
        self._check(request)
        number, self._submitted = self._submitted, self._submitted + 1
        room = min(request.new, self.engine.capacity - len(request.prompt))
        text = Text(number, request, room=room, vocabulary=self.engine.vocabulary)
        if room:
            self._waiting.append(text)
        else:
            self._told.append(Event(number, None, "length"))
        return number

    def cancel(self, number: int) -> bool:
        """Whether the request was still on its way; its last event then comes with the next step."""
        known = (*self._waiting, *self._writing, *([self._reading] if self._reading else []))
        text = next((text for text in known if text.number == number and text.finished is None), None)
        if text is None:
            return False
        text.finished = "cancelled"
        if text in self._waiting:
            self._waiting.remove(text)
        self._told.append(Event(number, None, "cancelled"))
        return True

    def close(self) -> None:
        """Everything asked for is dropped, and the engine is empty."""
        self._waiting.clear()
        self._writing, self._reading, self._logits, self._told = [], None, None, []
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

    def _leave(self) -> list[int]:
        """Finished rows go; of those that stay, which stands where now."""
        staying = [row for row, text in enumerate(self._writing) if text.finished is None]
        order = list(range(len(staying))) if len(staying) == len(self._writing) else close_ranks(staying)
        reading = [len(self._writing)] if self._reading is not None and self._reading.finished is None else []
        if len(staying) < len(self._writing) or (self._reading is not None and not reading):
            self.engine.take([*order, *reading])
        if not reading:
            self._reading = None
        if len(staying) < len(self._writing):
            self._chooser.take(order)
            self._writing = [self._writing[row] for row in order]
        return order

    def _clear(self) -> None:
        """Rows found to be finished since the last step leave before this one."""
        before = len(self._writing)
        order = self._leave()
        if self._logits is not None and len(order) < before:
            self._logits = self._logits[torch.tensor(order, device=self._logits.device)] if order else None

    def _read(self) -> None:
        """Up to `chunk` tokens of prompts; those read to their end begin to write."""
        left, texts, pieces = self.chunk, [], []
        entering: list[Text] = []
        if self._reading is not None:
            texts.append(self._reading)
        while self._waiting and len(self._writing) + len(texts) < self.engine.rows:
            if sum(len(text.request.prompt) - text.read for text in texts) >= self.chunk:
                break
            entering.append(self._waiting.popleft())
            texts.append(entering[-1])
        if not texts:
            return
        if entering:
            sources = [text.request.source for text in entering if text.request.source is not None]
            self.engine.enter(len(entering), sources or None)
        for text in texts:
            pieces.append(text.request.prompt[text.read : text.read + left])
            text.read += len(pieces[-1])
            left -= len(pieces[-1])
        logits = self.engine.read(pieces, first=len(self._writing))
        whole = [text for text in texts if text.read == len(text.request.prompt)]
        self._reading = texts[-1] if len(whole) < len(texts) else None
        if whole:
            new = logits[: len(whole)]
            self._logits = new if self._logits is None else torch.cat([self._logits, new])
            self._writing += whole
            self._chooser.enter([text.voice for text in whole])

    def _check(self, request: Request) -> None:
        if request.new < 0 or request.least < 0 or not request.prompt:
            raise UsageError(
                f"{request.new} new tokens, at least {request.least}, were asked for after a prompt of "
                f"{len(request.prompt)} tokens; a prompt has 1 or more (a begin token, where there is nothing else), "
                "and the others are 0 or more."
            )
        if request.logprobs is not None and request.logprobs < 0:
            raise UsageError(f"{request.logprobs} of the likeliest tokens were asked for; give 0 or more.")
        config, source = self.engine.model.config, request.source
        if (source is not None) != (config.kind == "encoder-decoder") or (source is not None and not source):
            raise UsageError(
                f"A request came with a source of {len(source or ())} tokens to a model of kind '{config.kind}'; an "
                "encoder-decoder needs one of 1 or more, and a decoder reads none."
            )
        room = longest(self.engine.model, self.engine.capacity)
        sizes = self.engine.vocabulary, config.source_vocabulary or config.vocabulary
        for what, tokens, size in zip(("prompt", "source"), (request.prompt, source or ()), sizes, strict=True):
            if len(tokens) > room:
                raise LengthError(f"A {what} has {len(tokens)} tokens, and there is room for {room}. Shorten it.")
            if tokens and not 0 <= min(tokens) <= max(tokens) < size:
                raise UsageError(f"A {what}'s tokens are numbers from 0 to {size - 1}.")
