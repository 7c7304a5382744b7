"""Requests to the scheduler: what is asked for, what is said of it, and a text on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from chumoku.decoding.batch import longest
from chumoku.decoding.batch_sampling import Voice
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.fairness import Owner
from chumoku.decoding.logprobs import Likelihood
from chumoku.decoding.sampling import Choice
from chumoku.errors import LengthError, UsageError

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

    def __init__(self, number: int, request: Request, owner: Owner, *, room: int, vocabulary: int) -> None:
        self.number, self.request, self.owner, self.room = number, request, owner, room
        self.voice = Voice(
            request.choice, vocabulary=vocabulary, prompt=request.prompt, end=request.end, least=request.least
        )
        self.tokens = list(request.prompt)  # and what is written
        self.read = 0  # of these, by the row
        self.begun = False  # whether it ever had a row
        self.finished: Reason | None = None

    @property
    def unread(self) -> int:
        return len(self.tokens) - self.read

    @property
    def cost(self) -> int:
        """What would have to be read again."""
        return self.read

    def pause(self) -> None:
        """Its row is gone; what it has written becomes part of what is read."""
        self.read, self.voice.prompt = 0, self.tokens


def check_request(request: Request, engine: Engine) -> None:
    """Refuse what cannot be computed, before anything else is disturbed by it."""
    if request.new < 0 or request.least < 0 or not request.prompt:
        raise UsageError(
            f"{request.new} new tokens, at least {request.least}, were asked for after a prompt of "
            f"{len(request.prompt)} tokens; a prompt has 1 or more (a begin token, where there is nothing else), "
            "and the others are 0 or more."
        )
    if request.logprobs is not None and request.logprobs < 0:
        raise UsageError(f"{request.logprobs} of the likeliest tokens were asked for; give 0 or more.")
    config, source = engine.model.config, request.source
    if (source is not None) != (config.kind == "encoder-decoder") or (source is not None and not source):
        raise UsageError(
            f"A request came with a source of {len(source or ())} tokens to a model of kind '{config.kind}'; an "
            "encoder-decoder needs one of 1 or more, and a decoder reads none."
        )
    room = longest(engine.model, engine.capacity)
    sizes = engine.vocabulary, config.source_vocabulary or config.vocabulary
    for what, tokens, size in zip(("prompt", "source"), (request.prompt, source or ()), sizes, strict=True):
        if len(tokens) > room:
            raise LengthError(f"A {what} has {len(tokens)} tokens, and there is room for {room}. Shorten it.")
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            raise UsageError(f"A {what}'s tokens are numbers from 0 to {size - 1}.")
