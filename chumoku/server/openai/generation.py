"""Converts request bodies into scheduler requests, the same ones that `chumoku generate` and `chat` make.

    prompt  × n  →  Request, TextStream        messages  × n  →  Request, TextStream

This tokenizes, so it runs in a reader thread. Invalid requests are found here, before a stream begins.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from chumoku.decoding import chat, generate
from chumoku.decoding.arguments import fill_options
from chumoku.decoding.batch_sampling import SamplerState
from chumoku.decoding.constraint import constrain_to_json
from chumoku.decoding.requests import check_constraint
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request
from chumoku.decoding.stop_strings import TextStream
from chumoku.errors import LengthError, UsageError
from chumoku.models.generation_config import GenerationConfig
from chumoku.models.model import DecoderModel
from chumoku.server.errors import RequestError
from chumoku.server.models import ServedModel, require_kind
from chumoku.server.openai import schemas
from chumoku.server.openai.tools import choose_tools
from chumoku.server.security.limits import Limits
from chumoku.server.worker import Listener, TextTask

COMPLETION_TOKENS, CHAT_TOKENS = 128, 512  # default of max_tokens, the same as in the command line


@dataclass(frozen=True)
class Plan:
    """All texts of a request."""

    requests: list[Request]
    stop: list[str]
    prompt_tokens: int
    trim: bool = False  # remove white space at the start of each text
    dropped: int = 0  # number of old messages that did not fit into the context
    functions: frozenset[str] = frozenset()  # that the model may call

    def texts(self, served: ServedModel, listener: Listener) -> list[TextTask]:
        tokenizer = served.pipeline.tokenizer
        return [
            TextTask(listener, place, one, TextStream(tokenizer, before=one.prompt, stop=self.stop), trim=self.trim)
            for place, one in enumerate(self.requests)
        ]


def check_limits(body: schemas.GenerationOptions, limits: Limits, *, logprobs: tuple[str, int | None]) -> None:
    """Raise RequestError for a field that exceeds the limits; `logprobs` is the name and value of that field."""
    stops = stop_strings(body)
    fields = {
        "n": (body.n or 1, limits.n),
        "max_tokens": (body.max_tokens or 1, limits.new),
        "min_tokens": (body.min_tokens or 0, limits.new),
        "stop": (len(stops), limits.stops),
        logprobs[0]: (logprobs[1] or 0, limits.logprobs),
    }
    if isinstance(body, schemas.Chat):
        fields["max_completion_tokens"] = (body.max_completion_tokens or 1, limits.new)
    for name, (value, limit) in fields.items():
        check_limit(name, value, limit)
    if too_long := [stop for stop in stops if len(stop) > limits.stop_letters]:
        message = f"A stop string has {len(too_long[0]):,} characters; the limit is {limits.stop_letters}."
        raise RequestError(400, message, param="stop")


def check_limit(name: str, value: int, limit: int) -> None:
    if value > limit:
        message = f"'{name}' is limited to {limit:,} on this server; the request asks for {value:,}."
        raise RequestError(400, message, param=name)


def require_decoder(served: ServedModel) -> DecoderModel:
    return require_kind(served, DecoderModel, "cannot generate text")


def plan_completion(served: ServedModel, body: schemas.Completion) -> Plan:
    model, tokenizer = require_decoder(served), served.pipeline.tokenizer
    requests, tokens = [], 0
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "max_new_tokens": body.max_tokens or COMPLETION_TOKENS,
        "min_new_tokens": body.min_tokens or 0,
        "sampling": sampling_of(body, served.pipeline.generation_config),
    }
    for number, prompt in enumerate(schemas.as_list(body.prompt)):
        if isinstance(prompt, str):
            one = generate.make_request(model, prompt, **options)
        else:
            one = generate.request_for_tokens(model, prompt, **options)
        tokens += len(one.prompt)
        requests += repeat_request(one, body.n or 1, first=number * (body.n or 1), logprobs=body.logprobs)
    for one in requests[:: body.n or 1]:
        check_fits(served, one)
    return Plan(requests, stop_strings(body), tokens)


def plan_chat(served: ServedModel, body: schemas.Chat) -> Plan:
    model, tokenizer = require_decoder(served), served.pipeline.tokenizer
    new = body.max_completion_tokens or body.max_tokens or CHAT_TOKENS
    tools = choose_tools(body)
    turn = chat.make_turn(
        model,
        [message.fields for message in body.messages],
        tokenizer=tokenizer,
        max_new_tokens=new,
        tools=tools.descriptions or None,
        sampling=sampling_of(body, served.pipeline.generation_config),
        context=served.capacity,
    )
    one = replace(turn.request, min_new_tokens=body.min_tokens or 0)
    wanted = body.response_format
    if tools.call is not None:
        one = replace(one, constraint=constrain_to_json(tokenizer, one.end, tools.call))
    elif wanted is not None and wanted.type != "text":
        schema = None if wanted.json_schema is None else wanted.json_schema.json_schema
        one = replace(one, constraint=constrain_to_json(tokenizer, one.end, schema))
    check_fits(served, one)
    requests = repeat_request(one, body.n or 1, first=0, logprobs=(body.top_logprobs or 0) if body.logprobs else None)
    stop = [*turn.stop, *stop_strings(body)]
    return Plan(requests, stop, len(one.prompt), trim=True, dropped=turn.dropped, functions=tools.names)


def repeat_request(request: Request, n: int, *, first: int, logprobs: int | None) -> list[Request]:
    """The request n times, each with its own random numbers."""
    options = replace(request.sampling, row=first).for_rows(n)
    return [replace(request, sampling=one, logprobs=logprobs) for one in options]


def check_fits(served: ServedModel, request: Request) -> None:
    """Raise now what the scheduler would raise later, when a stream may have begun."""
    check_constraint(request)
    size = served.pipeline.config.vocabulary
    if len(request.prompt) > served.capacity:
        raise LengthError(
            f"The prompt has {len(request.prompt):,} tokens; at most {served.capacity:,} fit. Shorten it."
        )
    if not 0 <= min(request.prompt) <= max(request.prompt) < size:
        raise UsageError(f"Token ids must be from 0 to {size - 1}.")
    if unknown := [token for token in request.sampling.bias if token >= size]:
        message = f"The field 'logit_bias' names token {unknown[0]}; token ids are from 0 to {size - 1}."
        raise RequestError(400, message, param="logit_bias")
    SamplerState(
        request.sampling,
        vocabulary=size,
        prompt=request.prompt,
        end=request.end,
        min_new_tokens=request.min_new_tokens,
    )


def stop_strings(body: schemas.GenerationOptions) -> list[str]:
    return [body.stop] if isinstance(body.stop, str) else list(body.stop or ())


def sampling_of(body: schemas.GenerationOptions, config: GenerationConfig) -> SamplingOptions:
    """How tokens are chosen; what a request leaves out is the model's default. Without a seed, the seed is random."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    off = [name for name, value in (("top_k", 0), ("top_p", 1), ("min_p", 0)) if given.get(name) == value]
    return replace(
        fill_options(config, {**given, **dict.fromkeys(off)}),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        bias=parse_logit_bias(body.logit_bias or {}),
        seed=secrets.randbits(48) if body.seed is None else body.seed,
    )


def parse_logit_bias(bias: dict[str, float]) -> dict[int, float]:
    if wrong := [name for name in bias if not (name.isascii() and name.isdigit())]:
        message = f"The keys of 'logit_bias' must be token ids; '{wrong[0]}' is not a number."
        raise RequestError(400, message, param="logit_bias")
    return {int(name): value for name, value in bias.items()}
