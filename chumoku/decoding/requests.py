"""Requests to the scheduler: what to generate, the events that come back, and the state of a request under way."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from chumoku.decoding.batch import longest
from chumoku.decoding.batch_sampling import SamplerState
from chumoku.decoding.constraint import Constraint
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.fairness import Owner
from chumoku.decoding.logprobs import Likelihood
from chumoku.decoding.sampling import SamplingOptions
from chumoku.errors import LengthError, UsageError

# failed: the logits of this row were not finite; other rows go on.
Reason = Literal["end", "length", "cancelled", "failed"]


@dataclass(frozen=True)
class Request:
    """A prompt to continue.

    end         tokens that end the text; they are not part of it
    source      source tokens, for encoder-decoders
    logprobs    report the log probability of each token, and of this many of the most likely tokens there
    constraint  the grammar that the text must follow
    adapter     the name of the engine's adapter to use; None: the model alone
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    end: Sequence[int] = ()
    min_new_tokens: int = 0
    source: Sequence[int] | None = None
    logprobs: int | None = None
    constraint: Constraint | None = None
    adapter: str | None = None


class Event(NamedTuple):
    """A request has a new token, or is finished, or both."""

    number: int
    token: int | None
    finished: Reason | None = None
    likelihood: Likelihood | None = None
    cached: int = 0  # how many tokens of the prompt were not computed for it


class ActiveRequest:
    """A request that is waiting or has a row."""

    def __init__(self, number: int, request: Request, owner: Owner, *, limit: int, vocabulary: int) -> None:
        self.number, self.request, self.owner, self.limit = number, request, owner, limit
        self.sampler = SamplerState(
            request.sampling,
            vocabulary=vocabulary,
            prompt=request.prompt,
            end=request.end,
            min_new_tokens=request.min_new_tokens,
            constraint=None if request.constraint is None else request.constraint.start(),
        )
        self.tokens = list(request.prompt)  # the prompt and what was generated
        self.computed = 0  # how many of them are in the cache
        self.cached = 0  # how many tokens of the prompt were in the cache of another row
        self.started = False  # whether it ever had a row
        self.finished: Reason | None = None

    @property
    def cache_key(self) -> Hashable:
        """Only rows with the same key may be copied for this request."""
        return self.owner[0], self.request.adapter

    @property
    def remaining(self) -> int:
        """How many tokens are not in the cache yet."""
        return len(self.tokens) - self.computed

    @property
    def cost(self) -> int:
        """How many tokens must be computed again if this request loses its row."""
        return self.computed

    def use_prefix(self, length: int) -> None:
        """The row is a copy of another one, cut to this length."""
        self.computed = length
        if not self.started:
            self.cached = length

    def pause(self) -> None:
        """The row is gone; the generated tokens become part of the prompt."""
        self.computed, self.sampler.prompt = 0, self.tokens


def check_constraint(request: Request) -> None:
    if request.constraint is not None and request.min_new_tokens:
        raise UsageError("A text that must follow a grammar ends where the grammar ends: set min_new_tokens to 0.")


def check_request(request: Request, engine: Engine) -> None:
    """Refuse a request that the engine cannot compute."""
    if request.max_new_tokens < 0 or request.min_new_tokens < 0 or not request.prompt:
        raise UsageError(
            "A prompt needs 1 token or more (such as a begin token), and max_new_tokens and min_new_tokens must be 0 "
            f"or more; they are {request.max_new_tokens} and {request.min_new_tokens}, and the prompt has "
            f"{len(request.prompt)} tokens."
        )
    check_constraint(request)
    if request.logprobs is not None and request.logprobs < 0:
        raise UsageError(f"logprobs must be 0 or more, not {request.logprobs}.")
    if request.adapter is not None and request.adapter not in engine.adapters:
        known = ", ".join(engine.adapters) or "(none)"
        raise UsageError(f"There is no adapter '{request.adapter[:80]}'. Known adapters: {known}.")
    config, source = engine.model.config, request.source
    if (source is not None) != (config.kind == "encoder-decoder") or (source is not None and not source):
        raise UsageError(
            f"A request came with {len(source or ())} source tokens to a model of kind '{config.kind}'. An "
            "encoder-decoder needs 1 source token or more; a decoder has no source."
        )
    room = longest(engine.model, engine.capacity)
    sizes = engine.vocabulary, config.source_vocabulary or config.vocabulary
    for what, tokens, size in zip(("prompt", "source"), (request.prompt, source or ()), sizes, strict=True):
        if len(tokens) > room:
            raise LengthError(f"A {what} has {len(tokens)} tokens, but there is room for only {room}. Shorten it.")
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            raise UsageError(f"The tokens of a {what} must be numbers from 0 to {size - 1}.")
