"""Generation: a decoder goes on from a prompt, one token at a time.

    prompt → tokens → read at once → (choose a token → read it)* → text

    generate   tokens to tokens, many prompts at once
    write      text to text, many prompts at once
    stream     one prompt, its text as it comes; all of it together is what `write` gives

All three are the scheduler's: prompts enter the batch while there is room, and finished ones leave it. How a token is
chosen is said in `decoding.choosers`. What a prompt becomes does not depend on its batch mates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chumoku.decoding.batch import longest
from chumoku.decoding.defaults import TEMPERATURE, TOP_P
from chumoku.decoding.engines.base import TOGETHER, Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.sampling import Choice
from chumoku.decoding.scheduler import Request, Scheduler
from chumoku.decoding.stop_strings import Utterance
from chumoku.errors import ChumokuError, LengthError, UsageError
from chumoku.models.model import DecoderModel, Model
from chumoku.text.tokenizer import Tokenizer

ROWS = 256  # so many are written at a time, while their keys and values stay within …
MEMORY = 4 << 30  # … bytes
PLAIN = Choice()


def generate(
    model: DecoderModel,
    tokens: Sequence[Sequence[int]],
    *,
    new: int,
    temperature: float = TEMPERATURE,
    top_k: int | None = None,
    top_p: float | None = TOP_P,
    seed: int = 0,
    end: int | Sequence[int] | None = None,
    least: int = 0,
    choice: Choice | Sequence[Choice] | None = None,
    engine: Engine | None = None,
) -> list[list[int]]:
    """Up to `new` tokens after each prompt, without the prompt and without `end`, at which a row stops.

    A `choice`, one for all or one for each, stands in for temperature, top_k, top_p and seed. With learned positions,
    prompt and text together end at the model's context.
    """
    if choice is None:
        choice = Choice(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    ends = () if end is None else (end,) if isinstance(end, int) else tuple(end)
    check(model, tokens, new)
    choices = each(choice, len(tokens))
    requests = [Request(prompt, new, one, ends, least=least) for prompt, one in zip(tokens, choices, strict=True)]
    written: list[list[int]] = [[] for _ in tokens]
    scheduler = start(model, requests, engine)
    while not scheduler.idle:
        for number, token in heard(scheduler):
            written[number].append(token)
    return written


def write(
    model: DecoderModel,
    prompts: Sequence[str],
    *,
    tokenizer: Tokenizer,
    new: int = 128,
    least: int = 0,
    choice: Choice | Sequence[Choice] = PLAIN,
    stop: Sequence[str] = (),
    engine: Engine | None = None,
) -> list[str]:
    """What the model writes after each prompt: up to `new` tokens, to its end token or before a stop string."""
    if isinstance(prompts, str):
        raise UsageError("Prompts are a list of texts; one alone is a list of one.")
    choices = each(choice, len(prompts))
    asked = [
        request(model, prompt, tokenizer=tokenizer, new=new, least=least, choice=one)
        for prompt, one in zip(prompts, choices, strict=True)
    ]
    utterances = [Utterance(tokenizer, before=one.prompt, stop=stop) for one in asked]
    pieces: list[list[str]] = [[] for _ in prompts]
    scheduler = start(model, asked, engine)
    while not scheduler.idle:
        for number, token in heard(scheduler):
            if not utterances[number].stopped:
                pieces[number].append(utterances[number].push(token))
                if utterances[number].stopped:
                    scheduler.cancel(number)
    return ["".join([*shown, one.finish()]) for shown, one in zip(pieces, utterances, strict=True)]


def stream(
    model: DecoderModel,
    prompt: str,
    *,
    tokenizer: Tokenizer,
    new: int = 128,
    least: int = 0,
    choice: Choice = PLAIN,
    stop: Sequence[str] = (),
    engine: Engine | None = None,
) -> Iterator[str]:
    """What `write` gives, in pieces, each as soon as it is certain. Closing the iterator frees its row."""
    asked = request(model, prompt, tokenizer=tokenizer, new=new, least=least, choice=choice)
    utterance = Utterance(tokenizer, before=asked.prompt, stop=stop)
    # Made here, so that what cannot be is said at the call and not at the first piece.
    return spoken(start(model, [asked], engine), utterance)


def spoken(scheduler: Scheduler, utterance: Utterance) -> Iterator[str]:
    """The pieces of the one text that a scheduler writes; closed early, its row is free."""
    try:
        while not scheduler.idle and not utterance.stopped:
            for _, token in heard(scheduler):
                if piece := utterance.push(token):
                    yield piece
        if rest := utterance.finish():
            yield rest
    finally:
        scheduler.close()


def heard(scheduler: Scheduler) -> list[tuple[int, int]]:
    """The tokens of one step, each with the number of its text."""
    events = scheduler.step()
    if any(event.finished == "failed" for event in events):
        raise ChumokuError("The model's answers are no finite numbers, so no token is likelier than another.")
    return [(event.number, event.token) for event in events if event.token is not None]


def start(model: DecoderModel, requests: Sequence[Request], engine: Engine | None) -> Scheduler:
    """A scheduler with these requests, numbered from 0."""
    if engine is None:
        capacity = max((len(one.prompt) + one.new for one in requests), default=1)
        config = model.config
        each = 2 * 4 * config.decoder_depth * config.key_heads * config.head_width * longest(model, capacity)
        engine = open_engine(model, rows=max(1, min(ROWS, len(requests), MEMORY // each)), capacity=capacity)
    scheduler = Scheduler(engine, queue=len(requests), chunk=TOGETHER)
    for one in requests:
        scheduler.submit(one)
    return scheduler


def request(model: DecoderModel, prompt: str, *, tokenizer: Tokenizer, new: int, least: int, choice: Choice) -> Request:
    """A prompt as in training, with what its tokenizer puts before a text; what follows nothing follows the end of
    another text."""
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
    end = () if roles.end is None else (roles.end,)
    check(model, [tokens], new)
    return Request(tokens, new, choice.without(wordless(model, tokenizer)), end, least=least)


def wordless(model: Model, tokenizer: Tokenizer) -> list[int]:
    """Tokens that have no text and are no end: special ones, and those that a model has beyond its tokenizer's."""
    special = {*tokenizer.specials.values(), tokenizer.roles.unknown} - {tokenizer.roles.end, None}
    beyond = range(tokenizer.size, model.config.vocabulary)
    return [*sorted(token for token in special if token is not None and token < model.config.vocabulary), *beyond]


def each(choice: Choice | Sequence[Choice], rows: int) -> list[Choice]:
    """A choice for every row: one given for all is spread, so that each row has random numbers of its own."""
    if isinstance(choice, Choice):
        return choice.spread(rows)
    if len(choice) != rows:
        raise UsageError(f"{len(choice)} choices were given for {rows} prompts; give one for all or one for each.")
    return list(choice)


def check(model: DecoderModel, tokens: Sequence[Sequence[int]], new: int) -> None:
    if not isinstance(model, DecoderModel):
        raise UsageError("Generation goes on from a prompt: it needs a model of kind 'decoder'.")
    if new < 0 or any(len(prompt) == 0 for prompt in tokens):
        raise UsageError(
            f"{new} new tokens were asked for after prompts of {[len(prompt) for prompt in tokens][:10]} tokens; a "
            "prompt has 1 or more (a begin token, where there is nothing else), and new is 0 or more."
        )
    most = max(map(len, tokens), default=0)
    if longest(model, most) < most:
        raise LengthError(
            f"A prompt has {most} tokens, and the learned positions of this model end at {model.config.context}. "
            "Shorten the prompt, or use a model with a larger context."
        )
