"""Chat: turns become one prompt, and a reply ends where the other's turn would begin.

    chatml   <|im_start|>user⏎ text <|im_end|>⏎  …  <|im_start|>assistant⏎          ends at the token <|im_end|>
    llama3   <|begin_of_text|>  <|start_header_id|>user<|end_header_id|>⏎⏎ text <|eot_id|>  …     ends at <|eot_id|>
    plain    User: text⏎  Assistant: text⏎  …  Assistant:                            ends at the words ⏎User:

The marks of ChatML and Llama 3 are tokens, and what a person types never becomes one: words are encoded as words alone.
The marks of plain chat are words, so a line of a text that looks like one is set in by a space. What the tokenizer puts
before every text stands before the prompt too.

What no longer fits the context is left out: the oldest turns first, never the system's message.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from chumoku.decoding.batch import forbidden_tokens
from chumoku.decoding.generate import DEFAULT_SAMPLING, make_scheduler, stream_pieces
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request
from chumoku.decoding.stop_strings import Utterance
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import DecoderModel
from chumoku.text.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant")
FORMATS = ("chatml", "llama3", "plain")
START, END = "<|im_start|>", "<|im_end|>"
BEGIN, HEAD, TEXT, TURN = "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
MARKS = {"chatml": (START, END), "llama3": (BEGIN, HEAD, TEXT, TURN)}  # the last of them ends a reply
NAMES = {"user": "User:", "assistant": "Assistant:"}
STOPS = {"plain": ["\nUser:"]}
TURNS = tuple(name.casefold() for name in NAMES.values())


class Message(NamedTuple):
    role: str  # system, user or assistant
    text: str


class Part(NamedTuple):
    """A stretch of a prompt: words, or the name of one special token."""

    text: str
    mark: bool = False


EDGES = {  # what stands before all messages and behind them
    "chatml": ([Part(START, mark=True)], [Part("assistant\n")]),
    "llama3": (
        [Part(BEGIN, mark=True)],
        [Part(HEAD, mark=True), Part("assistant"), Part(TEXT, mark=True), Part("\n\n")],
    ),
    "plain": ([], [Part(NAMES["assistant"])]),
}


class Prompt(NamedTuple):
    tokens: list[int]
    dropped: int  # messages that were left out, so that the rest fits


class Turn(NamedTuple):
    """The assistant's, before it is written."""

    request: Request
    stop: list[str]  # words that end it
    dropped: int


class Reply(NamedTuple):
    pieces: Iterator[str]  # as they come
    dropped: int

    @property
    def dropped_notice(self) -> str:
        return f"The {self.dropped} oldest messages no longer fit the model's context and were left out."


def reply(
    model: DecoderModel,
    messages: str | Sequence[Message | tuple[str, str] | Mapping[str, str]],
    *,
    tokenizer: Tokenizer,
    max_new_tokens: int = 512,
    format: str | None = None,
    sampling: SamplingOptions = DEFAULT_SAMPLING,
) -> Reply:
    """The assistant's next message; prompt and reply together stay within the model's context.

    messages    a user's text, or messages as Message, (role, text) or {"role": …, "content": …}
    format      one of FORMATS; by default the one that the tokenizer has tokens for
    """
    turn = make_turn(
        model, messages, tokenizer=tokenizer, max_new_tokens=max_new_tokens, format=format, sampling=sampling
    )
    text = Utterance(tokenizer, before=turn.request.prompt, stop=turn.stop)
    return Reply(_trimmed(stream_pieces(make_scheduler(model, [turn.request], None), text)), turn.dropped)


def make_turn(
    model: DecoderModel,
    messages: str | Sequence[Message | tuple[str, str] | Mapping[str, str]],
    *,
    tokenizer: Tokenizer,
    max_new_tokens: int,
    format: str | None = None,
    sampling: SamplingOptions = DEFAULT_SAMPLING,
    context: int | None = None,
) -> Turn:
    """The request for the assistant's next message, within the model's context or a smaller one."""
    format = format_for(tokenizer, format)
    if max_new_tokens < 1:
        raise UsageError(f"max_new_tokens must be 1 or more for a reply, not {max_new_tokens}.")
    context = min(context or model.config.context, model.config.context)
    # At most a quarter of the context is kept free for the reply, even if max_new_tokens is more.
    tokens, dropped = fit(to_messages(messages), tokenizer, format, most=context - min(max_new_tokens, context // 4))
    ends = {tokenizer.roles.end, tokenizer.specials[MARKS[format][-1]] if format in MARKS else None} - {None}
    forbidden = [token for token in forbidden_tokens(model, tokenizer) if token not in ends]
    room = min(max_new_tokens, context - len(tokens))
    request = Request(tokens, room, sampling.forbid(forbidden), [end for end in ends if end is not None])
    return Turn(request, STOPS.get(format, []), dropped)


def _trimmed(pieces: Iterator[str]) -> Iterator[str]:
    """Without the space before the first word."""
    begun = False
    for piece in pieces:
        piece = piece if begun else piece.lstrip()
        begun = begun or bool(piece)
        yield piece


def to_messages(messages: str | Sequence[Message | tuple[str, str] | Mapping[str, str]]) -> list[Message]:
    """Messages of any of the usual forms: words of a user, (role, text), {"role": …, "content": …}."""
    if isinstance(messages, str):
        messages = [Message("user", messages)]
    found = [Message(m["role"], m["content"]) if isinstance(m, Mapping) else Message(*m) for m in messages]
    for number, message in enumerate(found, start=1):
        if message.role not in ROLES or (message.role == "system" and number > 1):
            raise UsageError(
                f"Message {number} is of role '{message.role}'. A system's message may come first; the others are a "
                "user's and an assistant's."
            )
    if not found or found[-1].role != "user" or not found[-1].text.strip():
        raise UsageError("A conversation ends with a user's message that says something: that is what is replied to.")
    return found


def format_for(tokenizer: Tokenizer, wanted: str | None = None) -> str:
    """The format that was asked for, or the one whose marks the tokenizer knows."""
    known = [format for format, marks in MARKS.items() if tokenizer.specials.keys() >= {*marks}]
    if wanted is None:
        return known[0] if known else "plain"
    if wanted not in FORMATS:
        raise UsageError(f"There is no chat format '{wanted}'; there are {', '.join(FORMATS)}.")
    if wanted in MARKS and wanted not in known:
        raise UsageError(
            f"The chat format {wanted} needs the tokens {' and '.join(MARKS[wanted])}, which this tokenizer lacks. "
            "Choose plain."
        )
    return wanted


def render(messages: Sequence[Message], format: str) -> list[Part]:
    """The prompt, up to where the assistant is to speak; joined, its parts are what one would read."""
    opening, closing = EDGES[format]
    return joined([*opening, *(part for one in messages for part in rendered(one, format)), *closing], format)


def rendered(message: Message, format: str) -> list[Part]:
    """One message with its marks."""
    role, text = message
    if format == "chatml":
        return [Part(f"{role}\n{text}"), Part(END, mark=True), Part("\n"), Part(START, mark=True)]
    if format == "llama3":
        head = [Part(HEAD, mark=True), Part(role), Part(TEXT, mark=True)]
        return [*head, Part(f"\n\n{text.strip()}"), Part(TURN, mark=True)]
    text = "\n".join(f" {line}" if looks_like_a_turn(line) else line for line in text.split("\n"))
    return [Part(f"{text}\n\n" if role == "system" else f"{NAMES[role]} {text}\n")]


def joined(parts: Sequence[Part], format: str) -> list[Part]:
    """Plain chat has no marks: it is one text, and its tokens may reach over the edges of messages."""
    return list(parts) if format in MARKS else [Part("".join(part.text for part in parts))]


def looks_like_a_turn(line: str) -> bool:
    """Whether a line begins like one, or would once a tokenizer's normalizer has been over it (full width, case …)."""
    seen = "".join(filter(str.isprintable, unicodedata.normalize("NFKC", line)))
    return seen.casefold().startswith(TURNS)


def encode(parts: Sequence[Part], tokenizer: Tokenizer) -> list[int]:
    """Marks as the tokens they name, everything else as the words it is."""
    encoded = ([tokenizer.specials[part.text]] if part.mark else tokenizer.encode(part.text) for part in parts)
    return [token for tokens in encoded for token in tokens]


def fit(messages: Sequence[Message], tokenizer: Tokenizer, format: str, *, most: int) -> Prompt:
    """The prompt within `most` tokens: turns are left out from the oldest on, a question with its answer."""
    system, turns = ([messages[0]], messages[1:]) if messages[0].role == "system" else ([], messages)
    # Old messages are looked at only while there is room, so that a long talk costs no more than what fits of it.
    fitting = _Fitting(system, turns, tokenizer, format)
    starts = [0, *(place for place, message in enumerate(turns) if place and message.role == "user")]
    place = fitting.guess(starts, most)
    place = fitting.corrected(starts, place, most)
    tokens = fitting.prompt(starts[place])
    if len(tokens) <= most:
        return Prompt(tokens, starts[place])
    raise LengthError(
        f"The last message alone makes a prompt of {len(tokens):,} tokens, and {most:,} fit beside a reply. Shorten it "
        "or the system's message, ask for a shorter reply, or use a model with a larger context."
    )


class _Fitting:
    """Prompts of ever fewer turns. Every message is rendered once, and with marks around it encoded once.

    Plain chat is one text, and what its messages have alone tells about how many tokens they have together. So the
    sum is a guess there, and prompts beside it are made until one that fits lies next to one that does not. (For that,
    a prompt with a turn more must have no fewer tokens.)
    """

    def __init__(self, system: Sequence[Message], turns: Sequence[Message], tokenizer: Tokenizer, format: str) -> None:
        self._turns, self._tokenizer, self._format = turns, tokenizer, format
        opening, closing = EDGES[format]
        self._first = [*opening, *(part for one in system for part in rendered(one, format))]
        self._last = closing
        self._parts: dict[int, list[Part]] = {}
        self._encoded: dict[Part, list[int]] = {}
        self._prompts: dict[int, list[int]] = {}

    def guess(self, starts: Sequence[int], most: int) -> int:
        """Which of the starts is the first from which on all messages fit, by the sum of their tokens."""
        count = sum(len(self._tokens(part)) for part in (*self._first, *self._last))
        found, end = len(starts) - 1, len(self._turns)
        for place in reversed(range(len(starts))):
            for turn in reversed(range(starts[place], end)):
                count += sum(len(self._tokens(part)) for part in self._rendered(turn))
                if count > most:
                    return found
            found, end = place, starts[place]
        return found

    def corrected(self, starts: Sequence[int], place: int, most: int) -> int:
        """The first start whose prompt fits indeed; the last one where none does."""

        def fits(other: int) -> bool:
            known = other < place and self._format in MARKS  # with marks the sum is no guess
            return not known and len(self.prompt(starts[other])) <= most

        low, high, step = -1, len(starts) - 1, 1  # all up to low are too long; from high on all fit, if any
        if fits(place):
            high = place
            while high and fits(max(0, high - step)):
                high, step = max(0, high - step), 2 * step
            low = max(0, high - step) if high else -1
        else:
            low = place
            while low < high and not fits(min(high, low + step)):
                low, step = min(high, low + step), 2 * step
            high = min(high, low + step)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high

    def prompt(self, start: int) -> list[int]:
        """The tokens of a prompt from this turn on, behind what the tokenizer puts before every text."""
        if start not in self._prompts:
            turns = (part for turn in range(start, len(self._turns)) for part in self._rendered(turn))
            parts = joined([*self._first, *turns, *self._last], self._format)
            marked = self._format in MARKS
            each = map(self._tokens, parts) if marked else [encode(parts, self._tokenizer)]
            tokens = [token for tokens in each for token in tokens]
            before = [*self._tokenizer.frame[0]]
            self._prompts[start] = tokens if tokens[: len(before)] == before else [*before, *tokens]
        return self._prompts[start]

    def _rendered(self, turn: int) -> list[Part]:
        if turn not in self._parts:
            self._parts[turn] = rendered(self._turns[turn], self._format)
        return self._parts[turn]

    def _tokens(self, part: Part) -> list[int]:
        if part not in self._encoded:
            self._encoded[part] = encode([part], self._tokenizer)
        return self._encoded[part]
