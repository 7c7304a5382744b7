"""/v1/completions and /v1/chat/completions, in the format of the OpenAI API.

body → checks → tokens (in a reader) → texts (in the worker) → one response, or a stream of events
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from chumoku.server.disconnect import cancel_on_disconnect, open_listener, read_pieces
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.models import ServedModel, find_model
from chumoku.server.openai import generation as planning
from chumoku.server.openai import schemas
from chumoku.server.openai.responses import FORMATTERS, GeneratedText, ResponseFormatter, count_cached, make_usage
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
    formatter: ResponseFormatter = field(init=False)

    def __post_init__(self) -> None:
        chat = isinstance(self.body, schemas.Chat)
        kind = FORMATTERS["chat" if chat else "completion"]
        prefix = "chatcmpl-" if chat else "cmpl-"
        tokens = TokenTextCache(self.served.pipeline.tokenizer)
        number, functions = secrets.token_hex(12), self.plan.functions
        self.formatter = kind(prefix + number, int(time.time()), self.served.name, tokens, functions)

    @property
    def count(self) -> int:
        return len(self.plan.requests)


async def completions(request: Request) -> Response:
    began, state = time.monotonic(), state_of(request)
    body = await state.read_body(request, schemas.Completion)
    served = find_model(state.models, body.model)
    planning.require_decoder(served)
    planning.check_limits(body, state.limits, logprobs=("logprobs", body.logprobs))
    prompts = len(schemas.as_list(body.prompt))
    return await _generate(request, state, served, body, began=began, texts=prompts * (body.n or 1))


async def chat_completions(request: Request) -> Response:
    began, state = time.monotonic(), state_of(request)
    body = await state.read_body(request, schemas.Chat)
    served = find_model(state.models, body.model)
    planning.require_decoder(served)
    planning.check_limits(body, state.limits, logprobs=("top_logprobs", body.top_logprobs))
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError(400, "The field 'top_logprobs' requires logprobs to be true.", param="top_logprobs")
    return await _generate(request, state, served, body, began=began, texts=body.n or 1)


async def _generate(
    request: Request,
    state: ServerState,
    served: ServedModel,
    body: schemas.Completion | schemas.Chat,
    *,
    began: float,
    texts: int,
) -> Response:
    limit = state.limits.texts
    if texts > limit:
        param = "prompt" if texts // (body.n or 1) > limit else "n"
        raise RequestError(400, f"{texts:,} texts were requested at once; the limit is {limit}.", param=param)
    if body.stream_options is not None and not body.stream:
        raise RequestError(400, "The field 'stream_options' requires stream to be true.", param="stream_options")
    with contextlib.ExitStack() as resources:
        resources.enter_context(admit_texts(served, texts))
        plan = await cancel_on_disconnect(request, state.run_in_reader(_make_plan, served, body))
        generation = Generation(state, served, body, plan, client_address(request.scope), began)
        if body.stream:
            return EventStream(_stream_events(generation), resources.pop_all())
        with open_listener(generation.client) as listener:
            return await cancel_on_disconnect(request, _complete_response(generation, listener))


def _make_plan(served: ServedModel, body: schemas.Completion | schemas.Chat) -> planning.Plan:
    try:
        if isinstance(body, schemas.Chat):
            return planning.plan_chat(served, body)
        return planning.plan_completion(served, body)
    except Exception as error:
        raise to_request_error(error, param="messages" if isinstance(body, schemas.Chat) else "prompt") from error


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
    """Each piece as a server-sent event."""
    options = generation.body.stream_options
    usage = options is not None and options.include_usage
    formatter, tokens = generation.formatter, 0
    first: dict[int, Piece] = {}
    with open_listener(generation.client) as listener:
        if first_chunks := formatter.first_chunks(generation.count, dropped=generation.plan.dropped):
            yield b"".join(encode_event({**one, "usage": None} if usage else one) for one in first_chunks)
        texts = [GeneratedText(generation.plan.trim) for _ in range(generation.count)]
        async for piece in _pieces(generation, listener):
            tokens += piece.token is not None
            first.setdefault(piece.text_index, piece)
            chunk = formatter.chunk(piece, texts[piece.text_index])
            if chunk is not None:
                yield encode_event({**chunk, "usage": None} if usage else chunk)
        if usage:
            cached = count_cached(first.values(), generation.body.n or 1)
            total = make_usage(generation.plan.prompt_tokens, tokens, cached=cached)
            yield encode_event({**formatter.header(stream=True), "choices": [], "usage": total})
