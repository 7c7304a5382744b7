"""/v1/completions and /v1/chat/completions, in OpenAI's form.

asked → checked → tokens (a reader) → texts (the worker) → one answer, or a stream of events
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from chumoku.server.disconnect import listening, pieces_of, unless_gone
from chumoku.server.errors import Refusal, from_error
from chumoku.server.models import Served, found
from chumoku.server.openai import generation, schemas
from chumoku.server.openai.responses import SHAPES, Shape, Written, usage_of
from chumoku.server.security.middleware import address_of
from chumoku.server.state import House, house_of
from chumoku.server.streaming import EventStream, answer, event
from chumoku.server.token_text import Spellings
from chumoku.server.worker import Listener, Piece

LARGE = 2000  # tokens told from which on an answer is not made in the loop


@dataclass
class Writing:
    """A request under way."""

    house: House
    served: Served
    asked: schemas.Writing
    plan: generation.Plan
    client: str  # its address
    began: float
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        chat = isinstance(self.asked, schemas.Chat)
        kind = SHAPES["chat" if chat else "completion"]
        prefix = "chatcmpl-" if chat else "cmpl-"
        self.shape = kind(
            prefix + secrets.token_hex(12),
            int(time.time()),
            self.served.name,
            Spellings(self.served.pipeline.tokenizer),
        )

    @property
    def count(self) -> int:
        return len(self.plan.requests)


async def completions(request: Request) -> Response:
    began, house = time.monotonic(), house_of(request)
    asked = await house.asked(request, schemas.Completion)
    served = found(house.models, asked.model)
    generation.decoder(served)
    generation.check(asked, house.limits, likeliest=("logprobs", asked.logprobs))
    prompts = len(schemas.each(asked.prompt))
    return await _written(request, house, served, asked, began=began, texts=prompts * (asked.n or 1))


async def chat_completions(request: Request) -> Response:
    began, house = time.monotonic(), house_of(request)
    asked = await house.asked(request, schemas.Chat)
    served = found(house.models, asked.model)
    generation.decoder(served)
    generation.check(asked, house.limits, likeliest=("top_logprobs", asked.top_logprobs))
    if asked.top_logprobs is not None and not asked.logprobs:
        raise Refusal(400, "The field 'top_logprobs' needs logprobs to be true.", param="top_logprobs")
    return await _written(request, house, served, asked, began=began, texts=asked.n or 1)


async def _written(
    request: Request,
    house: House,
    served: Served,
    asked: schemas.Completion | schemas.Chat,
    *,
    began: float,
    texts: int,
) -> Response:
    limit = house.limits.texts
    if texts > limit:
        many = "prompt" if texts // (asked.n or 1) > limit else "n"
        raise Refusal(400, f"{texts:,} texts were asked for at once, and {limit} can be. Ask for fewer.", param=many)
    if asked.stream_options is not None and not asked.stream:
        raise Refusal(400, "The field 'stream_options' needs stream to be true.", param="stream_options")
    with contextlib.ExitStack() as held:
        held.enter_context(admitted(served, texts))
        plan = await unless_gone(request, house.aside(_planned, served, asked))
        under_way = Writing(house, served, asked, plan, address_of(request.scope), began)
        if asked.stream:
            return EventStream(_events(under_way), held.pop_all())
        with listening(under_way.client) as listener:
            return await unless_gone(request, _whole(under_way, listener))


def _planned(served: Served, asked: schemas.Completion | schemas.Chat) -> generation.Plan:
    try:
        if isinstance(asked, schemas.Chat):
            return generation.reply(served, asked)
        return generation.completion(served, asked)
    except Exception as error:
        raise from_error(error, param="messages" if isinstance(asked, schemas.Chat) else "prompt") from error


@contextlib.contextmanager
def admitted(served: Served, texts: int) -> Iterator[None]:
    """So many texts are this model's until the end."""
    served.admit(texts)
    try:
        yield
    finally:
        served.release(texts)


async def _whole(under_way: Writing, listener: Listener) -> Response:
    house, plan = under_way.house, under_way.plan
    pieces: list[list[Piece]] = [[] for _ in range(under_way.count)]
    async for piece in _heard(under_way, listener):
        pieces[piece.text].append(piece)
    besides = {"dropped_messages": plan.dropped} if plan.dropped else {}
    shaped = functools.partial(
        under_way.shape.whole, pieces, trim=plan.trim, prompt_tokens=plan.prompt_tokens, **besides
    )
    told = 1 + max((one.logprobs or 0 for one in plan.requests), default=0)
    large = told * sum(map(len, pieces)) > LARGE
    return answer(await house.aside(shaped) if large else shaped())


async def _heard(under_way: Writing, listener: Listener) -> AsyncIterator[Piece]:
    """The pieces of all texts, from the moment they are asked for."""
    first = True
    under_way.served.worker.submit(under_way.plan.texts(under_way.served, listener))
    async for piece in pieces_of(listener, under_way.count):
        if first:
            under_way.house.metrics.first_token(under_way.served.name, time.monotonic() - under_way.began)
            first = False
        yield piece


async def _events(under_way: Writing) -> AsyncGenerator[bytes]:
    """Every piece as an event."""
    options = under_way.asked.stream_options
    usage = options is not None and options.include_usage
    shape, tokens = under_way.shape, 0
    with listening(under_way.client) as listener:
        if opening := shape.opening(under_way.count, dropped=under_way.plan.dropped):
            yield b"".join(event({**one, "usage": None} if usage else one) for one in opening)
        texts = [Written(under_way.plan.trim) for _ in range(under_way.count)]
        async for piece in _heard(under_way, listener):
            tokens += piece.token is not None
            chunk = shape.chunk(piece, texts[piece.text])
            if chunk is not None:
                yield event({**chunk, "usage": None} if usage else chunk)
        if usage:
            yield event(
                {**shape.head(stream=True), "choices": [], "usage": usage_of(under_way.plan.prompt_tokens, tokens)}
            )
