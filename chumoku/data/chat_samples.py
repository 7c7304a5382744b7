"""A conversation → token ids, and which of them are learned: those that the assistant would generate.

    prompt  = render(m₁ … mᵢ₋₁, with the generation prompt)      what the model is given before message i
    turn    = render(m₁ … mᵢ)                                    what it should have written, after the same prompt
    learned = turn without its common start with the prompt, up to the token that ends the turn

So no template needs special marks, and a typed special token stays text, because `encode_spans` encodes as in a chat.
A turn whose tokens go on from the sample before it extends that sample. Otherwise (a template may rewrite earlier
turns, for example without their reasoning) it is a sample of its own: what the model sees in a chat is what it learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chumoku.data.conversations import is_learned
from chumoku.errors import UsageError
from chumoku.text.chat_template import ChatTemplate, encode_spans
from chumoku.text.chat_template_process import TemplateStopped
from chumoku.text.tokenizer import Tokenizer


class ChatSample(NamedTuple):
    tokens: NDArray[np.int64]
    learned: NDArray[np.bool_]  # one for each token


class EncodedConversation(NamedTuple):
    samples: list[ChatSample]
    cut: bool = False  # whether the last turns were left out because they are too long
    problem: str | None = None  # the reason for dropping it
    detail: str = ""


class ConversationEncoder:
    """Encodes conversations by the chat template of a tokenizer; a sample has at most `most` tokens.

    Only complete turns are learned. From the first turn on that is too long, the rest of a conversation is left out.
    """

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self.template, self._tokenizer, self._most = chat_template_of(tokenizer), tokenizer, most
        self._ends = {*self.template.find_end_tokens(tokenizer)}

    def __call__(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> EncodedConversation:
        try:
            return self._encode(messages, tools)
        except TemplateStopped:
            raise  # it may render next time
        except UsageError as error:
            return EncodedConversation([], problem="refused by the template", detail=str(error))

    def _encode(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None
    ) -> EncodedConversation:
        fields = [{key: value for key, value in one.items() if key != "weight"} for one in messages]
        samples: list[tuple[list[int], list[tuple[int, int]]]] = []  # tokens, and the learned ranges
        cut = False
        for place in (place for place, message in enumerate(messages) if is_learned(message)):
            prompt = self._render(fields[:place], tools, add_generation_prompt=True)
            turn = self._render(fields[: place + 1], tools, add_generation_prompt=False)
            start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, turn, strict=False)))
            stop = self._end_of_turn(turn, start)
            cut = stop > self._most
            if cut:
                break
            if start == stop:
                continue
            ranges = [(start, stop)]
            if samples and turn[: len(samples[-1][0])] == samples[-1][0]:
                ranges = [*samples.pop()[1], *ranges]
            samples.append((turn[:stop], ranges))
        problem = None if samples else "too many tokens" if cut else "no answer"
        return EncodedConversation([_make_sample(*sample) for sample in samples], cut and bool(samples), problem)

    def _render(self, messages: Sequence[dict[str, Any]], tools: Any, *, add_generation_prompt: bool) -> list[int]:
        spans = self.template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return encode_spans(self._tokenizer, spans)

    def _end_of_turn(self, turn: Sequence[int], start: int) -> int:
        """The end of the last end-of-turn token; what a template writes after it is not generated."""
        ends = [place + 1 for place in range(start, len(turn)) if turn[place] in self._ends]
        return ends[-1] if ends else len(turn)


def chat_template_of(tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template of a tokenizer; UsageError if it has none."""
    if tokenizer.chat_template is None:
        raise UsageError(
            "This model has no chat template, which writes messages as tokens. Start from a chat model (often called "
            "-Instruct or -Chat), or add a chat_template to its tokenizer_config.json."
        )
    return tokenizer.chat_template


def _make_sample(tokens: list[int], ranges: list[tuple[int, int]]) -> ChatSample:
    learned = np.zeros(len(tokens), bool)
    for start, stop in ranges:
        learned[start:stop] = True
    return ChatSample(np.array(tokens, np.int64), learned)


def show_sample(sample: ChatSample, tokenizer: Tokenizer) -> str:
    """The text of a sample, with ⟦ ⟧ around what is learned."""
    edges = np.flatnonzero(np.diff(sample.learned)) + 1
    parts = zip(np.split(sample.tokens, edges), np.split(sample.learned, edges), strict=True)
    texts = [(tokenizer.decode(tokens.tolist(), special=True), bool(learned[0])) for tokens, learned in parts]
    return "".join(f"⟦{text}⟧" if learned else text for text, learned in texts)
