"""Generation: a decoder continues a prompt, one token at a time.

    prompt → tokens → prefill → (sample a token → step)* → text

    generate         tokens to tokens, many prompts at once
    generate_texts   text to text, many prompts at once
    stream           one prompt; yields pieces of text that together equal the result of `generate_texts`

All three use the scheduler: prompts enter the batch while there is room, and finished ones leave it. The result for a
prompt does not depend on the other prompts of its batch. `decoding.sampling` defines how a token is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chumoku.decoding.batch import forbidden_tokens, longest
from chumoku.decoding.defaults import MIN_P, TEMPERATURE, TOP_P
from chumoku.decoding.engines.base import TOGETHER, Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request, Scheduler
from chumoku.decoding.stop_strings import TextStream
from chumoku.errors import ChumokuError, LengthError, UsageError
from chumoku.models.model import DecoderModel
from chumoku.text.progress import Progress, silent
from chumoku.text.tokenizer import Tokenizer

ROWS = 256  # most prompts generated at a time …
MEMORY = 4 << 30  # … while their keys and values fit in this many bytes
DEFAULT_SAMPLING = SamplingOptions(min_p=MIN_P)


def generate(
    model: DecoderModel,
    tokens: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = TEMPERATURE,
    top_k: int | None = None,
    top_p: float | None = TOP_P,
    seed: int = 0,
    end: int | Sequence[int] | None = None,
    min_new_tokens: int = 0,
    sampling: SamplingOptions | Sequence[SamplingOptions] | None = None,
    engine: Engine | None = None,
) -> list[list[int]]:
    """The tokens generated after each prompt, without the prompt and without the end token.

    tokens      the prompts; with learned positions, prompt and text together end at the model's context
    end         token or tokens at which a row stops
    sampling    options for all prompts or for each; replaces temperature, top_k, top_p and seed
    """
    if sampling is None:
        sampling = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    ends = () if end is None else (end,) if isinstance(end, int) else tuple(end)
    check_prompts(model, tokens, max_new_tokens)
    requests = [
        Request(prompt, max_new_tokens, options, ends, min_new_tokens=min_new_tokens)
        for prompt, options in zip(tokens, sampling_for_rows(sampling, len(tokens)), strict=True)
    ]
    generated: list[list[int]] = [[] for _ in tokens]
    scheduler = make_scheduler(model, requests, engine)
    while not scheduler.idle:
        for number, token in next_tokens(scheduler):
            generated[number].append(token)
    return generated


def generate_texts(
    model: DecoderModel,
    prompts: Sequence[str],
    *,
    tokenizer: Tokenizer,
    max_new_tokens: int = 128,
    min_new_tokens: int = 0,
    sampling: SamplingOptions | Sequence[SamplingOptions] = DEFAULT_SAMPLING,
    stop: Sequence[str] = (),
    engine: Engine | None = None,
) -> list[str]:
    """The text generated after each prompt, up to the end token or before a stop string."""
    if isinstance(prompts, str):
        raise UsageError("prompts must be a list of texts, not one text. Put it in a list.")
    requests = [
        make_request(
            model,
            prompt,
            tokenizer=tokenizer,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            sampling=options,
        )
        for prompt, options in zip(prompts, sampling_for_rows(sampling, len(prompts)), strict=True)
    ]
    streams = [TextStream(tokenizer, before=request.prompt, stop=stop) for request in requests]
    return run_requests(model, requests, streams, engine)


def run_requests(
    model: DecoderModel,
    requests: Sequence[Request],
    streams: Sequence[TextStream],
    engine: Engine | None = None,
    *,
    progress: Progress = silent,
) -> list[str]:
    """The text of each request, decoded by its stream.

    progress    called with the number of tokens generated so far
    """
    pieces: list[list[str]] = [[] for _ in requests]
    scheduler, done = make_scheduler(model, requests, engine), 0
    while not scheduler.idle:
        for number, token in next_tokens(scheduler):
            if not streams[number].stopped:
                pieces[number].append(streams[number].push(token))
                if streams[number].stopped:
                    scheduler.cancel(number)
            done += 1
        progress("generating", done, unit="tokens")
    return ["".join([*shown, text.finish()]) for shown, text in zip(pieces, streams, strict=True)]


def stream(
    model: DecoderModel,
    prompt: str,
    *,
    tokenizer: Tokenizer,
    max_new_tokens: int = 128,
    min_new_tokens: int = 0,
    sampling: SamplingOptions = DEFAULT_SAMPLING,
    stop: Sequence[str] = (),
    engine: Engine | None = None,
) -> Iterator[str]:
    """The text that `generate_texts` returns, in pieces as they are generated. Closing the iterator frees its row."""
    request = make_request(
        model,
        prompt,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        sampling=sampling,
    )
    text = TextStream(tokenizer, before=request.prompt, stop=stop)
    # The scheduler is made here, so that errors are raised at the call and not at the first piece.
    return stream_pieces(make_scheduler(model, [request], engine), text)


def stream_pieces(scheduler: Scheduler, text: TextStream) -> Iterator[str]:
    """The pieces of the only text of a scheduler; closing the iterator frees its row."""
    try:
        while not scheduler.idle and not text.stopped:
            for _, token in next_tokens(scheduler):
                if piece := text.push(token):
                    yield piece
        if rest := text.finish():
            yield rest
    finally:
        scheduler.close()


def next_tokens(scheduler: Scheduler) -> list[tuple[int, int]]:
    """Run one step: (request number, token) for each new token."""
    events = scheduler.step()
    if any(event.finished == "failed" for event in events):
        raise ChumokuError("The model's logits are not finite numbers, so no token can be chosen.")
    return [(event.number, event.token) for event in events if event.token is not None]


def make_scheduler(model: DecoderModel, requests: Sequence[Request], engine: Engine | None) -> Scheduler:
    """A scheduler with these requests, numbered from 0."""
    if engine is None:
        capacity = max((len(request.prompt) + request.max_new_tokens for request in requests), default=1)
        config = model.config
        row_bytes = 2 * 4 * config.decoder_depth * config.key_heads * config.key_width * longest(model, capacity)
        engine = open_engine(model, rows=max(1, min(ROWS, len(requests), MEMORY // row_bytes)), capacity=capacity)
    scheduler = Scheduler(engine, queue=len(requests), chunk=TOGETHER)
    for request in requests:
        scheduler.submit(request)
    return scheduler


def make_request(
    model: DecoderModel,
    prompt: str,
    *,
    tokenizer: Tokenizer,
    max_new_tokens: int,
    min_new_tokens: int,
    sampling: SamplingOptions,
) -> Request:
    """A request for a prompt, encoded as in training. An empty prompt starts from the end-of-text token."""
    roles = tokenizer.roles
    edge = roles.begin if roles.end is None else roles.end
    tokens = [*tokenizer.prefix_and_suffix[0], *tokenizer.encode(prompt)] or ([] if edge is None else [edge])
    if not tokens:
        raise UsageError("An empty prompt needs an end or begin token to start from, and this tokenizer has neither.")
    if len(tokens) > model.config.context:
        raise LengthError(
            f"The prompt has {len(tokens):,} tokens, and this model reads {model.config.context:,} at most. "
            "Shorten it, or use a model with a larger context."
        )
    check_prompts(model, [tokens], max_new_tokens)
    return request_for_tokens(
        model,
        tokens,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        sampling=sampling,
    )


def request_for_tokens(
    model: DecoderModel,
    tokens: list[int],
    *,
    tokenizer: Tokenizer,
    max_new_tokens: int,
    min_new_tokens: int = 0,
    sampling: SamplingOptions,
) -> Request:
    """A request for a prompt's tokens; end and stop tokens end the text, and no other special token is generated."""
    sampling = sampling.forbid(forbidden_tokens(model, tokenizer))
    ends = [*{*tokenizer.roles.end_tokens, *tokenizer.stop_tokens}]
    return Request(tokens, max_new_tokens, sampling, ends, min_new_tokens=min_new_tokens)


def sampling_for_rows(sampling: SamplingOptions | Sequence[SamplingOptions], rows: int) -> list[SamplingOptions]:
    """Options for every row; options given for all rows differ in their random numbers."""
    if isinstance(sampling, SamplingOptions):
        return sampling.for_rows(rows)
    if len(sampling) != rows:
        raise UsageError(f"{len(sampling)} sampling options were given for {rows} prompts; give one, or one for each.")
    return list(sampling)


def check_prompts(model: DecoderModel, tokens: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    if not isinstance(model, DecoderModel):
        raise UsageError("Generation needs a model of kind 'decoder'.")
    if max_new_tokens < 0 or any(len(prompt) == 0 for prompt in tokens):
        raise UsageError(
            "A prompt needs 1 token or more (such as a begin token), and max_new_tokens must be 0 or more; it is "
            f"{max_new_tokens}, with prompts of {[len(prompt) for prompt in tokens][:10]} tokens."
        )
    most = max(map(len, tokens), default=0)
    if longest(model, most) < most:
        raise LengthError(
            f"A prompt has {most} tokens, but the learned positions of this model end at {model.config.context}. "
            "Shorten the prompt, or use a model with a larger context."
        )
