"""From what was asked to what the scheduler writes: the very requests that `chumoku generate` and `chat` make.

    prompt  × n  →  Request, TextStream        messages  × n  →  Request, TextStream

This tokenizes, and so runs in a reader's thread. What cannot be asked of the model is found here, before a stream
begins.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from chumoku.decoding import chat, generate
from chumoku.decoding.batch import forbidden_tokens
from chumoku.decoding.batch_sampling import SamplerState
from chumoku.decoding.defaults import TEMPERATURE, TOP_P
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request
from chumoku.decoding.stop_strings import TextStream
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import DecoderModel
from chumoku.server.errors import Refusal
from chumoku.server.models import Served, as_kind
from chumoku.server.openai import schemas
from chumoku.server.security.limits import Limits
from chumoku.server.worker import Listener, Text

NEW, REPLY = 128, 512  # tokens, where nothing is said; as on the command line


@dataclass(frozen=True)
class Plan:
    """All texts of a request."""

    requests: list[Request]
    stop: list[str]
    prompt_tokens: int
    trim: bool = False  # a reply begins with its first word
    dropped: int = 0  # messages that no longer fitted

    def texts(self, served: Served, listener: Listener) -> list[Text]:
        tokenizer = served.pipeline.tokenizer
        return [
            Text(listener, place, one, TextStream(tokenizer, before=one.prompt, stop=self.stop), trim=self.trim)
            for place, one in enumerate(self.requests)
        ]


def check(asked: schemas.Writing, limits: Limits, *, likeliest: tuple[str, int | None]) -> None:
    """What this server's limits refuse, by the field's name."""
    stops = stops_of(asked)
    most = {
        "n": (asked.n or 1, limits.n),
        "max_tokens": (asked.max_tokens or 1, limits.new),
        "least": (asked.least or 0, limits.new),
        "stop": (len(stops), limits.stops),
        likeliest[0]: (likeliest[1] or 0, limits.logprobs),
    }
    if isinstance(asked, schemas.Chat):
        most["max_completion_tokens"] = (asked.max_completion_tokens or 1, limits.new)
    for name, (found, limit) in most.items():
        if found > limit:
            raise Refusal(
                400, f"The field '{name}' asks for {found:,}, and this server gives up to {limit:,}.", param=name
            )
    if longest := [stop for stop in stops if len(stop) > limits.stop_letters]:
        raise Refusal(
            400,
            f"A stop string has {len(longest[0]):,} letters, and {limits.stop_letters} can be looked for.",
            param="stop",
        )


def decoder(served: Served) -> DecoderModel:
    return as_kind(served, DecoderModel, "goes on from no text")


def completion(served: Served, asked: schemas.Completion) -> Plan:
    model, tokenizer = decoder(served), served.pipeline.tokenizer
    new, least = asked.max_tokens or NEW, asked.least or 0
    sampling = sampling_of(asked)
    requests, tokens = [], 0
    for number, prompt in enumerate(schemas.each(asked.prompt)):
        if isinstance(prompt, str):
            one = generate.make_request(
                model, prompt, tokenizer=tokenizer, max_new_tokens=new, min_new_tokens=least, sampling=sampling
            )
        else:
            end = () if tokenizer.roles.end is None else (tokenizer.roles.end,)
            allowed = sampling.forbid(forbidden_tokens(model, tokenizer))
            one = Request(prompt, new, allowed, end, min_new_tokens=least)
        tokens += len(one.prompt)
        requests += several(one, asked.n or 1, first=number * (asked.n or 1), logprobs=asked.logprobs)
    for one in requests[:: asked.n or 1]:
        fits(served, one)
    return Plan(requests, stops_of(asked), tokens)


def reply(served: Served, asked: schemas.Chat) -> Plan:
    model, tokenizer = decoder(served), served.pipeline.tokenizer
    new = asked.max_completion_tokens or asked.max_tokens or REPLY
    messages = [("system" if one.role == "developer" else one.role, one.words) for one in asked.messages]
    turn = chat.make_turn(
        model,
        messages,
        tokenizer=tokenizer,
        max_new_tokens=new,
        sampling=sampling_of(asked),
        context=served.capacity,
    )
    one = replace(turn.request, min_new_tokens=asked.least or 0)
    fits(served, one)
    requests = several(one, asked.n or 1, first=0, logprobs=(asked.top_logprobs or 0) if asked.logprobs else None)
    stop = [*turn.stop, *stops_of(asked)]
    return Plan(requests, stop, len(one.prompt), trim=True, dropped=turn.dropped)


def several(request: Request, n: int, *, first: int, logprobs: int | None) -> list[Request]:
    """The same text n times, each with random numbers of its own."""
    options = replace(request.sampling, row=first).for_rows(n)
    return [replace(request, sampling=one, logprobs=logprobs) for one in options]


def fits(served: Served, request: Request) -> None:
    """What the scheduler would refuse, said before anything is answered."""
    size = served.pipeline.config.vocabulary
    if len(request.prompt) > served.capacity:
        raise LengthError(
            f"The prompt has {len(request.prompt):,} tokens, and there is room for {served.capacity:,}. Shorten it."
        )
    if not 0 <= min(request.prompt) <= max(request.prompt) < size:
        raise UsageError(f"A prompt's tokens are numbers from 0 to {size - 1}.")
    if unknown := [token for token in request.sampling.bias if token >= size]:
        raise Refusal(
            400,
            f"The field 'logit_bias' names token {unknown[0]}, and a token is a number from 0 to {size - 1}.",
            param="logit_bias",
        )
    SamplerState(
        request.sampling,
        vocabulary=size,
        prompt=request.prompt,
        end=request.end,
        min_new_tokens=request.min_new_tokens,
    )


def stops_of(asked: schemas.Writing) -> list[str]:
    return [asked.stop] if isinstance(asked.stop, str) else list(asked.stop or ())


def sampling_of(asked: schemas.Writing) -> SamplingOptions:
    """How the texts are chosen; without a seed, each time otherwise."""
    return SamplingOptions(
        temperature=TEMPERATURE if asked.temperature is None else asked.temperature,
        top_k=asked.top_k,
        top_p=TOP_P if asked.top_p is None else None if asked.top_p == 1 else asked.top_p,
        min_p=asked.min_p,
        repetition_penalty=1.0 if asked.repetition is None else asked.repetition,
        frequency_penalty=asked.frequency_penalty or 0.0,
        bias=bias_of(asked.logit_bias or {}),
        seed=secrets.randbits(48) if asked.seed is None else asked.seed,
    )


def bias_of(given: dict[str, float]) -> dict[int, float]:
    if wrong := [name for name in given if not (name.isascii() and name.isdigit())]:
        raise Refusal(
            400, f"The field 'logit_bias' names tokens by their numbers, and '{wrong[0]}' is none.", param="logit_bias"
        )
    return {int(name): value for name, value in given.items()}
