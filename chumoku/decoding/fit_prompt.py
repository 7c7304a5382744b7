"""Fit a conversation into a model's context: turns that do not fit are left out, the oldest first, never the system
message, each question with its answer.

Old messages are encoded only while there is room, so that a long conversation costs no more than what fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chumoku.decoding.chat_formats import EDGES, MARKS, Message, Part, encode, join_parts, render_message
from chumoku.errors import LengthError
from chumoku.text.chat_template import ChatTemplate, encode_spans
from chumoku.text.tokenizer import Tokenizer

TEMPLATE_TOKENS = 5  # that a typical chat template writes around a message, as ChatML and Llama 3 do


class Prompt(NamedTuple):
    tokens: list[int]
    dropped: int  # number of messages left out


def fit(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    format: str | ChatTemplate,
    *,
    most: int,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> Prompt:
    """The prompt within `most` tokens, in one of FORMATS or by a chat template."""
    system, turns = ([messages[0]], messages[1:]) if messages[0].role == "system" else ([], messages)
    fitter: PromptFitter
    if isinstance(format, ChatTemplate):
        fitter = TemplateFitter(system, turns, tokenizer, format, tools)
    else:
        fitter = FormatFitter(system, turns, tokenizer, format)
    starts = [0, *(place for place, message in enumerate(turns) if place and message.role == "user")]
    place = fitter.estimate(starts, most)
    place = fitter.correct(starts, place, most)
    tokens = fitter.prompt(starts[place])
    if len(tokens) <= most:
        return Prompt(tokens, starts[place])
    raise LengthError(
        f"The last message alone makes a prompt of {len(tokens):,} tokens, but only {most:,} fit beside a reply. "
        f"Shorten it{', the tools' if tools else ''} or the system message, ask for a shorter reply, or use a model "
        "with a larger context."
    )


class PromptFitter:
    """Prompts with fewer and fewer turns. Each prompt is made once.

    The sum of the messages' tokens is only an estimate. Prompts near the estimate are made until one that fits is next
    to one that does not. (This assumes that one more turn never means fewer tokens.)
    """

    exact = False  # whether the estimate is the number of tokens

    def __init__(self, turns: Sequence[Message]) -> None:
        self._turns = turns
        self._prompts: dict[int, list[int]] = {}

    def count_edges(self) -> int:
        """The number of tokens before and after all turns, as far as it is known."""
        raise NotImplementedError

    def count_turn(self, turn: int) -> int:
        raise NotImplementedError

    def make_prompt(self, start: int) -> list[int]:
        raise NotImplementedError

    def prompt(self, start: int) -> list[int]:
        """The tokens of a prompt from this turn on."""
        if start not in self._prompts:
            self._prompts[start] = self.make_prompt(start)
        return self._prompts[start]

    def estimate(self, starts: Sequence[int], most: int) -> int:
        """The index of the first start from which all messages fit, by the sum of their tokens."""
        count = self.count_edges()
        found, end = len(starts) - 1, len(self._turns)
        for place in reversed(range(len(starts))):
            for turn in reversed(range(starts[place], end)):
                count += self.count_turn(turn)
                if count > most:
                    return found
            found, end = place, starts[place]
        return found

    def correct(self, starts: Sequence[int], place: int, most: int) -> int:
        """The index of the first start whose encoded prompt fits; the last one if none does."""

        def fits(other: int) -> bool:
            known = other < place and self.exact
            return not known and self.length(starts[other]) <= most

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

    def length(self, start: int) -> float:
        try:
            return len(self.prompt(start))
        except LengthError:
            return math.inf


class FormatFitter(PromptFitter):
    """Prompts in one of FORMATS. Every message is rendered once, and with marks around it encoded once."""

    def __init__(self, system: Sequence[Message], turns: Sequence[Message], tokenizer: Tokenizer, format: str) -> None:
        super().__init__(turns)
        self._tokenizer, self._format = tokenizer, format
        self.exact = format in MARKS  # plain chat is encoded as one text
        opening, closing = EDGES[format]
        self._first = [*opening, *(part for one in system for part in render_message(one, format))]
        self._last = closing
        self._parts: dict[int, list[Part]] = {}
        self._encoded: dict[Part, list[int]] = {}

    def count_edges(self) -> int:
        return sum(len(self._tokens(part)) for part in (*self._first, *self._last))

    def count_turn(self, turn: int) -> int:
        return sum(len(self._tokens(part)) for part in self._rendered(turn))

    def make_prompt(self, start: int) -> list[int]:
        """The tokens, including those that the tokenizer puts before every text."""
        turns = (part for turn in range(start, len(self._turns)) for part in self._rendered(turn))
        parts = join_parts([*self._first, *turns, *self._last], self._format)
        each = map(self._tokens, parts) if self.exact else [encode(parts, self._tokenizer)]
        tokens = [token for tokens in each for token in tokens]
        before = [*self._tokenizer.prefix_and_suffix[0]]
        return tokens if tokens[: len(before)] == before else [*before, *tokens]

    def _rendered(self, turn: int) -> list[Part]:
        if turn not in self._parts:
            self._parts[turn] = render_message(self._turns[turn], self._format)
        return self._parts[turn]

    def _tokens(self, part: Part) -> list[int]:
        if part not in self._encoded:
            self._encoded[part] = encode([part], self._tokenizer)
        return self._encoded[part]


class TemplateFitter(PromptFitter):
    """Prompts by a chat template, rendered with fewer and fewer turns."""

    def __init__(
        self,
        system: Sequence[Message],
        turns: Sequence[Message],
        tokenizer: Tokenizer,
        template: ChatTemplate,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        super().__init__(turns)
        self._system, self._tokenizer, self._template, self._tools = system, tokenizer, template, tools

    def estimate(self, starts: Sequence[int], most: int) -> int:
        """A conversation that may well fit is rendered as a whole first, instead of each message alone."""
        characters = sum(len(message.text) for message in (*self._system, *self._turns))
        return 0 if characters <= 4 * most and self.length(0) <= most else super().estimate(starts, most)

    def count_edges(self) -> int:
        return sum(len(self._tokenizer.encode(message.text)) for message in self._system)

    def count_turn(self, turn: int) -> int:
        return TEMPLATE_TOKENS + len(self._tokenizer.encode(self._turns[turn].text))

    def make_prompt(self, start: int) -> list[int]:
        messages = [*self._system, *self._turns[start:]]
        fields = [{"role": one.role, "content": one.text, **one.extra} for one in messages]
        return encode_spans(self._tokenizer, self._template.render(fields, tools=self._tools))
