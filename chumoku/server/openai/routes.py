"""/v1/completions, /v1/chat/completions and /v1/responses, in the format of the OpenAI API.

body → checks → tokens (in a reader) → texts (in the worker) → one response, or a stream of events
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from chumoku.server.disconnect import cancel_on_disconnect, open_listener, read_pieces
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.models import ServedModel, find_adapter
from chumoku.server.openai import generation as planning
from chumoku.server.openai import response_schemas, schemas
from chumoku.server.openai.response_events import ResponseEvents
from chumoku.server.openai.responses import Chat, Completion, GeneratedText, ResponseFormatter, count_cached
from chumoku.server.security.middleware import client_address
from chumoku.server.state import ServerState, state_of
from chumoku.server.streaming import EventStream, encode_event, json_response
from chumoku.server.token_text import TokenTextCache
from chumoku.server.worker import Listener, Piece

LARGE = 2000  # logprobs; larger responses are encoded in a reader thread, not in the event loop


@dataclass
class Generation:
    """A generation request in progress."""

    state: ServerState
    served: ServedModel
    body: schemas.GenerationOptions
    plan: planning.Plan
    client: str  # address
    began: float
    formatter: ResponseFormatter

    @property
    def count(self) -> int:
        return len(self.plan.requests)


async def completions(request: Request) -> Response:
    began, state = time.monotonic(), state_of(request)
    body = await state.read_body(request, schemas.Completion)
    planning.check_limits(body, state.limits, logprobs=("logprobs", body.logprobs))
    prompts = len(schemas.as_list(body.prompt))
    return await _generate(request, body, Completion, param="prompt", began=began, prompts=prompts)


async def chat_completions(request: Request) -> Response:
    began, state = time.monotonic(), state_of(request)
    body = await state.read_body(request, schemas.Chat)
    planning.check_limits(body, state.limits, logprobs=("top_logprobs", body.top_logprobs))
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError(400, "The field 'top_logprobs' requires logprobs to be true.", param="top_logprobs")
    return await _generate(request, body, Chat, param="messages", began=began)


async def responses(request: Request) -> Response:
    began, state = time.monotonic(), state_of(request)
    body = await state.read_body(request, response_schemas.ResponseRequest)
    planning.check_limit("max_output_tokens", body.max_output_tokens or 1, state.limits.new)
    make_formatter = functools.partial(ResponseEvents, request=body)
    return await _generate(request, response_schemas.to_chat(body), make_formatter, param="input", began=began)


async def _generate(
    request: Request,
    body: schemas.Completion | schemas.Chat,
    make_formatter: Callable[..., ResponseFormatter],
    *,
    param: str,
    began: float,
    prompts: int = 1,
) -> Response:
    """Generate the texts of a request; `param` is the name of the field with its prompts or messages."""
    state = state_of(request)
    served, adapter = find_adapter(state.models, body.model)
    planning.require_decoder(served)
    limit, texts = state.limits.texts, prompts * (body.n or 1)
    if texts > limit:
        wrong = param if prompts > limit else "n"
        raise RequestError(400, f"{texts:,} texts were requested at once; the limit is {limit}.", param=wrong)
    options = body.stream_options
    if options is not None and not body.stream:
        raise RequestError(400, "The field 'stream_options' requires stream to be true.", param="stream_options")
    with contextlib.ExitStack() as resources:
        resources.enter_context(admit_texts(served, texts))
        plan = await cancel_on_disconnect(request, state.run_in_reader(_make_plan, served, adapter, body, param))
        formatter = make_formatter(
            *(secrets.token_hex(12), int(time.time()), body.model, TokenTextCache(served.pipeline.tokenizer)),
            functions=plan.functions,
            stream_usage=options is not None and options.include_usage,
        )
        generation = Generation(state, served, body, plan, client_address(request.scope), began, formatter)
        if body.stream:
            return EventStream(_stream_events(generation), resources.pop_all(), end=formatter.stream_end)
        with open_listener(generation.client) as listener:
            return await cancel_on_disconnect(request, _complete_response(generation, listener))


def _make_plan(
    served: ServedModel, adapter: str | None, body: schemas.Completion | schemas.Chat, param: str
) -> planning.Plan:
    try:
        if isinstance(body, schemas.Chat):
            plan = planning.plan_chat(served, body)
        else:
            plan = planning.plan_completion(served, body)
        return replace(plan, requests=[replace(one, adapter=adapter) for one in plan.requests])
    except Exception as error:
        raise to_request_error(error, param=param) from error


@contextlib.contextmanager
def admit_texts(served: ServedModel, texts: int) -> Iterator[None]:
    """Count the texts as pending while the block runs."""
    served.admit(texts)
    try:
        yield
    finally:
        served.release(texts)


async def _complete_response(generation: Generation, listener: Listener) -> Response:
    state, plan = generation.state, generation.plan
    pieces: list[list[Piece]] = [[] for _ in range(generation.count)]
    async for piece in _pieces(generation, listener):
        pieces[piece.text_index].append(piece)
    extra = {"dropped_messages": plan.dropped} if plan.dropped else {}
    cached = count_cached(itertools.chain.from_iterable(pieces), generation.body.n or 1)
    encode = functools.partial(
        generation.formatter.response,
        pieces,
        trim=plan.trim,
        prompt_tokens=plan.prompt_tokens,
        cached_tokens=cached,
        **extra,
    )
    per_token = 1 + max((one.logprobs or 0 for one in plan.requests), default=0)
    large = per_token * sum(map(len, pieces)) > LARGE
    return json_response(await state.run_in_reader(encode) if large else encode())


async def _pieces(generation: Generation, listener: Listener) -> AsyncIterator[Piece]:
    """Submit the texts and yield their pieces."""
    first = True
    generation.served.worker.submit_texts(generation.plan.texts(generation.served, listener))
    async for piece in read_pieces(listener, generation.count):
        if first:
            generation.state.metrics.record_first_token(generation.served.name, time.monotonic() - generation.began)
            first = False
        yield piece


async def _stream_events(generation: Generation) -> AsyncGenerator[bytes]:
    """Each piece as server-sent events."""
    formatter, plan = generation.formatter, generation.plan
    first: dict[int, Piece] = {}
    with open_listener(generation.client) as listener:
        if chunks := formatter.first_chunks(generation.count, dropped=plan.dropped):
            yield b"".join(map(encode_event, chunks))
        texts = [GeneratedText(plan.trim) for _ in range(generation.count)]
        async for piece in _pieces(generation, listener):
            first.setdefault(piece.text_index, piece)
            if chunks := formatter.chunks(piece, texts[piece.text_index]):
                yield b"".join(map(encode_event, chunks))
        cached = count_cached(first.values(), generation.body.n or 1)
        if chunks := formatter.last_chunks(texts, prompt_tokens=plan.prompt_tokens, cached_tokens=cached):
            yield b"".join(map(encode_event, chunks))
