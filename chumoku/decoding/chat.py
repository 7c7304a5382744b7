"""Chat: messages become one prompt, and a reply ends where the user's next turn would begin.

    chatml   <|im_start|>user⏎ text <|im_end|>⏎  …  <|im_start|>assistant⏎          ends at the token <|im_end|>
    llama3   <|begin_of_text|>  <|start_header_id|>user<|end_header_id|>⏎⏎ text <|eot_id|>  …     ends at <|eot_id|>
    plain    User: text⏎  Assistant: text⏎  …  Assistant:                            ends at the words ⏎User:

The marks of ChatML and Llama 3 are special tokens, and text that a user types is never encoded as one. The marks of
plain chat are ordinary text, so a line of a message that looks like a mark is indented by a space. Tokens that the
tokenizer puts before every text also come before the prompt.

Turns that do not fit the context are left out: the oldest first, never the system message.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from chumoku.decoding.batch import forbidden_tokens
from chumoku.decoding.generate import DEFAULT_SAMPLING, make_scheduler, stream_pieces
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request
from chumoku.decoding.stop_strings import TextStream
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
    """A part of a prompt: text, or the name of one special token."""

    text: str
    mark: bool = False


EDGES = {  # before all messages and after them
    "chatml": ([Part(START, mark=True)], [Part("assistant\n")]),
    "llama3": (
        [Part(BEGIN, mark=True)],
        [Part(HEAD, mark=True), Part("assistant"), Part(TEXT, mark=True), Part("\n\n")],
    ),
    "plain": ([], [Part(NAMES["assistant"])]),
}


class Prompt(NamedTuple):
    tokens: list[int]
    dropped: int  # number of messages left out


class Turn(NamedTuple):
    """The assistant's turn, before it is generated."""

    request: Request
    stop: list[str]  # stop strings
    dropped: int


class Reply(NamedTuple):
    pieces: Iterator[str]  # of text
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
    text = TextStream(tokenizer, before=turn.request.prompt, stop=turn.stop)
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
    ends = {*tokenizer.roles.end_tokens, *([tokenizer.specials[MARKS[format][-1]]] if format in MARKS else [])}
    room = min(max_new_tokens, context - len(tokens))
    request = Request(tokens, room, sampling.forbid(forbidden_tokens(model, tokenizer, ends)), [*ends])
    return Turn(request, STOPS.get(format, []), dropped)


def _trimmed(pieces: Iterator[str]) -> Iterator[str]:
    """Remove white space before the first word."""
    started = False
    for piece in pieces:
        piece = piece if started else piece.lstrip()
        started = started or bool(piece)
        yield piece


def to_messages(messages: str | Sequence[Message | tuple[str, str] | Mapping[str, str]]) -> list[Message]:
    """Messages from any of the usual forms: a user's text, (role, text), {"role": …, "content": …}."""
    if isinstance(messages, str):
        messages = [Message("user", messages)]
    found = [Message(m["role"], m["content"]) if isinstance(m, Mapping) else Message(*m) for m in messages]
    for number, message in enumerate(found, start=1):
        if message.role not in ROLES or (message.role == "system" and number > 1):
            raise UsageError(
                f"Message {number} has the role '{message.role}'. A system message may come first; all others must be "
                "of role user or assistant."
            )
    if not found or found[-1].role != "user" or not found[-1].text.strip():
        raise UsageError("The last message must be from the user and must not be empty.")
    return found


def format_for(tokenizer: Tokenizer, wanted: str | None = None) -> str:
    """The wanted format, or by default the one whose marks the tokenizer has."""
    known = [format for format, marks in MARKS.items() if tokenizer.specials.keys() >= {*marks}]
    if wanted is None:
        return known[0] if known else "plain"
    if wanted not in FORMATS:
        raise UsageError(f"There is no chat format '{wanted}'. Choose one of {', '.join(FORMATS)}.")
    if wanted in MARKS and wanted not in known:
        raise UsageError(
            f"The chat format {wanted} needs the tokens {' and '.join(MARKS[wanted])}, which this tokenizer lacks. "
            "Choose plain."
        )
    return wanted


def render(messages: Sequence[Message], format: str) -> list[Part]:
    """The parts of the prompt, up to where the assistant's reply begins."""
    opening, closing = EDGES[format]
    return join_parts([*opening, *(part for one in messages for part in render_message(one, format)), *closing], format)


def render_message(message: Message, format: str) -> list[Part]:
    """One message with its marks."""
    role, text = message
    if format == "chatml":
        return [Part(f"{role}\n{text}"), Part(END, mark=True), Part("\n"), Part(START, mark=True)]
    if format == "llama3":
        head = [Part(HEAD, mark=True), Part(role), Part(TEXT, mark=True)]
        return [*head, Part(f"\n\n{text.strip()}"), Part(TURN, mark=True)]
    text = "\n".join(f" {line}" if looks_like_a_turn(line) else line for line in text.split("\n"))
    return [Part(f"{text}\n\n" if role == "system" else f"{NAMES[role]} {text}\n")]


def join_parts(parts: Sequence[Part], format: str) -> list[Part]:
    """Join all parts into one for plain chat, which has no marks: tokens may then span two messages."""
    return list(parts) if format in MARKS else [Part("".join(part.text for part in parts))]


def looks_like_a_turn(line: str) -> bool:
    """Whether a line starts like a mark, also after a tokenizer's normalization (full width, case …)."""
    normalized = "".join(filter(str.isprintable, unicodedata.normalize("NFKC", line)))
    return normalized.casefold().startswith(TURNS)


def encode(parts: Sequence[Part], tokenizer: Tokenizer) -> list[int]:
    """Encode marks as their special tokens, and everything else as ordinary text."""
    encoded = ([tokenizer.specials[part.text]] if part.mark else tokenizer.encode(part.text) for part in parts)
    return [token for tokens in encoded for token in tokens]


def fit(messages: Sequence[Message], tokenizer: Tokenizer, format: str, *, most: int) -> Prompt:
    """The prompt within `most` tokens: the oldest turns are left out, each question with its answer."""
    system, turns = ([messages[0]], messages[1:]) if messages[0].role == "system" else ([], messages)
    # Old messages are encoded only while there is room, so that a long conversation costs no more than what fits.
    fitter = _PromptFitter(system, turns, tokenizer, format)
    starts = [0, *(place for place, message in enumerate(turns) if place and message.role == "user")]
    place = fitter.estimate(starts, most)
    place = fitter.correct(starts, place, most)
    tokens = fitter.prompt(starts[place])
    if len(tokens) <= most:
        return Prompt(tokens, starts[place])
    raise LengthError(
        f"The last message alone makes a prompt of {len(tokens):,} tokens, but only {most:,} fit beside a reply. "
        "Shorten it or the system message, ask for a shorter reply, or use a model with a larger context."
    )


class _PromptFitter:
    """Prompts with fewer and fewer turns. Every message is rendered once, and with marks around it encoded once.

    Plain chat is encoded as one text, so the sum of the messages' tokens is only an estimate. Prompts near the estimate
    are encoded until one that fits is next to one that does not. (This assumes that one more turn never means fewer
    tokens.)
    """

    def __init__(self, system: Sequence[Message], turns: Sequence[Message], tokenizer: Tokenizer, format: str) -> None:
        self._turns, self._tokenizer, self._format = turns, tokenizer, format
        opening, closing = EDGES[format]
        self._first = [*opening, *(part for one in system for part in render_message(one, format))]
        self._last = closing
        self._parts: dict[int, list[Part]] = {}
        self._encoded: dict[Part, list[int]] = {}
        self._prompts: dict[int, list[int]] = {}

    def estimate(self, starts: Sequence[int], most: int) -> int:
        """The index of the first start from which all messages fit, by the sum of their tokens."""
        count = sum(len(self._tokens(part)) for part in (*self._first, *self._last))
        found, end = len(starts) - 1, len(self._turns)
        for place in reversed(range(len(starts))):
            for turn in reversed(range(starts[place], end)):
                count += sum(len(self._tokens(part)) for part in self._rendered(turn))
                if count > most:
                    return found
            found, end = place, starts[place]
        return found

    def correct(self, starts: Sequence[int], place: int, most: int) -> int:
        """The index of the first start whose encoded prompt fits; the last one if none does."""

        def fits(other: int) -> bool:
            known = other < place and self._format in MARKS  # with marks the sum is exact
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
        """The tokens of a prompt from this turn on, including those that the tokenizer puts before every text."""
        if start not in self._prompts:
            turns = (part for turn in range(start, len(self._turns)) for part in self._rendered(turn))
            parts = join_parts([*self._first, *turns, *self._last], self._format)
            marked = self._format in MARKS
            each = map(self._tokens, parts) if marked else [encode(parts, self._tokenizer)]
            tokens = [token for tokens in each for token in tokens]
            before = [*self._tokenizer.prefix_and_suffix[0]]
            self._prompts[start] = tokens if tokens[: len(before)] == before else [*before, *tokens]
        return self._prompts[start]

    def _rendered(self, turn: int) -> list[Part]:
        if turn not in self._parts:
            self._parts[turn] = render_message(self._turns[turn], self._format)
        return self._parts[turn]

    def _tokens(self, part: Part) -> list[int]:
        if part not in self._encoded:
            self._encoded[part] = encode([part], self._tokenizer)
        return self._encoded[part]
